"""Ranks of a training that stay the same: if one is lost, the error is raised."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol, TypeVar

from gradientflow.agreement import Kinds
from gradientflow.communicator import Communicator
from gradientflow.errors import RecoverableError
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
    """The members of `ArrayLoop` and of PyTorch's `DistributedOptimizer` for ranks that are lost or join."""

    _ranks: FixedRanks

    def _loop_now(self) -> Loop:
        """Return the current loop."""
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

        With ``on_failure="continue"`` the number of a step whose gradients were lost with a rank comes again. Choose
        data by this number, and by rank and size of `membership`: then no data is left out. Iteration is collective
        then, and ends when all ranks have made all steps.

        The first call of `steps` also admits processes that have called `gradientflow.join`: before each step that
        follows an exchange.
        """
        yield from self._ranks.steps(self._loop_now, total, self.finish)

    @property
    def changed(self) -> bool:
        """True if ranks were lost, or have joined, since the last iteration began.

        Read it where a step begins, before the first gradient: at this point it is the same on all ranks.
        """
        return self._ranks.changed

    @property
    def membership(self) -> Membership:
        """The ranks now, their last losses and joins, and whether gradients were lost with them."""
        return self._ranks.membership


class FixedRanks:
    """The ranks of a training, and the moments at which the subclass `Survival` acts.

    Parameters
    ----------
    comm : Communicator
        Ranks that take part.
    """

    may_change = False  # ranks may be lost, or join

    def __init__(self, comm: Communicator) -> None:
        self.comm = comm  # communicator of the ranks that take part now
        self.here = comm  # communicator of the loop: `comm`, or this rank's own until it takes part
        self.entries: Kinds = {}  # values that must be the same on all ranks
        self.membership = self._membership_before = Membership.of(comm)  # ranks now, and when the last iteration began
        self._steps = 0  # iterations that have ended

    @property
    def changed(self) -> bool:
        """True if ranks were lost, or joined, since the last iteration began. Equal on all ranks between iterations."""
        return self.membership is not self._membership_before

    def make(self, make: Callable[[Communicator], _Made]) -> _Made:
        """Return the result of a function of the communicator `here`. Collective."""
        return make(self.here)

    def check(self, synchronizer: Synchronizer) -> None:
        """Raise if training has to survive the loss of a rank, and this synchronizer cannot continue after a loss."""

    def steps(self, loop: Callable[[], Loop], total: int, finish: Callable[[], object]) -> Iterator[int]:
        """Return an iterator over the numbers of steps; `loop` returns the current loop, `finish` may come last."""
        yield from range(total)

    # ---- moments of an iteration ---------------------------------------------------------------------------------

    def begin_pass(self, passes: int) -> None:
        """Note that a backward pass begins; `passes` is the number of earlier passes of the same iteration."""

    def defers(self, error: BaseException) -> bool:
        """Return True if an error may be dropped here: `Synchronizer.wait` raises it again, in a `surviving` block."""
        self._name_step(error)
        return False

    @contextmanager
    def surviving(self, loop: Loop, *, has_gradients: bool) -> Iterator[None]:
        """Survive the loss of ranks in a ``with`` block; here its error is raised, with the number of the step.

        `has_gradients`: True if gradients of this rank are lost with the iteration.
        """
        try:
            yield
        except RecoverableError as error:
            self._name_step(error)
            raise

    def _name_step(self, error: BaseException) -> None:
        """Begin the message of a lost rank's error with this rank's step: another rank may have made fewer."""
        if isinstance(error, RecoverableError):
            error.args = (f"in step {self._steps + 1} of rank {self.comm.rank}, {error}",)

    def ended(self, loop: Loop, phase: Phase) -> None:
        """Note that an iteration has ended on this rank, AVERAGED if it has a result for a step."""
        self._steps += 1

    def allow_step(self) -> None:
        """Wait until the optimizer's state may change."""

    def after_step(self, loop: Loop) -> None:
        """Let the strategy act after a step."""
        loop.let_write(loop.synchronizer.after_step)

    def finish(self, loop: Loop, also: Callable[[], object]) -> None:
        """Let the strategy end training, then call `also`. Collective."""
        loop.take_weights()
        loop.let_write(loop.synchronizer.finish)
        also()

    def note_that_state_was_loaded(self) -> None:
        """Note that another state was loaded."""

    def close(self, orderly: bool = True) -> None:
        """Close the communicators that were made here."""


__all__ = ["FixedRanks", "Loop", "OverRanks"]
