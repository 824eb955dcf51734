"""Tests that need MPI: where there is none, they are skipped, with the reason."""

from __future__ import annotations

import re

import pytest
from jobs import PROGRAMS

from gradientflow.mpi_library import missing_mpi

WITHOUT_MPI = missing_mpi()

needs_mpi = pytest.mark.skipif(bool(WITHOUT_MPI), reason=f"needs MPI: {WITHOUT_MPI}")

_TAKES_MPI = re.compile(
    r"^from mpi4py\b|\bWORLD\.(group|Dup|Create_group|Ibarrier|Split|[sS]end|[rR]ecv)\b", re.MULTILINE
)


def takes_mpi(program: str) -> bool:
    """Tell whether tests/programs/<program>.py calls MPI in more than the checks that it names `by_mpi`."""
    return _TAKES_MPI.search((PROGRAMS / f"{program}.py").read_text(encoding="utf-8")) is not None
