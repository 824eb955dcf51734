"""Interface of policies: a `Policy` holds the settings; its `start` returns a `RunningPolicy`, which decides."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from gradientflow.arguments import checked_int, checked_list
from gradientflow.description import Description
from gradientflow.former_names import FormerName, takes_former_names


@takes_former_names(go_on="release")
@dataclass(frozen=True)
class Answer:
    """A policy's answer to an event.

    Parameters
    ----------
    apply : sequence of sequences of int
        Rounds to apply, in order. A round is a list of workers in ascending order: the mean of the oldest pending push
        of each of these workers is applied now.
    release : sequence of int
        Workers that may proceed after these rounds. A worker is listed once for each push.

    Raises
    ------
    gradientflow.errors.ArgumentTypeError
        If an argument has another type.
    """

    apply: Sequence[Sequence[int]] = field(default_factory=list)
    release: Sequence[int] = field(default_factory=list)
    go_on = FormerName("release")

    def __post_init__(self) -> None:
        """Check both arguments, and convert them to lists."""
        rounds = [_workers("a round of apply", each) for each in checked_list("apply", self.apply, "rounds")]
        object.__setattr__(self, "apply", rounds)
        object.__setattr__(self, "release", _workers("release", self.release))


def _workers(name: str, value: Sequence[int]) -> list[int]:
    return [checked_int(f"a worker in {name}", worker) for worker in checked_list(name, value, "workers")]


class RunningPolicy(Protocol):
    """A policy at work: its answers depend on nothing but the events, for example not on a clock.

    Workers are 0, 1, ...; all take part at first. Times are seconds from an arbitrary origin, and never decrease. A
    worker that does not wait for the answer may push again before it is told to proceed.
    """

    def pushed(self, worker: int, seconds: float) -> Answer:
        """Answer a push of this worker."""

    def departed(self, worker: int, seconds: float) -> Answer:
        """Answer the departure of this worker, which pushes no more. Its pending pushes must still be applied."""


class Policy(Description, ABC):
    """Description of a policy, which chooses the pushes to apply together and the workers that may proceed.

    A policy holds settings only. A subclass stores each argument of its constructor in an attribute of the same name.
    These attributes give `settings`, the comparison between ranks, and the policy's words, such as
    ``ssp(staleness=3)``.

    Attributes
    ----------
    name : str
        Name in these words; by default that of the class.
    keeps_step : bool
        True if the policy allows a barrier before each step, because no worker ever waits for another worker to get
        ahead of it. Benchmarks use such a barrier only if this is True.
    """

    keeps_step: bool = False

    @abstractmethod
    def start(self, workers: int) -> RunningPolicy:
        """Return a new running policy for this number of workers.

        Parameters
        ----------
        workers : int
            Number of workers, 1 or more.
        """


__all__ = ["Answer", "Policy", "RunningPolicy"]
