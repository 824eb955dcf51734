"""Ranks that know each other by MPI get an endpoint over TCP, or the same error."""

from __future__ import annotations

from mpi4py import MPI
from support import RANK, SIZE, WORLD, raises, run

from gradientflow import _core
from gradientflow.errors import ArgumentError


def main() -> None:
    introduced = _core.mpi_endpoint(MPI._addressof(WORLD))
    for _ in range(2):
        endpoint = _core.meet(RANK, SIZE, introduced)
        assert (endpoint.rank, endpoint.size, endpoint.transport, endpoint.mpi) == (RANK, SIZE, "tcp", None)
    with raises(ArgumentError, "rank 1 cannot be reached by others"):
        _core.meet(RANK, SIZE, introduced, overrides={"interface": "nosuch0" if RANK == 1 else "auto"})


run(main)
