"""The code blocks of the pages. The language of a block says how it runs:

- ``sh``: commands for bash. Those that install something are not run; the extras they name must exist.
- ``python``: run in the order of the page, in one namespace for the page, on two ranks.
- Where the line before a block names a file and ends with a colon, the block is also saved under that name, for the
  commands that follow.
- ``text`` directly behind one of these: what it prints. Every line must be in the output, in any order, because ranks
  print as they come; ``...`` stands for anything. Python with such a block is a program of its own, and fails where the
  last line names an exception.
- ``text`` elsewhere, ``diff``, ``toml``, ``c``, ``cmake``: for the reader.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BLOCK = re.compile(r"^```(?P<language>.*)\n(?P<text>(?:.*\n)*?)```$", re.MULTILINE)
COMMENT = re.compile(r"<!-- not run: (.+) -->")
FILE_NAME = re.compile(r"`([\w-]+\.\w+)`[^`]*:$")
SUFFIXES = {"python": {".py"}, "sh": {".sh", ".sbatch"}, "c": {".c"}, "text": {".txt"}}


@dataclass
class Block:
    """One fenced block of a page."""

    page: str
    line: int  # of the fence
    language: str
    text: str
    saved_as: str | None = None
    not_run: str | None = None
    output: str | None = None  # the text block directly behind it
    is_output: bool = False


def blocks_of(page: str) -> list[Block]:
    """Read the blocks of a page."""
    text = (ROOT / page).read_text()
    blocks: list[Block] = []
    end = 0
    for match in BLOCK.finditer(text):
        before = [line for line in text[end : match.start()].splitlines() if line.strip()]
        block = Block(page, text.count("\n", 0, match.start()) + 1, match["language"], match["text"])
        if before and (comment := COMMENT.fullmatch(before[-1])):
            block.not_run = comment[1]
            before.pop()
        if before and (name := FILE_NAME.search(before[-1])):
            block.saved_as = name[1] if Path(name[1]).suffix in SUFFIXES.get(block.language, ()) else None
        if blocks and not before and block.language == "text" and blocks[-1].language in ("python", "sh"):
            blocks[-1].output = block.text
            block.is_output = True
        blocks.append(block)
        end = match.end()
    return blocks


def blocks_left_to(test: str, page: str) -> list[Block]:
    """Return the blocks of a page that this test file runs, as the comments before them say."""
    return [block for block in blocks_of(page) if block.not_run == f"{Path(test).name} runs it"]
