"""Who takes part in which step of a training whose ranks die and come, as one of its ranks knows it."""

from __future__ import annotations

from typing import Any

from gradientflow import Communicator
from gradientflow.training import Membership


class Roll:
    """The ranks by names that last: their first ranks, or for those that came later the step and their rank then.

    Parameters
    ----------
    training : ArrayLoop or DistributedOptimizer
        What this rank trains with.
    comm : Communicator
        On which it begins. A process that comes later knows those before it by their ranks only.
    """

    def __init__(self, training: Any, comm: Communicator) -> None:
        self.took_part: dict[int, list[str]] = {}
        self.changes: list[int] = []
        self._members = [str(rank) for rank in range(comm.size)] if comm.recovered_from is None else []
        self._training = training

    @property
    def name(self) -> str:
        """The name of this rank."""
        rank: int = self._training.membership.rank
        return self._follow(-1)[rank]

    def begin(self, step: int) -> Membership:
        """Note that a step begins; return who takes part."""
        self._members = self._follow(step)
        if self._training.changed:
            self.changes.append(step)
        now: Membership = self._training.membership
        return now

    def end(self, step: int) -> None:
        """Note that a step has ended."""
        if not self._training.membership.dropped:
            self.took_part[step] = self._members

    def _follow(self, step: int) -> list[str]:
        """Return who takes part in a step, after all changes since the last one has begun."""
        if not self._training.changed:
            return self._members
        now: Membership = self._training.membership
        before = self._members or [f"?{rank}" for rank in range(len(now.ranks) + len(now.left))]
        return [before[rank] for rank in now.ranks] + [f"{step}:{rank}" for rank in now.joined]


__all__ = ["Roll"]
