"""Ranks of a training that stay the same: if one is lost, the error is raised."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Protocol, TypeVar

from gradientflow.communicator import Communicator
from gradientflow.strategies import Synchronizer
from gradientflow.strategies.update import Phase

from .iteration import Progress
from .membership import Membership

_Made = TypeVar("_Made")


class Loop(Protocol):
    """The part of `gradientflow.training.Loop` that ranks use."""

    synchronizer: Synchronizer
    progress: Progress

    def take_weights(self) -> None: ...  # noqa: D102 (these are described there)
    def let_write(self, moment: Callable[[], object]) -> None: ...  # noqa: D102
    def abandon_unfinished(self) -> None: ...  # noqa: D102
    def learn_order(self) -> None: ...  # noqa: D102
    def bound_to_other_ranks(self) -> Synchronizer: ...  # noqa: D102
    def use(self, synchronizer: Synchronizer, previous: Synchronizer | None) -> None: ...  # noqa: D102
    def restart(self) -> None: ...  # noqa: D102


class OverRanks:
    """The members of `ArrayLoop` and of PyTorch's `DistributedOptimizer` that tell of ranks that are lost, or come."""

    _ranks: FixedRanks

    def _loop_now(self) -> Loop:
        """Return the loop that there is now."""
        raise NotImplementedError

    def finish(self) -> None:
        """End training: complete communication under way, and leave the same weights on all ranks. Collective."""
        raise NotImplementedError

    @property
    def comm(self) -> Communicator:
        """The communicator of the ranks that take part now."""
        return self._ranks.comm

    def steps(self, total: int) -> Iterator[int]:
        """Return an iterator over the numbers of steps, 0, 1, ... up to below `total`, the same on all ranks.

        With ``on_failure="continue"`` a step whose gradients were lost with a rank is numbered again: take its data by
        its number, and by rank and size of `membership`, and none is left out. Collective then: it ends when all ranks
        have made all steps.

        Before a step, if there was an exchange since the last one, processes are let in that have called
        `gradientflow.join`; in the first call of `steps`.
        """
        yield from self._ranks.steps(self._loop_now, total, self.finish)

    @property
    def changed(self) -> bool:
        """Whether ranks were lost, or have come, since the last iteration began.

        Look at it where a step begins, before its first gradient: there it is the same on all ranks.
        """
        return self._ranks.changed

    @property
    def membership(self) -> Membership:
        """The ranks now, those that were lost or have come last, and whether gradients were lost with them."""
        return self._ranks.membership


class FixedRanks:
    """The ranks of a training, and the moments at which a `Survival` does more than this class.

    Parameters
    ----------
    comm : Communicator
        Whose ranks take part.
    """

    may_change = False  # ranks may be lost, or come
    _not_surviving = nullcontext()

    def __init__(self, comm: Communicator) -> None:
        self.comm = comm  # of the ranks that take part now
        self.here = comm  # on which the loop is made: the same, or one of this rank alone until it comes to the others
        self.entries: Mapping[str, str] = {}  # what has to be the same on all ranks, by name
        self.membership = self._membership_before = Membership.of(comm)  # now, and when the last iteration began

    @property
    def changed(self) -> bool:
        """Whether ranks were lost, or have come, since the last iteration began: the same on all between two."""
        return self.membership is not self._membership_before

    def make(self, make: Callable[[Communicator], _Made]) -> _Made:
        """Return what a function makes of the communicator `here`. Collective."""
        return make(self.here)

    def check(self, synchronizer: Synchronizer) -> None:
        """Raise unless training with this synchronizer can go on after the losses that are survived."""

    def steps(self, loop: Callable[[], Loop], total: int, finish: Callable[[], object]) -> Iterator[int]:
        """Return an iterator over the numbers of steps of the loop that there is then; `finish` may come behind."""
        yield from range(total)

    # ---- moments of an iteration ---------------------------------------------------------------------------------

    def begin_pass(self, passes: int) -> None:
        """Note that a backward pass begins, after some others of the same iteration."""

    def defers(self, error: BaseException) -> bool:
        """Whether an error is left to the end of the iteration, where it is raised again and survived."""
        return False

    def surviving(self, loop: Loop, *, has_gradients: bool) -> AbstractContextManager[object]:
        """Return a context: ranks that are lost in the ``with`` block are survived.

        `has_gradients`: whether gradients of this rank are lost with the iteration.
        """
        return self._not_surviving

    def ended(self, loop: Loop, phase: Phase) -> None:
        """Note that an iteration has ended on this rank, AVERAGED if it has a result for a step."""

    def allow_step(self) -> None:
        """Wait until the optimizer's state may change."""

    def after_step(self, loop: Loop) -> None:
        """Let the strategy go on after a step."""
        loop.let_write(loop.synchronizer.after_step)

    def finish(self, loop: Loop, also: Callable[[], object]) -> None:
        """Let the strategy end training, then call `also`. Collective."""
        loop.take_weights()
        loop.let_write(loop.synchronizer.finish)
        also()

    def note_that_state_was_loaded(self) -> None:
        """Note that the state is another one than before."""

    def close(self, orderly: bool = True) -> None:
        """Close the communicators that were made here."""


__all__ = ["FixedRanks", "Loop", "OverRanks"]
