"""The live sources of metrics in this process."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from threading import Lock
from typing import NamedTuple
from weakref import WeakMethod

Values = dict[str, float]


class Source(NamedTuple):
    """A live source of metrics.

    Attributes
    ----------
    kind : {"training", "server", "process_group", "jax"}
        Kind of the source.
    name : str
        Name that no other source of the process has.
    rank : int
        Rank of this process in the job, also of a source of some ranks only.
    metrics : callable
        Returns its metrics by name. Callable from any thread, cheap, and without communication: it reads no gradients,
        so norms are those of the last step after an earlier call.
    """

    kind: str
    name: str
    rank: int
    metrics: Callable[[], Values]


_lock = Lock()
_numbers = itertools.count()
_sources: dict[int, tuple[str, str, int, WeakMethod[Callable[[], Values]]]] = {}


def register(kind: str, name: str, rank: int, metrics: Callable[[], Values]) -> int:
    """Add a source, whose `metrics` is a method that is held weakly. Return its key for `unregister`."""
    with _lock:
        key = next(_numbers)
        taken = {each[1] for each in _sources.values()}
        number = next(n for n in itertools.count(1) if (name if n == 1 else f"{name} {n}") not in taken)
        _sources[key] = kind, name if number == 1 else f"{name} {number}", rank, WeakMethod(metrics)
    return key


def unregister(key: int) -> None:
    """Remove a source. A second call is harmless."""
    with _lock:
        _sources.pop(key, None)


def source_of(key: int) -> Source | None:
    """Return the source with this key, if it is alive."""
    with _lock:
        if key not in _sources:
            return None
        kind, name, rank, metrics = _sources[key]
        method = metrics()
    return None if method is None else Source(kind, name, rank, method)


def sources() -> list[Source]:
    """Return the live sources of this process, in the order in which they were made."""
    with _lock:
        keys = list(_sources)
    found = {key: source_of(key) for key in keys}
    for key, source in found.items():
        if source is None:
            unregister(key)
    return [source for source in found.values() if source is not None]


__all__ = ["Source", "Values", "register", "source_of", "sources", "unregister"]
