"""What is known of one contestant: its turns, the figures of its steps, and whether its gradients are right."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..core.plan import threshold_bytes
from .plan import Entry, Optimizer

FORWARD, BACKWARD, UPDATE = range(3)

Times = NDArray[np.int64]  # nanoseconds, [step, part]; the parts are those above


@dataclass(frozen=True)
class Turn:
    """Consecutive steps of one contestant, on one rank.

    Attributes
    ----------
    times : array
        What the parts of each timed step took.
    bookkeeping : array
        Seconds of each timed step in which this rank chose what is sent; NaN where all is.
    steps : int
        All steps, with those that were not timed.
    seconds : float
        What all steps took.
    sent : int
        Bytes that this rank counted in the timed steps.
    reported : float or None
        Bytes that the library says this rank sent in a timed step.
    waited : float or None
        Seconds that the timed steps took beyond what they were drawn to compute; None where nothing was drawn.
    sent_in_all : int or None
        Bytes that this rank sent in all steps, as counted, or else as reported; None where neither is known.
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
    """The same turn on all ranks.

    Attributes
    ----------
    step, forward, backward : array
        Milliseconds of each timed step, and of its two passes, on the rank that took longest.
    bookkeeping : array
        Milliseconds in which the rank that took longest chose what is sent; NaN where all is.
    steps : int
        All steps, with those that were not timed.
    seconds : float
        What all steps took.
    sent : float
        Bytes that a rank sent in a step.
    reported : float or None
        The same as the library says.
    waited : float or None
        The share of their time in which ranks did not compute; None where nothing was drawn.
    iterations_per_second : float or None
        Of all ranks together, there.
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

    def plain(self) -> dict[str, Any]:
        """Give it as what JSON can hold."""
        values = {item.name: getattr(self, item.name) for item in fields(self)}
        return {name: value.tolist() if isinstance(value, np.ndarray) else value for name, value in values.items()}

    @classmethod
    def of(cls, plain: Mapping[str, Any]) -> JointTurn:
        """Make one of what `plain` has given."""
        values: dict[str, Any] = {
            name: np.array(value) if isinstance(value, list) else value for name, value in plain.items()
        }
        return cls(**values)


def join(turns: Sequence[Turn]) -> JointTurn:
    """Put the turns of all ranks together: where they have made different numbers of steps, the first ones of each."""
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


@dataclass(frozen=True)
class Point:
    """What a model had learnt at one time, on what was held out.

    Attributes
    ----------
    step : int
        Steps made so far.
    seconds : float
        What they took.
    loss, accuracy : float
        Cross-entropy, and the share of right answers.
    sent : float or None
        Bytes that a rank has sent so far, counted at the network device, or else as the library says.
    """

    step: int
    seconds: float
    loss: float
    accuracy: float
    sent: float | None = None


@dataclass
class Run:
    """One contestant's training from one seed.

    Attributes
    ----------
    seed : int
        Which seed.
    curve : list of Point
        At the start and after each turn.
    distance : float or None
        How far the parameters ended from those of training in one process, over how far those have moved.
    staleness : list of int or None
        Of a strategy on servers: how often a rank went on 0, 1, 2, ... steps ahead of the slowest.
    """

    seed: int
    curve: list[Point] = field(default_factory=list)
    distance: float | None = None
    staleness: list[int] | None = None

    @classmethod
    def of(cls, plain: Mapping[str, Any]) -> Run:
        """Make one of what `asdict` has given."""
        return cls(**{**plain, "curve": [Point(**point) for point in plain["curve"]]})


@dataclass(frozen=True)
class Scaled:
    """What a contestant did on a part of the ranks.

    Attributes
    ----------
    ranks : int
        How many.
    samples_per_second : float
        Of all of them together.
    efficiency : float
        The same over so many times that of one rank which trains alone, without communication.
    """

    ranks: int
    samples_per_second: float
    efficiency: float


@dataclass(frozen=True)
class Figures:
    """What a contestant's steps took, over all seeds.

    Attributes
    ----------
    steps : int
        Timed steps.
    step_median_ms, step_p95_ms : float
        A step on the slowest rank; where steps repeat with a period, the mean of so many in a row.
    forward_median_ms, backward_median_ms : float
        The passes in it; the backward pass may hold communication.
    samples_per_second : float
        Of all ranks together.
    speedup : float or None
        The same over the samples per second of one rank without communication.
    exposed_ms : float or None
        The step less that without communication, in the median over turns.
    bookkeeping_ms : float or None
        What the slowest rank spends in a step on choosing and collecting what is sent, whatever runs beside it; None
        where all is sent.
    bytes_sent : int or None
        Of each rank in a step, by the counter of the network device; None where that is not known.
    bytes_reported : int or None
        What each rank sent in messages in a step, as the library itself counts.
    waiting_percent : float or None
        With stragglers, the share of their time in which ranks did not compute, but waited or communicated.
    iterations_per_second : float or None
        With stragglers, of all ranks together.
    """

    steps: int
    step_median_ms: float
    step_p95_ms: float
    forward_median_ms: float
    backward_median_ms: float
    samples_per_second: float
    speedup: float | None
    exposed_ms: float | None
    bookkeeping_ms: float | None
    bytes_sent: int | None
    bytes_reported: int | None
    waiting_percent: float | None = None
    iterations_per_second: float | None = None


def summarise(
    turns: Sequence[JointTurn],
    without: Sequence[JointTurn] | None,
    ranks: int,
    batch: int,
    *,
    traffic_known: bool,
    period: int = 1,
) -> Figures:
    """Turn a contestant's turns into its figures.

    Parameters
    ----------
    turns : sequence of JointTurn
        Of all seeds.
    without : sequence of JointTurn or None
        Those without communication, each from the same time as the turn at its place.
    ranks, batch : int
        How many ranks, and the samples of each in a step.
    traffic_known : bool
        Whether bytes were counted.
    period : int
        Steps after which they repeat.

    Returns
    -------
    Figures
        Rounded.
    """
    step = _means(np.concatenate([turn.step for turn in turns]), period)
    forward = _means(np.concatenate([turn.forward for turn in turns]), period)
    backward = _means(np.concatenate([turn.backward for turn in turns]), period)
    bookkeeping = float(np.median(np.concatenate([turn.bookkeeping for turn in turns])))
    median = float(np.median(step))
    waited = [turn.waited for turn in turns if turn.waited is not None]
    rates = [turn.iterations_per_second for turn in turns if turn.iterations_per_second is not None]
    speedup = exposed = None
    if without is not None:
        alone = float(np.median(np.concatenate([turn.step for turn in without])))
        speedup = None if rates else ranks * alone / median
        pairs = zip(turns, without, strict=True)
        differences = [np.median(turn.step) - np.median(other.step) for turn, other in pairs]
        exposed = float(np.median(differences)) if period == 1 else median - alone
    sent = np.average([turn.sent for turn in turns], weights=[len(turn.step) for turn in turns])
    reported = [(turn.reported, len(turn.step)) for turn in turns if turn.reported is not None]
    samples_per_second = batch * float(np.mean(rates)) if rates else ranks * batch * 1e3 / median
    return Figures(
        steps=sum(len(turn.step) for turn in turns),
        step_median_ms=round(median, 4),
        step_p95_ms=round(float(np.percentile(step, 95)), 4),
        forward_median_ms=round(float(np.median(forward)), 4),
        backward_median_ms=round(float(np.median(backward)), 4),
        samples_per_second=round(samples_per_second, 2),
        speedup=None if speedup is None else round(speedup, 4),
        exposed_ms=None if exposed is None else round(exposed, 4),
        bookkeeping_ms=None if np.isnan(bookkeeping) else round(bookkeeping, 4),
        bytes_sent=round(float(sent)) if traffic_known else None,
        bytes_reported=_weighted(reported),
        waiting_percent=round(100 * float(np.mean(waited)), 2) if waited else None,
        iterations_per_second=round(float(np.mean(rates)), 3) if rates else None,
    )


def _weighted(parts: Sequence[tuple[float, int]]) -> int | None:
    """Give the mean of values of which each counts so many times, as a whole number; None where there are none."""
    return round(sum(value * times for value, times in parts) / sum(times for _, times in parts)) if parts else None


def _means(steps: NDArray[np.float64], period: int) -> NDArray[np.float64]:
    """Give the means of so many steps in a row."""
    means: NDArray[np.float64] = steps[: len(steps) // period * period].reshape(-1, period).mean(axis=1)
    return means


@dataclass(frozen=True)
class TrainResult:
    """What is known of one contestant and model.

    Attributes
    ----------
    model : str
        The model's name.
    parameters : int
        How many it has.
    entry : Entry
        The contestant.
    ranks, nodes, batch : int
        On how many, and the samples of a rank in a step.
    link_ms : float or None
        The least time in which the links can carry the gradients; None where that is not known.
    figures : Figures or None
        None where the results were wrong.
    runs : list of Run
        One for each seed.
    wrong : int
        Wrong elements of checked gradients, and ranks that ended with parameters of their own.
    optimizer : Optimizer
        What makes the steps, or tells the servers how.
    rate_given : bool
        Whether the learning rate was given for this contestant.
    scale : tuple of Scaled
        On more and more ranks, where that was measured.
    """

    model: str
    parameters: int
    entry: Entry
    ranks: int
    nodes: int
    batch: int
    link_ms: float | None
    figures: Figures | None
    runs: list[Run]
    wrong: int
    optimizer: Optimizer
    rate_given: bool = False
    scale: tuple[Scaled, ...] = ()

    @property
    def is_tuned(self) -> bool:
        """Whether the learning rate suits: it was given for this contestant, or is that of plain SGD, as its steps."""
        return self.rate_given or not self.entry.needs_own_rate

    def record(self) -> dict[str, Any]:
        """Give what a result file holds of it."""
        entry, figures = self.entry, self.figures
        return {
            "model": self.model,
            "parameters": self.parameters,
            "contestant": entry.contestant,
            "precision": entry.precision,
            "strategy": None if entry.strategy is None else entry.strategy.name,
            "settings": None if entry.strategy is None else _settings(entry.settings),
            "approximation_rank": entry.approximation_rank,
            "optimizer": str(self.optimizer),
            "learning_rate": self.optimizer.learning_rate,
            "learning_rate_tuned": self.is_tuned,
            "overlaps": None if entry.strategy is None else entry.overlaps,
            "fused": None if entry.strategy is None else entry.fused,
            "ranks": self.ranks,
            "nodes": self.nodes,
            "batch": self.batch,
            **({item.name: None for item in fields(Figures)} if figures is None else asdict(figures)),
            "link_ms": self.link_ms,
            "scale": [asdict(each) for each in self.scale],
            "runs": [asdict(run) for run in self.runs],
            "wrong": self.wrong,
        }

    def row(self) -> dict[str, Any]:
        """Give what a line of a table holds of it: of the curves the ends, as means over the seeds."""
        record = {name: value for name, value in self.record().items() if name not in ("runs", "scale", "wrong")}
        ends = [run.curve[-1] for run in self.runs if run.curve]
        for name in ("loss", "accuracy", "seconds", "sent"):
            values = [getattr(point, name) for point in ends]
            record[f"final_{name}"] = None if None in values or not values else float(np.mean(values))
        efficiencies = {f"efficiency_at_{each.ranks}": each.efficiency for each in self.scale}
        return {**record, **efficiencies, "seeds": len(self.runs), "wrong": self.wrong}


def _settings(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Give the arguments of a strategy as result files hold them."""
    found = {name: value for name, value in arguments.items() if name != "fusion_threshold"}
    if "fusion_threshold" in arguments:
        found["threshold_bytes"] = threshold_bytes(arguments["fusion_threshold"])
    return found
