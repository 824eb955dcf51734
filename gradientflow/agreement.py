"""Checks that all ranks agree, and errors that all ranks raise."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TypeVar

import numpy as np

from .communicator import Communicator
from .errors import ArgumentError, GradientFlowError, MismatchError

Kinds = Mapping[str, Mapping[str, str]]  # descriptions by name, by the plural noun for them

_Made = TypeVar("_Made")


def require_same(comm: Communicator, what: str, entries: Mapping[str, str]) -> None:
    """Check that named entries are equal on all ranks. Collective.

    Parameters
    ----------
    comm : Communicator
        The ranks to compare.
    what : str
        Plural noun for the entries, used in the error message.
    entries : mapping of str to str
        Descriptions by name; their order counts.

    Raises
    ------
    gradientflow.errors.MismatchError
        On every rank, if any two differ; names the first rank that differs from rank 0, and the first difference.
    """
    require_same_kinds(comm, {what: entries})


def require_same_kinds(comm: Communicator, kinds: Kinds) -> None:
    """Check that named entries of several kinds are equal on all ranks, as `require_same` does. Collective."""
    text = _encoded(kinds)
    digests = comm.allgather(np.frombuffer(hashlib.sha256(text).digest(), np.uint8))
    if (digests == digests[0]).all():
        return
    texts = gather(comm, text)
    other = next(rank for rank, each in enumerate(texts) if each != texts[0])
    raise MismatchError(_difference(_decoded(texts[0]), _decoded(texts[other]), other))


def require_same_as_first(comm: Communicator, kinds: Kinds) -> None:
    """Compare named entries of several kinds with rank 0's; raise only on ranks that differ. Collective.

    Raises
    ------
    gradientflow.errors.MismatchError
        If this rank differs; names the first difference.
    """
    text = _encoded(kinds)
    first = gather(comm, text)[0]
    if text != first:
        raise MismatchError(_difference(_decoded(first), kinds, comm.rank))


def raise_together(comm: Communicator, error: Exception | None) -> None:
    """If any rank has an error, raise on all ranks: a rank's own error, or else the first failed rank's. Collective."""
    reason = str(error) if isinstance(error, GradientFlowError) else f"{type(error).__name__}: {error}"
    texts = gather(comm, reason.encode() if error is not None else b"")
    if error is not None:
        raise error
    for rank, text in enumerate(texts):
        if text:
            raise ArgumentError(f"rank {rank}: {text.decode()}")


@contextmanager
def failing_together(comm: Communicator) -> Iterator[None]:
    """Raise on all ranks, as `raise_together` does, if the ``with`` block fails on any rank. Collective."""
    error: GradientFlowError | None = None
    try:
        yield
    except GradientFlowError as caught:
        error = caught
    raise_together(comm, error)


def on_rank_0(comm: Communicator, what: str, work: Callable[[], _Made]) -> _Made | None:
    """Call `work` on rank 0; return its result there, None elsewhere. Collective.

    Raises
    ------
    gradientflow.errors.ArgumentError
        On every rank, if the work fails; the message begins with `what`.
    """
    made: _Made | None = None
    failure: ArgumentError | None = None
    if comm.rank == 0:
        try:
            made = work()
        except Exception as error:
            failure = ArgumentError(f"{what}: {str(error) or type(error).__name__}")
    raise_together(comm, failure)
    return made


def gather(comm: Communicator, text: bytes) -> list[bytes]:
    """Return the texts of all ranks. Collective."""
    lengths = comm.allgather(np.array([len(text)])).ravel()
    joined = comm.allgatherv(np.frombuffer(text, np.uint8), lengths.tolist())
    return [part.tobytes() for part in np.split(joined, np.cumsum(lengths)[:-1])]


def _encoded(kinds: Kinds) -> bytes:
    return json.dumps([(what, list(entries.items())) for what, entries in kinds.items()]).encode()


def _decoded(text: bytes) -> Kinds:
    return {what: dict(entries) for what, entries in json.loads(text)}


def _difference(first: Kinds, second: Kinds, other: int) -> str:
    """Describe the first difference between rank `other` and rank 0."""
    what = next((what for what in first if _items(first, what) != _items(second, what)), "kinds of entries")
    return f"the ranks have different {what}: {_difference_of(first.get(what, {}), second.get(what, {}), other)}"


def _items(kinds: Kinds, what: str) -> list[tuple[str, str]]:
    return list(kinds.get(what, {}).items())


def _difference_of(first: Mapping[str, str], second: Mapping[str, str], other: int) -> str:
    for name, entry in first.items():
        if name not in second:
            return f"rank {other} has no {name}, which rank 0 has"
        if second[name] != entry:
            return f"{name} is {second[name]} on rank {other} and {entry} on rank 0"
    for name in second:
        if name not in first:
            return f"rank {other} has {name}, which rank 0 has not"
    return f"those of rank {other} are in another order than those of rank 0"
