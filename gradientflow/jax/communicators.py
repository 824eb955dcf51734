"""Communicators of calls: the default communicator, and a close that waits for programs."""

from __future__ import annotations

from contextlib import suppress

import jax

from gradientflow._location import core
from gradientflow.communicator import Communicator
from gradientflow.job import init

_default: Communicator | None = None


def communicator_of(comm: Communicator | None) -> Communicator:
    """Return `comm`, or the program's default communicator of all ranks, made when first needed. Collective."""
    global _default  # one for the whole program
    if comm is not None:
        return comm
    if _default is None or _default.closed:
        _default = init()
    return _default


def wait_for_programs() -> None:
    """Wait until all started programs whose results may still be used have ended."""
    with suppress(Exception):  # errors are reported to the users of the results
        jax.effects_barrier()
    for array in jax.live_arrays():
        with suppress(Exception):
            array.block_until_ready()


def close_after_programs(comm: Communicator) -> None:
    """Make a communicator wait for programs before it closes: JAX does not wait for the programs' calls."""
    comm._waits.add(wait_for_programs)


def number_of(comm: Communicator) -> int:
    """Return a communicator's number for programs. The communicator waits for programs before it closes."""
    close_after_programs(comm)
    return int(core.jax.number_of(comm._native))


__all__ = ["close_after_programs", "communicator_of", "number_of", "wait_for_programs"]
