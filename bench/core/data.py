"""Test data with exact results that every rank can compute alone, and counts of wrong elements.

All values are integers, stored in the element type, and so small that every order of addition gives the same bits.
Every rank can produce the values of all ranks from a seed. So the reference needs no communication, and a comparison
needs no tolerance, except on a wire whose values share a scale: this wire rounds even small integers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

import numpy as np

# Imported here, not at the first measurement: Cython's code drops any exception while its modules load, even Ctrl-C's.
from numpy.random import SFC64, Generator

from gradientflow.wires import wires

from .case import Case
from .plan import PlanError

Values = np.ndarray

CHUNK = 1 << 18  # elements made and compared at a time: references of any size need a few MiB

_REDUCTIONS: dict[str, np.ufunc] = {
    "sum": np.add,
    "mean": np.add,
    "max": np.maximum,
    "min": np.minimum,
    "prod": np.multiply,
}


# Rounding to nearest: the largest relative error, and the largest error of subnormal values.
_ROUNDING = {
    "float32": (2.0**-24, 2.0**-150),
    "float16": (2.0**-11, 2.0**-25),
    "bfloat16": (2.0**-8, 2.0**-134),
    "float8_e4m3": (2.0**-5, 2.0**-136),  # relative to the largest value
}


class Source(Protocol):
    """The inputs of all ranks."""

    def values(self, rank: int, begin: int, end: int) -> Values:
        """Give elements ``[begin, end)`` of one rank's input."""
        ...


