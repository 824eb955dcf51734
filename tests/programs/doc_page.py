"""Run Python blocks of a documentation page in one namespace: ``doc_page.py PAGE BLOCKS.json FOLDER``."""

import json
import os
import sys
from contextlib import suppress
from pathlib import Path

with suppress(ImportError):  # pages that need it are skipped without it; those that do not lose nothing
    import torch  # noqa: F401

page, blocks, folder = sys.argv[1], Path(sys.argv[2]), sys.argv[3]
os.chdir(folder)
names: dict[str, object] = {"__name__": "__main__"}
for line, text in json.loads(blocks.read_text()):
    # The empty lines give tracebacks the line numbers of the page.
    exec(compile("\n" * line + text, page, "exec"), names)
