"""Synchronizers with which training survives lost ranks, and admits joining ranks."""

from __future__ import annotations

from typing import Literal, get_args

from gradientflow.communicator import Communicator
from gradientflow.plain import Plain
from gradientflow.strategies.contract import Synchronizer, require_one_of

from .arrays import ArraySynchronizer

Meeting = Literal["steps", "rounds", "servers", "end"]


class Survivable(Synchronizer):
    """A synchronizer whose survivors can continue when ranks are lost.

    Survivors bind the strategy again, on a communicator of their own, and `take_over` the state of this synchronizer,
    whose iteration under way is lost. A rank on which `wait` has failed first calls `commit` if another rank reports
    that it has finished this iteration.

    Where ranks train on weights of their own, ranks may be in different iterations, but all take part in the same
    `exchanges`, in the same order. A rank on which fewer exchanges have ended calls `catch_up`. An `after_step` or
    `finish` that a loss has interrupted is then called again, and completes the rest of its work.

    Attributes
    ----------
    exchanges : int
        Exchanges that have ended on this rank. Counted only where ranks train on weights of their own, since an
        iteration then has any number of exchanges.
    meets_in : {"steps", "rounds", "servers", "end"}
        Place of exchanges: steps that all ranks make together; rounds in the background; servers; or `finish` only.
        With the last three each rank makes steps at its own pace, and a step has no call of all ranks. Processes are
        then admitted as if a rank had been lost, or not at all with "end". With "servers" `finish` is the first call of
        all ranks.
    """

    exchanges: int = 0
    meets_in: Meeting = "steps"

    @property
    def in_step(self) -> bool:
        """True if each iteration is an exchange of all ranks, with one result."""
        return self.strategy.gradients == "mean"

    def check_complete(self) -> None:
        """Raise unless `meets_in`, too, has an allowed value."""
        super().check_complete()
        require_one_of(self, "meets_in", get_args(Meeting))

    def check_survival(self) -> None:
        """Raise unless survivors could continue after a loss; prepare to survive one."""

    def agree_on_state(self, comm: Communicator, begins: bool) -> int:
        """Agree with the survivors on the state that is left, before `take_over`. Collective over `comm`.

        `begins` is True on a rank that begins, such as a joining rank. Returns the number of iterations that have ended
        here and are undone.
        """
        return 0

    def commit(self) -> None:
        """Commit the iteration whose `wait` has failed: other ranks applied it, this rank's gradients included."""

    def shared_state(self, with_arrays: bool) -> object:
        """Return the state that is equal on all ranks with the same number of `exchanges`.

        It is a plain value: None, numbers, text, arrays of NumPy, and lists, tuples and dicts of these. Arrays stay as
        they are until the next exchange. A state without arrays is for a beginning rank that already has the arrays.
        """

    def catch_up(self, state: Plain, begins: bool) -> None:
        """Take the `shared_state` of a rank on which more `exchanges` have ended: all of it on a rank that begins.

        Unless this rank begins, the state includes the data that this rank has sent.
        """


class SurvivableArrays(ArraySynchronizer, Survivable):
    """The base of survivable strategies with NumPy arrays."""

    def commit(self) -> None:
        """Keep the state of the iteration that failed: other ranks have ended it, so it failed in its last call."""
        self._start_next_iteration()


__all__ = ["Survivable", "SurvivableArrays"]
