"""Facts about the installed library, without starting MPI."""

from __future__ import annotations

from gradientflow import _location
from gradientflow.annotations import JsonObject
from gradientflow.launch import MPICH, OPEN_MPI

PACKAGE = _location.PACKAGE


def build_info() -> JsonObject:
    """Return the facts recorded by the build; empty if it recorded none."""
    try:
        return _location.build_info()
    except (OSError, ValueError):
        return {}


def built_with() -> str | None:
    """Return ``gradientflow.launch``'s name of the MPI library that the core was built with; None if unknown."""
    mpi = build_info().get("mpi")
    if mpi is None:
        return None
    return OPEN_MPI if mpi["name"] == OPEN_MPI else MPICH  # all other libraries descend from MPICH and use its launcher


def keep_mpi_unstarted() -> None:
    """Prevent later imports of mpi4py from starting MPI, because this process only looks up facts."""
    import mpi4py

    mpi4py.rc.initialize = False
