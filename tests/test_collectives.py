"""Collectives against NumPy and MPI: every dtype, op, size and kind of memory on every path; how a path is chosen."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from gradientflow import _core
from gradientflow.errors import ArgumentError

Run = Callable[..., Any]


@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 5])
def test_every_dtype_op_size_and_memory(mpirun: Run, ranks: int) -> None:
    finished = mpirun(ranks, "collectives", "grid", timeout=100)
    assert int(finished.line("cases ")) > 5000


@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 5])
def test_large_tensors_rounding_barrier_and_mpi_as_oracle(mpirun: Run, ranks: int) -> None:
    mpirun(ranks, "collectives", "more", timeout=100)


@pytest.mark.parametrize("ranks", [2, 5])
def test_ranks_that_keep_their_tensors_in_different_places(mpirun: Run, ranks: int) -> None:
    mpirun(ranks, "places", timeout=100)


@pytest.mark.parametrize("algorithm", ["shared", "mpi"])
def test_integers_wrap_around(mpirun: Run, algorithm: str) -> None:
    """As the documentation of Communicator promises, whichever way a call goes."""
    mpirun(3, "collectives", "wrapping", algorithm)


def test_direct_reads_work_here(mpirun: Run) -> None:
    """The cases with direct reads are only that where the system allows them: tell where it does not."""
    remark = mpirun(2, "collectives", "wrapping", "shared").line("direct reads: ")
    if remark != "available":
        pytest.skip(f"this machine does not allow direct reads: {remark}")


# ---- the choice of a path --------------------------------------------------------------------------------------------


def select(kind: str = "allreduce", algorithm: str = "auto", **situation: object) -> str:
    facts = {
        "bytes": 1 << 20,
        "ranks": 4,
        "nodes": 1,
        "in_node_memory": False,
        "direct_read_allowed": True,
        **situation,
    }
    path: str = _core.collective.select(kind, algorithm, **facts)
    return path


KINDS = ["barrier", "allreduce", "broadcast", "reduce", "allgather", "reduce_scatter"]


@pytest.mark.parametrize("kind", KINDS)
def test_several_nodes_go_over_mpi(kind: str) -> None:
    for bytes_ in (0, 100, 1 << 30):
        for in_node_memory in (False, True):
            assert select(kind, nodes=2, bytes=bytes_, in_node_memory=in_node_memory) == "mpi"
            assert select(kind, "mpi", nodes=2, bytes=bytes_, in_node_memory=in_node_memory) == "mpi"
        with pytest.raises(ArgumentError, match=r"algorithm 'shared' works inside one node.*2 nodes"):
            select(kind, "shared", nodes=2, bytes=bytes_)


@pytest.mark.parametrize("kind", KINDS)
def test_mpi_is_taken_where_it_is_asked_for(kind: str) -> None:
    assert select(kind, "mpi") == "mpi"
    assert select(kind, "mpi", ranks=1) == "mpi"
    assert select(kind, "mpi", in_node_memory=True, bytes=0) == "mpi"


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("algorithm", ["auto", "shared"])
def test_inside_a_node(kind: str, algorithm: str) -> None:
    assert select(kind, algorithm, ranks=1) == "alone"
    for in_node_memory in (False, True):
        assert select(kind, algorithm, bytes=0, in_node_memory=in_node_memory) == "announcement"
        assert select(kind, algorithm, bytes=4096, in_node_memory=in_node_memory) == "announcement"
    assert select(kind, algorithm, bytes=4097, in_node_memory=True) == "node_memory"
    assert select(kind, algorithm, bytes=1 << 40, in_node_memory=True) == "node_memory"
    assert select(kind, algorithm, bytes=4097) == "staged"
    assert select(kind, algorithm, bytes=(8 << 20) - 1) == "staged"
    assert select(kind, algorithm, bytes=8 << 20) == ("staged" if kind == "reduce" else "direct")
    assert select(kind, algorithm, bytes=8 << 20, direct_read_allowed=False) == "staged"


def test_settings_move_the_borders() -> None:
    assert select(bytes=4096, overrides={"inline_bytes": "0"}) == "staged"
    assert select(bytes=0, overrides={"inline_bytes": "0"}) == "announcement"
    assert select(bytes=1, overrides={"inline_bytes": "0", "direct_read_bytes": "1"}) == "direct"
    assert select(bytes=65536, overrides={"inline_bytes": "64KiB"}) == "announcement"
    assert select(bytes=64 << 20, overrides={"direct_read_bytes": "1GiB"}) == "staged"


def test_unknown_names_are_refused() -> None:
    with pytest.raises(ArgumentError, match="unknown algorithm 'ring'; choose from auto, shared, mpi"):
        select(algorithm="ring")
    with pytest.raises(ArgumentError, match="unknown kind"):
        select("scan")
