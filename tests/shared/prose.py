"""The prose of the sources: docstrings, comments and pages, and the habits that make readers read twice."""

from __future__ import annotations

import io
import re
import subprocess
import tokenize
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("gradientflow", "kernels", "bindings", "bench", "docs", "README.md")
_CPP = {".hpp", ".cpp", ".h", ".cuh", ".cu"}

# Patterns of habits; all but the first ignore case.
HABITS = {
    "what, as a noun": r"\b(?:of|to|for|with|by|in|from|on|is|are|and|as|than|say|says|tell|tells|know|knows) what\b"
    r"|(?:^|[.:] )What (?!happens|if\b)[a-z]+",
    "those that, one that": r"(?i)\b(?:those|one|ones) (?:that|of|in|which|on)\b",
    "the other, the others": r"(?i)\bthe others?\b",
    "goes on": r"(?i)\bgo(?:es)? on\b",
    "anew": r"(?i)\banew\b",
    "who, of processes": r"(?i)\b(?:whoever|nobody|somebody)\b"
    r"|\bwho (?:is|has|was|waits|comes|reads|wants|does|can|may)\b",
}
LEAD = r"(?:What|Who|Whether|Those|Which|How|The thing)\b"
FIELD = r"(?:of|in|on|at|for|from|to|with|by|it|that|what|whose|which|who)\b"


class Piece(NamedTuple):
    """A docstring, a block of comments, the comment behind a field, or a page.

    Attributes
    ----------
    kind : str
        "docstring" (also a block of comments in C++), "comment", "field" or "page".
    place : str
        File and line.
    text : str
        The prose, without quotes and comment signs.
    """

    kind: str
    place: str
    text: str


def sources(root: Path = ROOT) -> list[Path]:
    """Return the files of git that have prose of ours."""
    listed = subprocess.run(["git", "ls-files", "-z", *FOLDERS], cwd=root, capture_output=True, text=True, check=True)
    names = (name for name in listed.stdout.split("\0") if name and "third_party" not in name)
    return [root / name for name in names if Path(name).suffix in {".py", ".md", *_CPP} and (root / name).is_file()]


def pieces(file: Path, root: Path = ROOT) -> Iterator[Piece]:
    """Yield the pieces of prose of a file."""
    name, text = file.relative_to(root).as_posix(), file.read_text(encoding="utf-8")
    if file.suffix == ".md":
        yield Piece("page", name, re.sub(r"```.*?```", "", text, flags=re.DOTALL))
    elif file.suffix == ".py":
        yield from _of_python(name, text)
    else:
        yield from _of_cpp(name, text)


def _of_python(name: str, text: str) -> Iterator[Piece]:
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        place = f"{name}:{token.start[0]}"
        if token.type == tokenize.COMMENT:
            yield Piece("comment", place, token.string.lstrip("# "))
        elif token.type == tokenize.STRING and token.string.lstrip("rRuUfF").startswith('"""'):
            yield Piece("docstring", place, token.string.lstrip("rRuUfF").strip('"').strip())


def _of_cpp(name: str, text: str) -> Iterator[Piece]:
    block: list[str] = []
    for number, line in enumerate([*text.splitlines(), ""], 1):
        if comment := re.match(r"\s*//+\s?(.*)", line):
            block.append(comment[1])
            continue
        if block:
            yield Piece("docstring", f"{name}:{number - len(block)}", " ".join(block))
            block = []
        if trailing := re.search(r"[;,{]\s+//+\s?(.*)", line):
            yield Piece("field", f"{name}:{number}", trailing[1])


def habits(piece: Piece) -> list[str]:
    """Return the habits of a piece, once for each place where it has them."""
    return [habit for habit, pattern in HABITS.items() for _ in re.finditer(pattern, piece.text)]


def count_habits(root: Path = ROOT) -> int:
    """Count the habits of all sources."""
    return sum(len(habits(piece)) for file in sources(root) for piece in pieces(file, root))
