"""Sources under watch: listed in the registry, and written to the places in GRADIENTFLOW_METRICS."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from typing import TYPE_CHECKING

from gradientflow.communicator import Communicator
from gradientflow.errors import GradientFlowError

from .registry import Source, Values, register, source_of, unregister

if TYPE_CHECKING:
    from .writer import Writer


class Watched:
    """A source under watch, by its key in the registry, until `end`."""

    def __init__(self, key: int, writer: Writer | None) -> None:
        self._key = key
        self._writer = writer

    def end(self, renew: Callable[[], object] | None = None) -> None:
        """Write the last metrics, and remove the source. A second call is harmless.

        `renew` is called before, if metrics are written: it renews those that take a pass over memory.
        """
        source: Source | None = source_of(self._key)
        try:
            if source is not None and self._writer is not None:
                if renew is not None:
                    with suppress(GradientFlowError):  # within an iteration, or on a broken communicator
                        renew()
                self._writer.write([source])
        finally:
            unregister(self._key)


def watch(
    kind: str,
    name: str,
    comm: Communicator,
    metrics: Callable[[], Values],
    here: Communicator | None,
    rank: int | None = None,
) -> Watched:
    """List a source of metrics, and write them if the settings of `comm` say so.

    Parameters
    ----------
    kind, name, metrics
        As in `Source`; `metrics` is a method, which is held weakly.
    comm : Communicator
        Ranks of the source.
    here : Communicator or None
        `comm` if all ranks of it make this call together. Otherwise nothing is communicated, and a place that cannot
        be written is left out, with a warning.
    rank : int, optional
        Rank of this process in the job; the communicator's by default.

    Raises
    ------
    gradientflow.errors.ArgumentError
        On every rank, if metrics cannot be written there, or a package for it is missing.
    """
    places = comm.describe()["settings"]["metrics"]
    writer, rank = None, comm._native.job_rank if rank is None else rank
    if places != "off":
        writer = import_module(".writer", __package__).writer_of(places, rank, here if here is comm else None)
        metrics()  # from now on the source keeps what takes time
    return Watched(register(kind, name, rank, metrics), writer)


__all__ = ["Watched", "watch"]
