"""Puts on the import path what ranks share with pytest; imported for that alone."""

import sys
from pathlib import Path

_TESTS = Path(__file__).resolve().parents[1]
sys.path += [str(_TESTS / "shared"), str(_TESTS / "chaos")]
