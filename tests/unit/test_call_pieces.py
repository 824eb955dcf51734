"""A call cut into pieces: the pieces of all ranks together do what the whole call does."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from native import collective

from gradientflow.errors import InternalError

IN_PLACE = ("allreduce", "broadcast", "reduce")
KINDS = (*IN_PLACE, "allgather", "reduce_scatter", "alltoall", "gather", "scatter", "allgatherv")
DTYPES = ("uint8", "float16", "float32", "float64")
Arrays = list[np.ndarray]


def block(count: int, ranks: int, rank: int) -> slice:
    return slice(*collective.block(count, ranks, rank))


def perform(kind: str, inputs: Arrays, counts: list[int], count: int, root: int) -> dict[int, np.ndarray]:
    """Do a call on the inputs of all ranks: what each rank that has an output gets."""
    ranks = len(inputs)
    everybody = range(ranks)
    if kind in ("allreduce", "reduce", "reduce_scatter"):
        total = np.sum([values[:count] for values in inputs], axis=0, dtype=inputs[0].dtype)
        if kind == "reduce_scatter":
            return {rank: total[block(count, ranks, rank)] for rank in everybody}
        return {rank: total for rank in everybody if kind == "allreduce" or rank == root}
    if kind == "broadcast":
        return {rank: inputs[root][:count] for rank in everybody if rank != root}
    if kind in ("allgather", "gather", "allgatherv"):
        lengths = counts if kind == "allgatherv" else [count] * ranks
        gathered = np.concatenate([values[:length] for values, length in zip(inputs, lengths, strict=True)])
        return {rank: gathered for rank in everybody if kind != "gather" or rank == root}

    def sent(source: int, rank: int) -> np.ndarray:
        return inputs[source][rank * count : (rank + 1) * count]

    if kind == "scatter":
        return {rank: sent(root, rank) for rank in everybody}
    return {rank: np.concatenate([sent(source, rank) for source in everybody]) for rank in everybody}


def lengths_in(kind: str, count: int, counts: list[int], ranks: int, root: int) -> list[int]:
    """Count the elements of every rank's input tensor."""
    if kind == "allgatherv":
        return counts
    if kind == "scatter":
        return [ranks * count if rank == root else 0 for rank in range(ranks)]
    return [count * (ranks if kind == "alltoall" else 1)] * ranks


def run_in_pieces(
    kind: str, dtype: str, inputs: Arrays, expected: dict[int, np.ndarray], capacity: int, root: int, counts: list[int]
) -> dict[int, np.ndarray]:
    """Run the call through buffers of `capacity` bytes, piece by piece; no move may leave a buffer or a tensor."""
    ranks = len(inputs)
    count = sum(counts) if kind == "allgatherv" else len(inputs[0])
    count = len(inputs[root]) // ranks if kind in ("scatter", "alltoall") else count
    cut = [collective.call_pieces(kind, dtype, count, ranks, rank, capacity, root, counts) for rank in range(ranks)]
    assert len({len(pieces) for pieces in cut}) == 1
    outputs = {rank: np.zeros_like(values).view(np.uint8) for rank, values in expected.items()}
    written = {rank: np.zeros(len(values), bool) for rank, values in outputs.items()}
    for index in range(len(cut[0])):
        pieces = [of_rank[index] for of_rank in cut]
        assert len({(piece[0], tuple(piece[1])) for piece in pieces if kind != "allgatherv"}) <= 1
        buffers = [np.full(capacity, 255, np.uint8) for _ in range(ranks)]
        for piece, buffer, values in zip(pieces, buffers, inputs, strict=True):
            for tensor, at, size in piece[2]:
                assert at + size <= capacity
                assert tensor + size <= values.nbytes
                buffer[at : at + size] = values.view(np.uint8)[tensor : tensor + size]
        whole = capacity // np.dtype(dtype).itemsize * np.dtype(dtype).itemsize
        results = perform(kind, [buffer[:whole].view(dtype) for buffer in buffers], pieces[0][1], pieces[0][0], root)
        for rank, result in results.items():
            source = np.ascontiguousarray(result).view(np.uint8)
            assert len(source) <= capacity
            for tensor, at, size in pieces[rank][3]:
                assert at + size <= len(source)
                assert tensor + size <= len(outputs[rank])
                assert not written[rank][tensor : tensor + size].any()
                written[rank][tensor : tensor + size] = True
                outputs[rank][tensor : tensor + size] = source[at : at + size]
        for rank in set(range(ranks)) - set(results):
            assert pieces[rank][3] == []
    assert all(done.all() for done in written.values())
    return {rank: values.view(dtype) for rank, values in outputs.items()}


@given(data=st.data(), kind=st.sampled_from(KINDS), dtype=st.sampled_from(DTYPES), ranks=st.integers(1, 6))
def test_pieces_together_are_the_whole_call(data: st.DataObject, kind: str, dtype: str, ranks: int) -> None:
    count = data.draw(st.integers(0, 200), "count")
    root = data.draw(st.integers(0, ranks - 1), "root")
    counts = data.draw(st.lists(st.integers(0, 60), min_size=ranks, max_size=ranks), "counts")
    counts = counts if kind == "allgatherv" else []
    least = np.dtype(dtype).itemsize * (1 if kind in IN_PLACE else ranks)
    capacity = data.draw(st.one_of(st.just(least), st.integers(least, 8 * 200 * ranks + least)), "capacity")
    values = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1), "seed"))
    inputs = [values.integers(0, 5, length).astype(dtype) for length in lengths_in(kind, count, counts, ranks, root)]
    expected = perform(kind, inputs, counts, count, root)
    found = run_in_pieces(kind, dtype, inputs, expected, capacity, root, counts)
    assert found.keys() == expected.keys()
    for rank, result in expected.items():
        np.testing.assert_array_equal(found[rank], result)


@pytest.mark.parametrize("kind", KINDS)
def test_what_fits_is_one_piece_of_one_move_each_way(kind: str) -> None:
    counts = [7, 0, 20] if kind == "allgatherv" else []
    (piece,) = collective.call_pieces(kind, "float32", 27, 3, 0, 4096, 0, counts)
    assert len(piece[2]) == 1
    assert len(piece[3]) == (0 if kind == "broadcast" else 1)


@pytest.mark.parametrize("kind", KINDS)
def test_where_there_is_room_blocks_begin_at_cache_lines(kind: str) -> None:
    counts = [500, 400, 300] if kind == "allgatherv" else []
    first, *_ = collective.call_pieces(kind, "float32", 1200, 3, 0, 1000, 0, counts)
    assert all(at % 64 == 0 for moves in (first[2], first[3]) for _, at, _ in moves)
    assert sum(size for _, _, size in first[2] or first[3]) > 1000 / 3 - 64


def test_a_buffer_without_room_for_every_rank_is_a_bug() -> None:
    with pytest.raises(InternalError, match="has no room for an element of 4 ranks"):
        collective.call_pieces("allgather", "float64", 8, 4, 0, 31)
