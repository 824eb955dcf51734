"""The communicators of calls: that of calls which name none, and how all of them end."""

from __future__ import annotations

from contextlib import suppress

import jax

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


def wait_for_programs() -> None:
    """Let the programs end that have been started, as far as anybody may still ask for their results."""
    with suppress(Exception):  # what fails is told to those who ask
        jax.effects_barrier()  # type: ignore[no-untyped-call]
    for array in jax.live_arrays():  # type: ignore[no-untyped-call]
        with suppress(Exception):
            array.block_until_ready()


def close_after_programs(comm: Communicator) -> None:
    """Let a communicator wait for programs before it closes: JAX starts them, and goes on before they have called."""
    comm._waits.add(wait_for_programs)


def number_of(comm: Communicator) -> int:
    """Return the number that programs have for a communicator, which waits for them before it closes."""
    close_after_programs(comm)
    return int(load_core().jax.number_of(comm._native))


__all__ = ["close_after_programs", "communicator_of", "number_of", "wait_for_programs"]
