"""``python tests/chaos NAME``: kill ranks for as long as is asked, and check what is left. See README.md."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parents[1])  # where this folder is the package chaos

from chaos.commands import main

if __name__ == "__main__":
    main()
