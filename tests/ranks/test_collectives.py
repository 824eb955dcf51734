"""Collectives against NumPy and MPI: every dtype, op, size and kind of memory on every path; how a path is chosen."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from native import collective

from gradientflow.errors import ArgumentError

Run = Callable[..., Any]


MORE = [pytest.param(ranks, marks=pytest.mark.slow) for ranks in (4, 5)]


@pytest.mark.parametrize("ranks", [1, 3, pytest.param(2, marks=pytest.mark.thorough), *MORE])
def test_every_dtype_op_size_and_memory(mpirun: Run, ranks: int) -> None:
    finished = mpirun(ranks, "collectives", "grid", timeout=100)
    assert int(finished.line("cases ")) > 5000


@pytest.mark.parametrize("ranks", [3, *(pytest.param(ranks, marks=pytest.mark.slow) for ranks in (2, 4, 5))])
def test_the_same_between_nodes_of_every_size(mpirun: Run, ranks: int) -> None:
    """Where the nodes do not divide the ranks, the last node is smaller."""
    finished = mpirun(ranks, "collectives", "between", timeout=100)
    assert int(finished.line("cases ")) > 5000


@pytest.mark.checks("collectives")
@pytest.mark.parametrize("ranks", [1, 2, 3, *(pytest.param(ranks, marks=pytest.mark.slow) for ranks in (4, 5))])
def test_large_tensors_rounding_barrier_and_mpi_as_oracle(check: Run, ranks: int) -> None:
    check(ranks, timeout=100)


@pytest.mark.checks("places")
def test_ranks_that_keep_their_tensors_in_different_places(check: Run) -> None:
    check(5, timeout=100)


@pytest.mark.parametrize(
    ("algorithm", "node_size"),
    [
        *(("shared", 0), ("mpi", 1), ("hierarchical", 2)),
        *(pytest.param(*each, marks=pytest.mark.thorough) for each in (("mpi", 0), ("auto", 1), ("ring", 1))),
    ],
)
def test_integers_wrap_around(mpirun: Run, algorithm: str, node_size: int) -> None:
    """As the documentation of Communicator promises, whichever way a call goes."""
    mpirun(3, "collectives", "wrapping", algorithm, env={"GRADIENTFLOW_NODE_SIZE": str(node_size)})


def test_direct_reads_work_here(mpirun: Run) -> None:
    """The cases with direct reads are only that where the system allows them: tell where it does not."""
    remark = mpirun(2, "collectives", "wrapping", "shared").line("direct reads: ")
    if remark != "available":
        pytest.skip(f"this machine does not allow direct reads: {remark}")


# ---- the choice of a path --------------------------------------------------------------------------------------------


def choice(
    kind: str = "allreduce", algorithm: str = "auto", nodes: Sequence[int] = (4,), **situation: object
) -> tuple[str, str]:
    """Return the path for nodes of so many ranks, and what goes on between them where there are two levels."""
    facts = {"bytes": 1 << 20, "in_node_memory": False, "direct_read_allowed": True, **situation}
    path, between = collective.select(kind, algorithm, node_sizes=list(nodes), **facts)
    return path, BETWEEN[between]


def select(kind: str = "allreduce", algorithm: str = "auto", nodes: Sequence[int] = (4,), **situation: object) -> str:
    return choice(kind, algorithm, nodes, **situation)[0]


REDUCING = ["allreduce", "reduce", "reduce_scatter"]
MOVING = ["broadcast", "allgather", "allgatherv", "alltoall", "gather", "scatter"]
KINDS = ["barrier", *REDUCING, *MOVING]
SERVED = {
    "ring": ["allreduce", "reduce_scatter", "allgather", "allgatherv"],
    "recursive_doubling": ["allreduce"],
    "hierarchical": ["allreduce"],
    "hierarchical_lanes": ["allreduce"],
}
ALGORITHMS = ["auto", "shared", "mpi", *SERVED]
BETWEEN = {"a ring": "ring", "recursive doubling": "recursive_doubling", "pairwise exchange": "pairwise"}
INSIDE = {"alone", "announcement", "node_memory", "direct", "staged"}
KIB, MIB = 1 << 10, 1 << 20

NODES = st.lists(st.integers(1, 9), min_size=1, max_size=7)
BYTES = st.one_of(st.integers(0, 200 * KIB), st.integers(0, 1 << 42))


@pytest.mark.parametrize("kind", KINDS)
def test_mpi_is_taken_where_it_is_asked_for(kind: str) -> None:
    assert select(kind, "mpi") == "mpi"
    assert select(kind, "mpi", (1,)) == "mpi"
    assert select(kind, "mpi", (1, 2)) == "mpi"
    assert select(kind, "mpi", in_node_memory=True, bytes=0) == "mpi"


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("algorithm", ["auto", "shared"])
def test_inside_a_node(kind: str, algorithm: str) -> None:
    assert select(kind, algorithm, (1,)) == "alone"
    for in_node_memory in (False, True):
        assert select(kind, algorithm, bytes=0, in_node_memory=in_node_memory) == "announcement"
        assert select(kind, algorithm, bytes=4096, in_node_memory=in_node_memory) == "announcement"
    assert select(kind, algorithm, bytes=4097, in_node_memory=True) == "node_memory"
    assert select(kind, algorithm, bytes=1 << 40, in_node_memory=True) == "node_memory"
    assert select(kind, algorithm, bytes=4097) == "staged"
    assert select(kind, algorithm, bytes=(8 << 20) - 1) == "staged"
    assert select(kind, algorithm, bytes=8 << 20) == ("staged" if kind in ("allreduce", "reduce") else "direct")
    assert select(kind, algorithm, bytes=8 << 20, direct_read_allowed=False) == "staged"


@pytest.mark.parametrize("kind", KINDS)
def test_shared_serves_one_node_only(kind: str) -> None:
    for bytes_ in (0, 100, 1 << 30):
        with pytest.raises(ArgumentError, match=r"algorithm 'shared' works inside one node.*on 2 nodes"):
            select(kind, "shared", (3, 1), bytes=bytes_)


def test_allreduce_between_nodes() -> None:
    """Small ones travel with the agreement; then come doubling, pairwise exchange and a ring, or doubling for two."""
    doubling, pairwise, ring = "recursive_doubling", "pairwise", "ring"
    borders = {"segment_bytes": "32KiB", "doubling_bytes": "16KiB", "ring_bytes": "128KiB"}

    def path(*nodes: int, bytes: int) -> str:
        return select(nodes=nodes, bytes=bytes, overrides=borders)

    def paths(*nodes: int, bytes: int) -> tuple[str, str]:
        return choice(nodes=nodes, bytes=bytes, overrides=borders)

    for nodes in ((1, 1), (1, 1, 1), (4, 4), (3, 3, 2)):
        assert path(*nodes, bytes=0) == path(*nodes, bytes=4096) == "agreement"
    assert path(1, 1, bytes=32 * KIB) == "agreement"
    assert path(1, 1, bytes=32 * KIB + 1) == path(1, 1, bytes=1 << 30) == doubling
    assert select(nodes=(1, 1), bytes=64 * KIB, overrides=borders, over_tcp=True) == "agreement"
    assert select(nodes=(1, 1), bytes=64 * KIB + 1, overrides=borders, over_tcp=True) == doubling
    assert select(nodes=(1, 1), bytes=126 * KIB, over_tcp=True) == "agreement"
    assert select(nodes=(1, 1), bytes=126 * KIB + 1, over_tcp=True) == doubling
    for nodes in ((1, 1, 1), (1,) * 9):
        assert path(*nodes, bytes=16 * KIB) == "agreement"
        assert path(*nodes, bytes=16 * KIB + 1) == path(*nodes, bytes=128 * KIB - 1) == pairwise
        assert path(*nodes, bytes=128 * KIB) == path(*nodes, bytes=1 << 30) == ring
    assert paths(4, 4, bytes=4097) == paths(2, 3, bytes=1 << 30) == ("hierarchical_lanes", doubling)
    assert paths(4, 4, 4, bytes=4097) == paths(4, 4, 4, bytes=16 * KIB - 1) == ("hierarchical_lanes", doubling)
    assert paths(4, 4, 4, bytes=16 * KIB) == ("hierarchical_lanes", pairwise)
    assert paths(4, 3, 2, bytes=128 * KIB) == ("hierarchical_lanes", ring)
    assert paths(4, 1, bytes=4097) == ("hierarchical", doubling)  # a node of one rank has one lane
    assert paths(2, 2, 1, bytes=128 * KIB) == ("hierarchical", ring)


def test_rounding_for_the_wire_is_not_done_in_the_agreement() -> None:
    for bytes_ in (0, 4, 4096):
        assert select(nodes=(1, 1), bytes=bytes_, wire=True) == "recursive_doubling"
        assert choice(nodes=(2, 2, 2), bytes=bytes_, wire=True) == ("hierarchical_lanes", "recursive_doubling")
        assert select(bytes=bytes_, wire=True) == "announcement"  # inside a node nothing is rounded


def test_other_calls_between_nodes() -> None:
    assert select("allgather", nodes=(1,) * 9, bytes=16 * KIB) == "pairwise"
    for nodes in ((1, 1), (2, 2, 1), (4, 4, 4)):
        assert select("barrier", nodes=nodes, bytes=0) == "agreement"
        for kind in ("broadcast", "reduce"):
            assert select(kind, nodes=nodes, bytes=0) == select(kind, nodes=nodes, bytes=64 * KIB - 1) == "binomial"
            assert select(kind, nodes=nodes, bytes=64 * KIB) == "chain"
        for kind in ("allgather", "allgatherv"):
            if kind == "allgather" and nodes == (1, 1):  # along with the agreement
                assert select(kind, nodes=nodes, bytes=0) == select(kind, nodes=nodes, bytes=128 * KIB) == "agreement"
                assert select(kind, nodes=nodes, bytes=128 * KIB + 1) == "ring"
                continue
            assert select(kind, nodes=nodes, bytes=0) == select(kind, nodes=nodes, bytes=16 * KIB) == "pairwise"
            assert select(kind, nodes=nodes, bytes=16 * KIB + 1) == "ring"
        for bytes_ in (0, 1, MIB):
            assert select("reduce_scatter", nodes=nodes, bytes=bytes_) == "ring"
            for kind in ("alltoall", "gather", "scatter"):
                assert select(kind, nodes=nodes, bytes=bytes_) == "pairwise"


@pytest.mark.parametrize("nodes", [(4,), (1, 1), (3, 2, 2)])
@pytest.mark.parametrize("algorithm", SERVED)
def test_an_algorithm_serves_its_calls_and_refuses_the_others(algorithm: str, nodes: tuple[int, ...]) -> None:
    for kind in KINDS:
        for bytes_ in (0, 10, MIB):
            if kind in SERVED[algorithm]:
                assert select(kind, algorithm, nodes, bytes=bytes_) == algorithm
                assert select(kind, algorithm, (1,), bytes=bytes_) == "alone"
            else:
                message = f"algorithm '{algorithm}' does not serve {kind}, only {', '.join(SERVED[algorithm])}"
                with pytest.raises(ArgumentError) as refusal:
                    select(kind, algorithm, nodes, bytes=bytes_)
                assert str(refusal.value) == message


@pytest.mark.parametrize("nodes", [(4,), (1, 1)])
def test_mpi_serves_jobs_that_use_it(nodes: tuple[int, ...]) -> None:
    words = r"algorithm .mpi. hands calls over to the MPI library, which has no communicator of these ranks: it has one"
    with pytest.raises(ArgumentError, match=words):
        select(algorithm="mpi", nodes=nodes, over_tcp=True)
    assert select(nodes=nodes, over_tcp=True) == select(nodes=nodes)


def test_mpi_has_no_wire() -> None:
    for nodes in ((1,), (4,), (1, 1)):
        with pytest.raises(ArgumentError, match="algorithm 'mpi' has no wire"):
            select(algorithm="mpi", nodes=nodes, wire=True)


@given(
    kind=st.sampled_from(KINDS),
    algorithm=st.sampled_from(ALGORITHMS),
    nodes=NODES,
    bytes_=BYTES,
    wire=st.booleans(),
    in_node_memory=st.booleans(),
    direct_read_allowed=st.booleans(),
)
def test_what_is_asked_for_is_what_is_done_or_an_error(
    kind: str,
    algorithm: str,
    nodes: list[int],
    bytes_: int,
    wire: bool,
    in_node_memory: bool,
    direct_read_allowed: bool,
) -> None:
    served = kind in SERVED.get(algorithm, KINDS)
    served &= algorithm != "shared" or len(nodes) == 1
    served &= algorithm != "mpi" or not wire
    facts: dict[str, Any] = {"bytes": bytes_, "wire": wire, "in_node_memory": in_node_memory}
    facts["direct_read_allowed"] = direct_read_allowed
    if not served:
        with pytest.raises(ArgumentError, match=f"algorithm '{algorithm}'"):
            select(kind, algorithm, nodes, **facts)
        return
    path, between = choice(kind, algorithm, nodes, **facts)
    if algorithm == "mpi":
        assert path == "mpi"
    elif sum(nodes) == 1:
        assert path == "alone"
    elif algorithm in SERVED:
        assert path == algorithm
    else:
        assert path != "mpi"
        assert (path in INSIDE) == (len(nodes) == 1)
    if path.startswith("hierarchical") and len(nodes) == 2:
        assert between == "recursive_doubling"
    assert path != "direct" or direct_read_allowed
    assert path != "node_memory" or in_node_memory
    assert path != "agreement" or not wire or kind == "barrier"


@given(kind=st.sampled_from(KINDS), nodes=NODES, bytes_=BYTES, wire=st.booleans())
def test_between_nodes_it_does_not_matter_where_the_tensors_lie(
    kind: str, nodes: list[int], bytes_: int, wire: bool
) -> None:
    """Only the ranks of one node know, and all must take the same path."""
    nodes.append(1)
    paths = {
        choice(kind, "auto", nodes, bytes=bytes_, wire=wire, in_node_memory=mapped, direct_read_allowed=allowed)
        for mapped in (False, True)
        for allowed in (False, True)
    }
    assert len(paths) == 1


def test_settings_move_the_borders() -> None:
    assert select(bytes=4096, overrides={"inline_bytes": "0"}) == "staged"
    assert select(bytes=0, overrides={"inline_bytes": "0"}) == "announcement"
    assert select("broadcast", bytes=1, overrides={"inline_bytes": "0", "direct_read_bytes": "1"}) == "direct"
    assert select(bytes=65536, overrides={"inline_bytes": "64KiB"}) == "announcement"
    assert select("broadcast", bytes=64 << 20, overrides={"direct_read_bytes": "1GiB"}) == "staged"


def test_settings_move_the_borders_between_nodes() -> None:
    two, three, uneven = (1, 1), (1, 1, 1), (2, 1)
    assert select(nodes=uneven, bytes=0, overrides={"inline_bytes": "0"}) == "agreement"
    assert select(nodes=uneven, bytes=1, overrides={"inline_bytes": "0"}) == "hierarchical"
    assert select(nodes=uneven, bytes=5000, overrides={"inline_bytes": "5000"}) == "agreement"
    assert select(nodes=uneven, bytes=5000, overrides={"inline_bytes": "64KiB", "staging_bytes": "4KiB"}) != "agreement"
    assert select(nodes=two, bytes=1024, overrides={"segment_bytes": "1KiB"}) == "agreement"
    assert select(nodes=two, bytes=1025, overrides={"segment_bytes": "1KiB"}) == "recursive_doubling"
    assert select(nodes=three, bytes=1025, overrides={"segment_bytes": "1KiB"}) == "recursive_doubling"
    assert select(nodes=three, bytes=5000, overrides={"doubling_bytes": "4999"}) == "pairwise"
    assert select(nodes=three, bytes=5000, overrides={"doubling_bytes": "0", "ring_bytes": "5000"}) == "ring"
    assert select(nodes=three, bytes=MIB, overrides={"ring_bytes": "1GiB"}) == "pairwise"
    for algorithm in ("hierarchical", "hierarchical_lanes"):
        none = {"doubling_bytes": "0", "ring_bytes": "0"}
        assert choice("allreduce", algorithm, three, bytes=1, overrides=none)[1] == "ring"
        assert choice("allreduce", algorithm, three, bytes=1)[1] == "recursive_doubling"


def test_unknown_names_are_refused() -> None:
    known = "auto, ring, hierarchical, hierarchical_lanes, recursive_doubling, shared, mpi, nccl"
    with pytest.raises(ArgumentError, match=f"unknown algorithm 'NCCL'; choose from {known}"):
        select(algorithm="NCCL")
    with pytest.raises(ArgumentError, match="algorithm 'nccl' serves tensors on CUDA devices"):
        select(algorithm="nccl")
    with pytest.raises(ArgumentError, match="unknown kind"):
        select("scan")
