"""The communicator of calls that name none."""

from __future__ import annotations

from gradientflow._location import load_core
from gradientflow.communicator import Communicator
from gradientflow.job import init

_default: Communicator | None = None


def communicator_of(comm: Communicator | None) -> Communicator:
    """Return a communicator; without one, that of all ranks of the job, which the first such call makes. Collective."""
    global _default  # one for the whole program
    if comm is not None:
        return comm
    if _default is None or _default.closed:
        _default = init()
    return _default


def number_of(comm: Communicator) -> int:
    """Return the number that programs have for a communicator."""
    return int(load_core().jax.number_of(comm._native))


__all__ = ["communicator_of", "number_of"]
