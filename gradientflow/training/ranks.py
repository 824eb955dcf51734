"""Ranks of a training that stay the same: if one is lost, the error is raised."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Protocol, TypeVar

from gradientflow.communicator import Communicator
from gradientflow.strategies import Synchronizer

from .iteration import Progress
from .membership import Membership

_Made = TypeVar("_Made")


class Loop(Protocol):
    """The part of `gradientflow.training.Loop` that ranks use."""

    synchronizer: Synchronizer
    progress: Progress

    def take_weights(self) -> None:
        """Take the weights for those to go on from."""

    def let_write(self, moment: Callable[[], object]) -> None:
        """Let the strategy write weights."""

    def abandon_unfinished(self) -> None:
        """Give up an iteration that has failed in a backward pass."""

    def learn_order(self) -> None:
        """Put the tensors in the order of backpropagation, if it becomes known now."""

    def bound_to_other_ranks(self) -> Synchronizer:
        """Return a synchronizer for the ranks that take part now."""

    def use(self, synchronizer: Synchronizer, previous: Synchronizer | None) -> None:
        """Drive a synchronizer, which takes the state of the previous one."""

    def restart(self) -> None:
        """Go on with other ranks, without the iteration under way."""


class FixedRanks:
    """The ranks of a training, and the moments at which a `Survival` does more than this class.

    Parameters
    ----------
    comm : Communicator
        Whose ranks take part.

    Attributes
    ----------
    may_change : bool
        Whether ranks may be lost, or come.
    comm : Communicator
        Whose ranks take part now.
    here : Communicator
        On which the loop is made: the same, or one of this rank alone that has not come to the other ranks yet.
    entries : mapping of str to str
        What has to be the same on all ranks, by name.
    changed : bool
        Whether ranks were lost, or have come, since the last iteration began: the same on all ranks between two.
    membership : Membership
        The ranks now.
    """

    may_change = False
    _not_surviving = nullcontext()

    def __init__(self, comm: Communicator) -> None:
        self.comm = self.here = comm
        self.entries: Mapping[str, str] = {}
        self.changed = False
        self.membership = Membership.of(comm)

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

    def ended(self, loop: Loop, *, applied: bool) -> None:
        """Note that an iteration has ended on this rank, with a result for a step or without."""

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


__all__ = ["FixedRanks"]
