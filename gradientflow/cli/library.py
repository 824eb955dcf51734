"""What is known about the installed library without starting MPI."""

from __future__ import annotations

from typing import Any

from gradientflow import _location
from gradientflow.launch import MPICH, OPEN_MPI

PACKAGE = _location.PACKAGE


def build_info() -> dict[str, Any]:
    """Read what the build recorded about itself; empty where it recorded nothing."""
    try:
        return _location.build_info()
    except (OSError, ValueError):
        return {}


def built_with() -> str | None:
    """Name the MPI library the core was built with, as ``gradientflow.launch`` names it; None if it is not known."""
    mpi = build_info().get("mpi")
    if mpi is None:
        return None
    return OPEN_MPI if mpi["name"] == OPEN_MPI else MPICH  # all others descend from MPICH and have its launcher


def keep_mpi_unstarted() -> None:
    """Have mpi4py loaded without starting MPI: this process only looks something up."""
    import mpi4py

    mpi4py.rc.initialize = False
