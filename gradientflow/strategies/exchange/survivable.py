"""Synchronizers with which training goes on after ranks were lost, and lets others join."""

from __future__ import annotations

from typing import Any, Literal, get_args

from gradientflow.communicator import Communicator
from gradientflow.strategies.contract import Synchronizer, require_one_of

from .arrays import ArraySynchronizer

Meeting = Literal["steps", "rounds", "servers", "end"]


class Survivable(Synchronizer):
    """A synchronizer that goes on with the ranks that are left.

    These bind the strategy again, on a communicator of their own, and `take_over` the state of this synchronizer, whose
    iteration under way is lost. Ranks on which `wait` has failed, and that hear from another that it has finished this
    iteration, `commit` it before.

    Where ranks train on weights of their own, they need not be in the same iteration, but all take part in the same
    `exchanges`, in the same order. Ranks on which fewer have ended `catch_up` with another. An `after_step` or `finish`
    that a loss has interrupted is then called again, and ends what is left of it.

    Attributes
    ----------
    exchanges : int
        How many have ended on this rank, where ranks train on weights of their own: each iteration has none then, or
        several.
    meets_in : {"steps", "rounds", "servers", "end"}
        Where exchanges happen: in steps that all ranks make together; in rounds in the background; at servers; or in
        `finish` only. Each rank makes its steps at its own pace in the last three cases: no call of all ranks comes in
        a step, and processes are let in as if a rank had been lost, or not at all with "end". With "servers" no call of
        all ranks comes before `finish` either.
    """

    exchanges: int = 0
    meets_in: Meeting = "steps"

    @property
    def in_step(self) -> bool:
        """Whether each iteration is an exchange of all ranks, with one result."""
        return self.strategy.gradients == "mean"

    def check_complete(self) -> None:
        """Raise unless `meets_in`, too, has one of its values."""
        super().check_complete()
        require_one_of(self, "meets_in", get_args(Meeting))

    def check_survival(self) -> None:
        """Raise unless the ranks that are left could go on in this case; get ready for it."""

    def agree_on_state(self, comm: Communicator, begins: bool) -> int:
        """Agree with the ranks that are left on what is left, before `take_over`. Collective over `comm`.

        `begins` is whether this rank has come later. Returns how many iterations that have ended here are undone.
        """
        return 0

    def commit(self) -> None:
        """Commit the iteration whose `wait` has failed: the other ranks applied it, this rank's gradients included."""

    def shared_state(self, with_arrays: bool) -> Any:
        """Return the state that equals on all ranks with the same number of `exchanges`.

        It is a plain value: None, numbers, text, arrays of NumPy, and lists, tuples and dicts of these. Arrays stay as
        they are until the next exchange. Without them it is for a rank that begins and has them.
        """

    def catch_up(self, state: Any, begins: bool) -> None:
        """Take the `shared_state` of a rank on which more `exchanges` have ended, or all of it on one that begins.

        Except on a rank that begins, what it has sent is in the results.
        """


class SurvivableArrays(ArraySynchronizer, Survivable):
    """The base of strategies with NumPy arrays for which that holds."""

    def commit(self) -> None:
        """Keep the state of the iteration that failed. Other ranks have ended it: it failed in its last call."""
        self._start_next_iteration()


__all__ = ["Survivable", "SurvivableArrays"]
