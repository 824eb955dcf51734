"""Exchanges of gradients of one layout: one for the first state, another for all other states in turn."""

from __future__ import annotations

from collections.abc import Callable
from threading import Lock
from weakref import WeakMethod

import numpy as np

from gradientflow._location import core
from gradientflow.agreement import require_same
from gradientflow.communicator import Communicator
from gradientflow.errors import MismatchError
from gradientflow.strategies import Layout, Strategy

from .exchange import GradientExchange, held_weakly
from .states import StateFormat


class LayoutExchanges:
    """Exchanges of gradients of one layout by a strategy; see kernels/jax/ffi/exchanges.hpp.

    Nothing is made before the first call, which all ranks make: a program may be traced on only one rank.

    Parameters
    ----------
    strategy : Strategy
        The strategy that averages gradients.
    layout : Layout
        Layout of the gradients.
    comm : callable
        Returns the communicator.
    place : int
        Number of the transformation in the program, in order of construction.

    Attributes
    ----------
    number : int
        Number by which programs find these exchanges.
    states : StateFormat
        The strategy's states for the layout.
    """

    def __init__(self, strategy: Strategy, layout: Layout, comm: Callable[[], Communicator], place: int) -> None:
        self.layout = layout
        self.states = StateFormat(strategy, layout)
        self._meeting = meeting = _Meeting(strategy, comm, place)
        self._first = GradientExchange(strategy, layout, self.states, meeting.part_of_first_state)
        self._others = GradientExchange(strategy, layout, self.states, meeting.part_of_other_states)
        self._native = core.jax.Exchanges(
            self._first.native, self._others.native, held_weakly(WeakMethod(meeting.order))
        )
        self.number: int = self._native.number


class _Meeting:
    """Maker of communicators on demand, the same on all ranks: calls of different states may come in any order."""

    def __init__(self, strategy: Strategy, comm: Callable[[], Communicator], place: int) -> None:
        self._strategy = strategy
        self._comm = comm
        self._place = place
        self._lock = Lock()  # XLA's threads may run two programs at once
        self._first: Communicator | None = None
        self._others: Communicator | None = None

    def part_of_first_state(self) -> Communicator:
        """Return the communicator for calls with the first state. Collective, by calls with any state."""
        with self._lock:
            if self._first is None:
                self._check_others()
                self._first = self._comm()._own_part(0)
            return self._first

    def part_of_other_states(self) -> Communicator:
        """Return the communicator for calls with all other states. Collective, by these calls."""
        self.part_of_first_state()
        if self._others is None:
            self._others = self._comm()._own_part(0)
        return self._others

    def order(self) -> tuple[core.Communicator, float]:
        """Return the communicator of `part_of_other_states` for the core, and its timeout."""
        part = self.part_of_other_states()
        return part._native, float(part.describe()["settings"]["timeout"])

    def _check_others(self) -> None:
        """Raise on all ranks unless every rank makes this first call with this strategy. Collective.

        Threads may have started in different orders.
        """
        comm = self._comm()
        places = comm.allgather(np.array([self._place])).ravel().tolist()
        if len(set(places)) > 1:
            raise MismatchError(
                f"the ranks call different transformations of gradientflow.jax.average for the first time, number "
                f"{', '.join(map(str, places))} of those that each has made: make them in the same order on all ranks, "
                "and their first calls, too"
            )
        require_same(comm, "strategies", {"strategy": repr(self._strategy)})


__all__ = ["LayoutExchanges"]
