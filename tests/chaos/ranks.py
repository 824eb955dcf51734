"""Commands of ranks."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

_CHAOS = Path(__file__).resolve().parent


def rank_command(module: str, arguments: Sequence[str]) -> list[str]:
    """Write the command that calls ``main()`` of a module of this folder in a new interpreter."""
    code = f"import sys; sys.path[0] = {str(_CHAOS)!r}; from {module} import main; sys.exit(main())"
    return [sys.executable, "-c", code, *arguments]
