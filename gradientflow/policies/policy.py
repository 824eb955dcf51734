"""What a policy is: a description, which `start` turns into the thing that decides."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from gradientflow.arguments import sequence, whole
from gradientflow.description import Description


@dataclass(frozen=True)
class Answer:
    """What a policy answers to an event.

    Parameters
    ----------
    apply : sequence of sequences of int
        Rounds, one after the other: workers, in ascending order, whose oldest pushes that are not applied yet are
        applied now, together, as one mean.
    go_on : sequence of int
        Workers that may go on once that is done: once for each push.

    Raises
    ------
    gradientflow.errors.ArgumentTypeError
        If they are something else.
    """

    apply: Sequence[Sequence[int]] = field(default_factory=list)
    go_on: Sequence[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Make lists of both."""
        rounds = [_workers("a round of apply", each) for each in sequence("apply", self.apply, "rounds")]
        object.__setattr__(self, "apply", rounds)
        object.__setattr__(self, "go_on", _workers("go_on", self.go_on))


def _workers(name: str, value: Sequence[int]) -> list[int]:
    return [whole(f"a worker in {name}", worker) for worker in sequence(name, value, "workers")]


class RunningPolicy(Protocol):
    """What decides: it is told of events and answers them, and looks at nothing else, such as a clock.

    Workers are 0, 1, ..., all of which take part at first. Times are seconds, from any beginning, and do not descend.
    A worker may push again before it may go on, if it does not wait for that.
    """

    def pushed(self, worker: int, seconds: float) -> Answer:
        """Answer a push of this worker."""

    def departed(self, worker: int, seconds: float) -> Answer:
        """Answer that this worker has left. It pushes no more; what it has pushed is still to be applied."""


class Policy(Description, ABC):
    """Which pushes a parameter server applies together, and which workers may go on. Parameters, and nothing that runs.

    A subclass keeps each argument of its constructor in an attribute of the same name. From these come `settings`,
    the comparison between ranks, and the words in which a policy is named: ``ssp(staleness=3)``.

    Attributes
    ----------
    name : str
        In words; by default the name of the class.
    keeps_step : bool
        Whether workers may make their steps all at once, as with a barrier before each: none ever waits until another
        one is further than itself. Benchmarks have such a barrier only then.
    """

    keeps_step: bool = False

    @abstractmethod
    def start(self, workers: int) -> RunningPolicy:
        """Return what decides for so many workers, from the beginning.

        Parameters
        ----------
        workers : int
            1 or more.
        """


__all__ = ["Answer", "Policy", "RunningPolicy"]
