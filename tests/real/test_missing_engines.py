"""Names of engines that may be missing."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.real
def test_misspelt_names_are_refused() -> None:
    command = [sys.executable, "-m", "pytest", str(Path(__file__).parent), "--allow-missing=ray,slrum"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == pytest.ExitCode.USAGE_ERROR
    assert "slrum: an engine is accelerate, " in done.stderr, done.stderr
