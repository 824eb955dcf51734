"""Consolidated state, which is the same on all ranks and merged from their states."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from gradientflow.agreement import failing_together, gather
from gradientflow.communicator import Communicator
from gradientflow.errors import ArgumentError
from gradientflow.memory import numpy_dtype
from gradientflow.plain import Plain, Tagged, dump, load

Path = tuple[object, ...]  # keys and indices that lead to an array
Arrays = dict[Path, np.ndarray]


_ARRAY = "array"  # tag of an array's placeholder, which has shape and dtype


def consolidated(comm: Communicator, state: object, *, means: bool) -> Plain:
    """Return a state that is the same on all ranks. Collective.

    Values that are not arrays come from rank 0. Entries that rank 0 lacks, such as the momentum of a parameter that it
    did not train, come from the first rank that has them.

    Parameters
    ----------
    comm : Communicator
        Ranks that take part.
    state : plain value
        This rank's state.
    means : bool
        True: arrays of floats become means over the ranks, in which a missing array counts as zeros, and other arrays
        come from rank 0. False: arrays stay as they are, since they are the same on all ranks already.
    """
    arrays: Arrays = {}
    outline = _outline(state, (), arrays)
    with failing_together(comm):
        own = dump(outline, "the state")
    everyone = [load(each) for each in gather(comm, own)]
    return _filled(comm if means else None, _merged(everyone), (), arrays)


def of_any_rank(comm: Communicator, states: Sequence[object], saved_by: int) -> Plain:
    """Return a state that is the same on all ranks, merged from the states of other ranks. Collective.

    Arrays of floats are means over the ranks that saved them, as in `Synchronizer.consolidated_state_dict`; all other
    values come from the state that rank 0 saved.

    Parameters
    ----------
    comm : Communicator
        Ranks that take part.
    states : sequence
        The saved states on this rank. Each state is on one rank, and the first on rank 0 was saved by rank 0.
    saved_by : int
        Number of saved states, on all ranks together.

    Raises
    ------
    gradientflow.errors.ArgumentError
        On all ranks, if together they do not have `saved_by` states.
    """
    found = int(comm.allreduce(np.array([len(states)]), "sum")[0])
    if found != saved_by:
        raise ArgumentError(
            f"these are states of {found} of the {saved_by} ranks that saved them, and there are {comm.size} ranks: as "
            "many ranks load one each, and other numbers of ranks what consolidated_state_dict() gave, or what "
            "torch.distributed.checkpoint has read"
        )
    mine = _sum(states, comm.size / saved_by) if states else None
    return _without_rank(consolidated(comm, mine, means=True))


def _sum(states: Sequence[Plain], factor: float) -> Plain:
    """Return the sum of the arrays of floats in these states, times `factor`; other values are the first state's."""
    first = states[0]
    if isinstance(first, Mapping):
        keys = dict.fromkeys(key for each in states for key in each)
        return {key: _sum([each[key] for each in states if key in each], factor) for key in keys}
    if isinstance(first, list):
        return [_sum(each, factor) for each in zip(*states, strict=True)]
    if isinstance(first, np.ndarray) and first.dtype.kind not in "iub":
        return (sum(each.astype(np.float64) for each in states) * factor).astype(first.dtype)
    return first


def _without_rank(state: object) -> Plain:
    """Return a state of means, marked as the consolidated state of a single rank."""
    if isinstance(state, Mapping):
        rank = {"rank": None, "ranks": 1} if {"rank", "ranks"} <= set(state) else {}
        return {**{key: _without_rank(value) for key, value in state.items()}, **rank}
    return [_without_rank(each) for each in state] if isinstance(state, list) else state


def _outline(value: object, path: Path, arrays: Arrays) -> Plain:
    """Return the state with placeholders for arrays; the arrays go to `arrays`."""
    if isinstance(value, np.ndarray):
        arrays[path] = value
        return Tagged(_ARRAY, (value.shape, value.dtype.name))
    if isinstance(value, Mapping):
        return {key: _outline(each, (*path, key), arrays) for key, each in value.items()}
    if isinstance(value, list):
        return [_outline(each, (*path, index), arrays) for index, each in enumerate(value)]
    return value


def _merged(outlines: Sequence[object]) -> Plain:
    """Return the first rank's outline, with the dictionary entries that only other ranks have."""
    first = next((each for each in outlines if each is not None), None)
    if not isinstance(first, dict):
        return first
    those = [each for each in outlines if isinstance(each, dict)]
    keys = dict.fromkeys(key for each in those for key in each)
    return {key: _merged([each[key] for each in those if key in each]) for key in keys}


def _filled(comm: Communicator | None, outline: object, path: Path, arrays: Arrays) -> Plain:
    """Return the state with arrays for placeholders: means over the ranks, or without `comm` this rank's arrays."""
    if isinstance(outline, dict):
        return {key: _filled(comm, each, (*path, key), arrays) for key, each in outline.items()}
    if isinstance(outline, list):
        return [_filled(comm, each, (*path, index), arrays) for index, each in enumerate(outline)]
    if not (isinstance(outline, Tagged) and outline.tag == _ARRAY):
        return outline
    shape, dtype = outline.value
    mine = arrays.get(path)
    if mine is None or mine.shape != shape:
        mine = np.zeros(shape, numpy_dtype(dtype))
    if comm is None:
        return mine
    flat = mine.reshape(-1).copy()
    if flat.dtype.kind in "iub":
        comm.broadcast(flat)
    else:
        comm.allreduce(flat, "mean")
    return flat.reshape(shape)


__all__ = ["consolidated", "of_any_rank"]
