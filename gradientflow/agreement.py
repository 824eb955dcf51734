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
    text = json.dumps(list(entries.items())).encode()
    digests = comm.allgather(np.frombuffer(hashlib.sha256(text).digest(), np.uint8))
    if (digests == digests[0]).all():
        return
    texts = gather(comm, text)
    other = next(rank for rank, each in enumerate(texts) if each != texts[0])
    difference = _difference(dict(json.loads(texts[0])), dict(json.loads(texts[other])), other)
    raise MismatchError(f"the ranks have different {what}: {difference}")


def require_same_as_first(comm: Communicator, what: str, entries: Mapping[str, str]) -> None:
    """Compare named entries with rank 0's; raise only on ranks that differ. Collective.

    Raises
    ------
    gradientflow.errors.MismatchError
        If this rank differs; names the first difference.
    """
    text = json.dumps(list(entries.items())).encode()
    first = gather(comm, text)[0]
    if text != first:
        message = f"the ranks have different {what}: {_difference(dict(json.loads(first)), entries, comm.rank)}"
        raise MismatchError(message)


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


def _difference(first: Mapping[str, str], second: Mapping[str, str], other: int) -> str:
    """Describe the first difference between rank `other` and rank 0."""
    for name, entry in first.items():
        if name not in second:
            return f"rank {other} has no {name}, which rank 0 has"
        if second[name] != entry:
            return f"{name} is {second[name]} on rank {other} and {entry} on rank 0"
    for name in second:
        if name not in first:
            return f"rank {other} has {name}, which rank 0 has not"
    return f"those of rank {other} are in another order than those of rank 0"
