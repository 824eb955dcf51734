"""The writer of this process: once a second it writes the metrics of all sources to all places."""

from __future__ import annotations

import atexit
import logging
import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from gradientflow.agreement import failing_together
from gradientflow.blocked_signals import signals_blocked
from gradientflow.communicator import Communicator
from gradientflow.errors import ArgumentError

from .jsonl import JsonLines
from .prometheus import Prometheus, own_folder, shared_folder
from .registry import Source, Values, sources
from .tensorboard import TensorBoard

PROMETHEUS, TENSORBOARD = "prometheus:", "tensorboard:"  # beginnings of places

_PAUSE = 1.0  # seconds between two writes

logger = logging.getLogger("gradientflow")


class Place(Protocol):
    """A place to which metrics are written."""

    def write(self, source: Source, values: Values) -> None:
        """Write the metrics of a source, which have changed since the last call."""

    def close(self) -> None:
        """Write everything that is still in memory."""


class Writer:
    """A thread that writes metrics to places."""

    def __init__(self, places: Sequence[Place]) -> None:
        self._places = list(places)
        self._written: dict[str, Values] = {}
        self._lock = threading.Lock()
        self._ends = threading.Event()
        self._process = os.getpid()
        with signals_blocked():
            threading.Thread(target=self._run, name="gradientflow metrics", daemon=True).start()
        atexit.register(self.close)

    @property
    def is_of_this_process(self) -> bool:
        """False in a fork, which has no thread."""
        return self._process == os.getpid()

    def _run(self) -> None:
        while not self._ends.wait(_PAUSE):
            self.write(sources())

    def write(self, found: Sequence[Source]) -> None:
        """Write the metrics of these sources, as far as they have changed."""
        with self._lock:
            for source in found:
                values = source.metrics()
                if repr(values) != repr(self._written.get(source.name)):  # NaN equals itself there
                    self._written[source.name] = values
                    self._places = [place for place in self._places if _has_written(place, source, values)]

    def close(self) -> None:
        """Write once more, and end. A second call is harmless."""
        if self._ends.is_set() or not self.is_of_this_process:
            return
        self._ends.set()
        self.write(sources())
        with self._lock:
            for place in self._places:
                place.close()


def _has_written(place: Place, source: Source, values: Values) -> bool:
    """Write metrics to a place. Return False after an error: training continues without this place."""
    try:
        place.write(source, values)
    except Exception as error:
        logger.warning("metrics are no longer written to %s: %s", place, error)
        return False
    return True


_writers: dict[str, Writer] = {}  # by the setting


def writer_of(setting: str, rank: int, here: Communicator | None) -> Writer:
    """Return the writer of this process for a value of GRADIENTFLOW_METRICS; see `gradientflow.metrics.watch.watch`.

    The ranks of `here` make this call together; with None, a place that cannot be made is left out, with a warning.
    """
    known = _writers.get(setting)
    if known is not None and known.is_of_this_process:
        return known
    names = setting.split(",")
    needs_folder = any(name.startswith(PROMETHEUS) for name in names)
    places: list[Place] = []
    if here is None:
        folder, serves = own_folder(), True
        for name in names:
            with _warning():
                places.append(_place(name, rank, folder, serves))
    else:
        folder, serves = shared_folder(here) if needs_folder else (Path(), False)
        try:
            with failing_together(here):
                places.extend(_place(name, rank, folder, serves) for name in names)  # one by one
        except BaseException:
            for place in places:
                place.close()
            raise
    _writers[setting] = Writer(places)
    return _writers[setting]


def _place(name: str, rank: int, folder: Path, serves: bool) -> Place:
    if name.startswith(PROMETHEUS):
        return Prometheus(name, rank, folder, serves)
    if name.startswith(TENSORBOARD):
        return TensorBoard(name.removeprefix(TENSORBOARD), rank)
    return JsonLines(name, rank)


@contextmanager
def _warning() -> Iterator[None]:
    """Log an error of a ``with`` block."""
    try:
        yield
    except ArgumentError as error:
        logger.warning("metrics are not written: %s", error)


__all__ = ["Place", "Writer", "writer_of"]
