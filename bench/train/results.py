"""Results of a contestant: the figures of its steps, its curves, and the number of wrong gradients."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gradientflow.annotations import JsonObject

from ..core.plan import threshold_bytes
from ..core.table import megabytes, shown
from .entry import Entry, Optimizer
from .turns import JointTurn


@dataclass(frozen=True)
class Point:
    """The loss and accuracy of a model at one time, on the held-out samples.

    Attributes
    ----------
    step : int
        Steps made so far.
    seconds : float
        The time of these steps.
    loss, accuracy : float
        Cross-entropy, and the share of right answers.
    sent : float or None
        Bytes that a rank has sent so far, counted by the network device, or otherwise by the library.
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
        The seed.
    curve : list of Point
        A point at the start and one after each turn.
    distance : float or None
        The distance of the final parameters from the result of one process, over the distance that this process has
        moved.
    staleness : list of int or None
        With a strategy on servers: counts of how often a rank continued 0, 1, 2, ... steps ahead of the slowest rank.
    """

    seed: int
    curve: list[Point] = field(default_factory=list)
    distance: float | None = None
    staleness: list[int] | None = None

    @classmethod
    def of(cls, plain: JsonObject) -> Run:
        """Make a run from the result of `asdict`."""
        return cls(**{**plain, "curve": [Point(**point) for point in plain["curve"]]})


@dataclass(frozen=True)
class Scaled:
    """The throughput of a contestant on a part of the ranks.

    Attributes
    ----------
    ranks : int
        Number of ranks.
    samples_per_second : float
        Samples per second of these ranks together.
    efficiency : float
        `samples_per_second` over `ranks` times the throughput of one rank alone, without communication.
    """

    ranks: int
    samples_per_second: float
    efficiency: float


def milliseconds(value: float | None) -> str:
    """Write a time with about three significant digits."""
    return "-" if value is None else f"{value:.2f}" if abs(value) < 10 else f"{value:.1f}"


@dataclass(frozen=True)
class Figures:
    """The figures of a contestant's steps, over all seeds.

    Attributes
    ----------
    steps : int
        Timed steps.
    step_median_ms, step_p95_ms : float
        Time of a step on the slowest rank, as mean over the period of the strategy.
    forward_median_ms, backward_median_ms : float
        Times of the passes; the backward pass may include communication.
    samples_per_second : float
        Samples per second of all ranks together.
    speedup : float or None
        `samples_per_second` over the samples per second of one rank without communication.
    exposed_ms : float or None
        The step minus the step without communication; the median over turns.
    bookkeeping_ms : float or None
        The slowest rank's time in a step to select and gather the data to send, overlapped or not; None if all
        gradients are sent.
    bytes_sent : int or None
        Bytes that a rank sends in a step, counted by the network device; None if unknown.
    bytes_reported : int or None
        Bytes that a rank sends in messages in a step, counted by the library.
    waiting_percent : float or None
        With stragglers, the share of time in which ranks did not compute, but waited or communicated.
    iterations_per_second : float or None
        With stragglers, iterations per second of all ranks together.
    """

    steps: int
    step_median_ms: float = field(metadata=shown("step", "ms", milliseconds))
    step_p95_ms: float = field(metadata=shown("p95", "ms", milliseconds))
    forward_median_ms: float
    backward_median_ms: float = field(metadata=shown("backward", "ms", milliseconds))
    samples_per_second: float = field(metadata=shown("samples", "/s", "{:.0f}".format))
    speedup: float | None = field(
        metadata=shown("speed-up", "", "{:.2f}x".format, "speed-up is over the samples per second of one rank of none.")
    )
    exposed_ms: float | None = field(
        metadata=shown(
            *("exposed", "ms", milliseconds),
            "exposed is the step less that of none in the same turns; below 0 it is within the noise.",
        )
    )
    bookkeeping_ms: float | None = field(
        metadata=shown(
            *("selection", "ms", milliseconds),
            "selection is what the slowest rank spends on choosing and collecting what is sent, beside all else.",
        )
    )
    bytes_sent: int | None = field(metadata=shown("sent", "MB", megabytes))
    bytes_reported: int | None = field(metadata=shown("reported", "MB", megabytes))
    waiting_percent: float | None = field(
        default=None,
        metadata=shown(
            *("waiting", "%", "{:.1f}".format),
            "Ranks sleep until a step has computed as long as was drawn: waiting is the share of all the rest in their "
            "time, iterations are those of all ranks.",
        ),
    )
    iterations_per_second: float | None = field(default=None, metadata=shown("iterations", "/s", "{:.1f}".format))


def summarize(
    turns: Sequence[JointTurn],
    without: Sequence[JointTurn] | None,
    ranks: int,
    batch: int,
    *,
    traffic_known: bool,
    period: int = 1,
) -> Figures:
    """Compute a contestant's figures from its turns.

    Parameters
    ----------
    turns : sequence of JointTurn
        The turns of all seeds.
    without : sequence of JointTurn or None
        Turns without communication; each was measured at the time of the turn with the same index.
    ranks, batch : int
        The number of ranks, and the samples of each in a step.
    traffic_known : bool
        True if bytes were counted.
    period : int
        Steps after which communication repeats.

    Returns
    -------
    Figures
        The rounded figures.
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
    """Give the weighted mean of (value, weight) pairs, as a whole number; None without pairs."""
    return round(sum(value * times for value, times in parts) / sum(times for _, times in parts)) if parts else None