class RandomSource:
    """Random values that do not repeat, so that a misplaced piece of any length is noticed.

    Parameters
    ----------
    alphabet : array
        The values to draw from.
    seed : int
        The seed; each seed gives fresh values.
    """

    def __init__(self, alphabet: Values, seed: int) -> None:
        self._alphabet = alphabet
        self._seed = seed

    def values(self, rank: int, begin: int, end: int) -> Values:
        """Give elements ``[begin, end)`` of one rank's input."""
        parts = [
            self._chunk(rank, start // CHUNK)[max(begin - start, 0) : end - start]
            for start in range(begin - begin % CHUNK, end, CHUNK)
        ]
        return np.concatenate(parts) if len(parts) != 1 else parts[0]

    def _chunk(self, rank: int, number: int) -> Values:
        random = Generator(SFC64([self._seed, rank, number]))
        return self._alphabet.take(random.integers(0, len(self._alphabet), CHUNK, dtype=np.uint16))


class TiledSource:
    """The same block repeated, different for each rank: the input of timed calls.

    Parameters
    ----------
    blocks : list of array
        One block for each rank.
    """

    def __init__(self, blocks: list[Values]) -> None:
        self._blocks = blocks

    def values(self, rank: int, begin: int, end: int) -> Values:
        """Give elements ``[begin, end)`` of one rank's input."""
        block = self._blocks[rank]
        return np.resize(np.roll(block, -(begin % len(block))), end - begin)


def alphabet(case: Case) -> Values:
    """List the values to draw for a case: integers whose reduction over all ranks is exact in the element type.

    Parameters
    ----------
    case : Case
        The case; its element type, op, wires and number of ranks count.

    Returns
    -------
    array
        At most 4095 values. For a mean they are multiples of the number of ranks, so that the mean is an integer. The
        values on the wire, which are divided before they are sent, are integers, too. Partial results are exact on
        every wire.
    """
    dtype = np.dtype(case.dtype)
    unsigned = dtype.kind == "u"
    if case.op == "prod":
        largest = min(_largest(name) for name in (case.dtype, *case.wires))
        factors = [1, 2] if 2.0**case.ranks <= largest else [1]
        return np.array(factors if unsigned else [-value for value in factors] + factors, dtype)
    terms = case.ranks if case.op in ("sum", "mean") else 1
    step = case.ranks if case.op == "mean" else 1
    bounds = [(_exact(case.dtype) // (terms * step), case.dtype, "--dtype")]
    bounds += [(_exact(wire) // terms, wire, "--wire") for wire in case.wires if not shares_scale(wire)]
    bound, narrowest, option = min(bounds)
    if bound < 1:
        raise PlanError(f"a {case.op} over {case.ranks} ranks is not exact in {narrowest}: choose a wider {option}")
    bound = min(bound, 2047)
    return (np.arange(0 if unsigned else -bound, bound + 1) * step).astype(dtype)


def fill(target: Values, source: Source, rank: int) -> None:
    """Write one rank's input into an array."""
    for begin in range(0, len(target), CHUNK):
        end = min(begin + CHUNK, len(target))
        target[begin:end] = source.values(rank, begin, end)


def shares_scale(wire: str) -> bool:
    """Tell whether the values of a message share a scale."""
    return wire in wires() and wires()[wire].dtype is None


def count_wrong(case: Case, source: Source, results: list[Values], over: Sequence[str] = ()) -> list[int]:
    """Count the wrong and missing elements of each contestant's result, compared with this rank's exact reference.

    `over` has the wires of the contestants. If a wire's values share a scale, an element may be off by the rounding
    error.
    """
    wrong = [0] * len(results)
    rounded = {index: wire for index, wire in enumerate(over) if shares_scale(wire) and case.op != "prod"}
    largest = float(alphabet(case)[-1]) * (1 if case.op == "mean" else case.ranks) if rounded else 0.0
    for offset, expected in _reference(case, source):
        for contestant, result in enumerate(results):
            part = result[offset : offset + len(expected)]
            right = expected[: len(part)]
            wrong[contestant] += len(expected) - len(part)
            if wire := rounded.get(contestant):
                wrong[contestant] += count_beyond_rounding(part, right, np.asarray(largest), case.ranks, wire)
            else:
                wrong[contestant] += int(np.count_nonzero(part != right))
    return wrong


def count_beyond_rounding(means: np.ndarray, exact: np.ndarray, magnitudes: np.ndarray, ranks: int, dtype: str) -> int:
    """Count the elements that differ from the exact mean by more than the possible rounding error.

    Parameters
    ----------
    means : array
        The computed means.
    exact : array
        The exact means.
    magnitudes : array
        The means of the absolute values of the summands.
    ranks : int
        The number of ranks. Each value is rounded once or twice before it is added, and each sum once more.
    dtype : str
        The dtype of the rounding.

    Returns
    -------
    int
        The number of wrong elements.
    """
    relative, smallest = _ROUNDING[dtype]
    if shares_scale(dtype):
        magnitudes = magnitudes.max(initial=0)
    allowed = (ranks + 1) * (relative * magnitudes + smallest)
    right = np.abs(means - exact) <= 1.01 * allowed
    return int(np.count_nonzero(~right))


def _exact(dtype: str) -> int:
    """Give the number up to which a dtype represents all integers."""
    if dtype == "bfloat16":  # unknown to NumPy
        return 1 << 8
    return 1 << (np.finfo(dtype).nmant + 1) if np.dtype(dtype).kind == "f" else int(np.iinfo(dtype).max)


def _largest(dtype: str) -> float:
    """Give the number up to which a dtype represents all powers of two."""
    if shares_scale(dtype):
        return 2.0**17  # beside it, powers of two from 1 on
    if dtype == "bfloat16":
        return _largest("float32")
    return float(np.finfo(dtype).max) if np.dtype(dtype).kind == "f" else float(np.iinfo(dtype).max)


def _reference(case: Case, source: Source) -> Iterator[tuple[int, Values]]:
    """Make the right result in pieces, each with its offset in the result."""
    for segment in case.segments():
        start = segment.begin - segment.begin % CHUNK  # pieces are aligned to the source's chunks
        for piece in range(start, segment.end, CHUNK):
            begin, end = max(piece, segment.begin), min(piece + CHUNK, segment.end)
            yield segment.offset + begin - segment.begin, _expected(case, source, segment.source, begin, end)


def _expected(case: Case, source: Source, rank: int | None, begin: int, end: int) -> Values:
    if rank is not None:
        return source.values(rank, begin, end)
    total = source.values(0, begin, end)
    for other in range(1, case.ranks):
        _REDUCTIONS[case.op](total, source.values(other, begin, end), out=total)
    if case.op == "mean":
        total = (total // case.ranks).astype(total.dtype)  # exact: every value is a multiple of the number of ranks
    return total
