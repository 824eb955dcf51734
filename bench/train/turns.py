"""Turns of contestants: consecutive steps, on one rank and on all ranks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gradientflow.annotations import JsonObject

FORWARD, BACKWARD, UPDATE = range(3)

Times = NDArray[np.int64]  # nanoseconds, [step, part], in the order of the parts above


@dataclass(frozen=True)
class Turn:
    """Consecutive steps of one contestant, on one rank.

    Attributes
    ----------
    times : array
        The times of the parts of each timed step.
    bookkeeping : array
        Seconds of each timed step that this rank spent to select the data to send; NaN if all is sent.
    steps : int
        Number of all steps, including untimed ones.
    seconds : float
        The time of all steps.
    sent : int
        Bytes sent in the timed steps, by this rank's counter.
    reported : float or None
        Bytes that this rank sent in a timed step, counted by the library.
    waited : float or None
        Seconds of the timed steps beyond their random computing times; None without stragglers.
    sent_in_all : int or None
        Bytes that this rank sent in all steps, by its counter, or otherwise as reported by the library; None if
        unknown.
    """

    times: Times
    bookkeeping: NDArray[np.float64]
    steps: int
    seconds: float
    sent: int
    reported: float | None
    waited: float | None = None
    sent_in_all: int | None = None


@dataclass(frozen=True)
class JointTurn:
    """A turn on all ranks.

    Attributes
    ----------
    step, forward, backward : array
        Milliseconds of each timed step, and of its two passes, on the slowest rank.
    bookkeeping : array
        Milliseconds to select the data to send, on the slowest rank; NaN if all is sent.
    steps : int
        Number of all steps, including untimed ones.
    seconds : float
        The time of all steps.
    sent : float
        Bytes that a rank sent in a step.
    reported : float or None
        Bytes that a rank sent in a step, counted by the library.
    waited : float or None
        The share of time in which ranks did not compute; None without stragglers.
    iterations_per_second : float or None
        Iterations per second of all ranks together; None without stragglers.
    sent_in_all : float or None
        Bytes that a rank sent in all steps.
    """

    step: NDArray[np.float64]
    forward: NDArray[np.float64]
    backward: NDArray[np.float64]
    bookkeeping: NDArray[np.float64]
    steps: int
    seconds: float
    sent: float
    reported: float | None
    waited: float | None = None
    iterations_per_second: float | None = None
    sent_in_all: float | None = None

    def plain(self) -> dict[str, object]:
        """Give the turn as JSON data."""
        return {name: value.tolist() if isinstance(value, np.ndarray) else value for name, value in vars(self).items()}

    @classmethod
    def of(cls, plain: Mapping[str, object]) -> JointTurn:
        """Make a turn from the result of `plain`."""
        values: JsonObject = {
            name: np.array(value) if isinstance(value, list) else value for name, value in plain.items()
        }
        return cls(**values)


def join(turns: Sequence[Turn]) -> JointTurn:
    """Combine the turns of all ranks. If numbers of steps differ, use only the first steps that all ranks have made."""
    steps = min(len(turn.times) for turn in turns)
    times = np.stack([turn.times[:steps] for turn in turns])
    waited = [turn.waited for turn in turns if turn.waited is not None]
    computing = [float(turn.times.sum()) / 1e9 for turn in turns]
    reported = [turn.reported for turn in turns if turn.reported is not None]
    sent = [turn.sent_in_all for turn in turns if turn.sent_in_all is not None]
    return JointTurn(
        step=times.sum(axis=2).max(axis=0) / 1e6,
        forward=times[:, :, FORWARD].max(axis=0) / 1e6,
        backward=times[:, :, BACKWARD].max(axis=0) / 1e6,
        bookkeeping=np.stack([turn.bookkeeping[:steps] for turn in turns]).max(axis=0) * 1e3,
        steps=turns[0].steps,
        seconds=max(turn.seconds for turn in turns),
        sent=sum(turn.sent for turn in turns) / sum(len(turn.times) for turn in turns),
        reported=sum(reported) / len(reported) if reported else None,
        waited=sum(waited) / sum(computing) if waited else None,
        iterations_per_second=sum(len(turn.times) for turn in turns) / max(computing) if waited else None,
        sent_in_all=sum(sent) / len(sent) if len(sent) == len(turns) else None,
    )