def _means(steps: NDArray[np.float64], period: int) -> NDArray[np.float64]:
    """Give the means of `period` consecutive steps."""
    means: NDArray[np.float64] = steps[: len(steps) // period * period].reshape(-1, period).mean(axis=1)
    return means


@dataclass(frozen=True)
class TrainResult:
    """The result of a contestant on a model.

    Attributes
    ----------
    model : str
        The model's name.
    parameters : int
        The number of its parameters.
    entry : Entry
        The contestant.
    ranks, nodes, batch : int
        The numbers of ranks and nodes, and the samples of a rank in a step.
    link_ms : float or None
        The least time in which the links can carry the gradients; None if unknown.
    figures : Figures or None
        Figures; None if the results were wrong.
    runs : list of Run
        A run for each seed.
    wrong : int
        Wrong elements of checked gradients, plus ranks that ended with other parameters than rank 0.
    optimizer : Optimizer
        The optimizer that makes the steps, or whose settings the servers use.
    rate_given : bool
        True if the learning rate was given for this contestant.
    scale : tuple of Scaled
        Throughputs on increasing numbers of ranks, if measured.
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
        """True if the learning rate was given for this contestant, or it steps like plain SGD."""
        return self.rate_given or not self.entry.needs_own_rate

    def at_end(self, name: str) -> float | None:
        """Give an attribute of the last point of the curves, as mean over the seeds; None if unknown."""
        values = [getattr(run.curve[-1], name) for run in self.runs if run.curve]
        return None if None in values or not values else float(np.mean(values))

    def record(self) -> JsonObject:
        """Give the record for a JSON file."""
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
            "survives": None if entry.strategy is None else entry.survives,
            "transport": entry.transport,
            "views": entry.views if entry.needs_ddp else None,
            "ranks": self.ranks,
            "nodes": self.nodes,
            "batch": self.batch,
            **({item.name: None for item in fields(Figures)} if figures is None else asdict(figures)),
            "link_ms": self.link_ms,
            "scale": [asdict(each) for each in self.scale],
            "runs": [asdict(run) for run in self.runs],
            "wrong": self.wrong,
        }

    def row(self) -> dict[str, object]:
        """Give the line of a CSV file: only the ends of the curves, as means over the seeds."""
        record = {name: value for name, value in self.record().items() if name not in ("runs", "scale", "wrong")}
        record |= {f"final_{name}": self.at_end(name) for name in ("loss", "accuracy", "seconds", "sent")}
        efficiencies = {f"efficiency_at_{each.ranks}": each.efficiency for each in self.scale}
        return {**record, **efficiencies, "seeds": len(self.runs), "wrong": self.wrong}


def _settings(arguments: Mapping[str, Any]) -> dict[str, object]:
    """Give the arguments of a strategy in the form of result files."""
    found = {name: value for name, value in arguments.items() if name != "fusion_threshold"}
    if "fusion_threshold" in arguments:
        found["threshold_bytes"] = threshold_bytes(arguments["fusion_threshold"])
    return found
