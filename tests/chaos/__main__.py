"""``python tests/chaos NAME``: kill ranks for as long as is asked, and check what is left. See README.md."""

from __future__ import annotations

from commands import main

if __name__ == "__main__":
    main()
