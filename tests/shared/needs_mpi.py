"""Tests that need MPI: where there is none, they are skipped, with the reason."""

from __future__ import annotations

import pytest

from gradientflow.mpi_library import missing_mpi

WITHOUT_MPI = missing_mpi()

needs_mpi = pytest.mark.skipif(bool(WITHOUT_MPI), reason=f"needs MPI: {WITHOUT_MPI}")
