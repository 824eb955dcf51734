"""Results: the record of one contestant at one size, and the JSON file of a run."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from .collectives import COLLECTIVES, Case
from .contestants import Contestant
from .measure import Samples


@dataclass(frozen=True)
class Result:
    """One contestant's figures; scripts rely on the names.

    Attributes
    ----------
    backend, collective, algorithm, memory, dtype, wire, device : str
        What was measured.
    ranks, nodes, bytes, iterations : int
        On how much.
    median_us, min_us, p95_us : float or None
        Of the call alone; None, like all figures, where the result was wrong.
    refill_median_us : float or None
        Writing fresh values and the call, together.
    algbw_GBps, busbw_GBps : float or None
        Bandwidth at the median, in 10^9 bytes per second.
    wrong : int
        Wrong elements, summed over ranks and checks.
    """

    backend: str
    collective: str
    algorithm: str
    memory: str
    dtype: str
    wire: str
    device: str
    ranks: int
    nodes: int
    bytes: int
    iterations: int
    median_us: float | None
    min_us: float | None
    p95_us: float | None
    refill_median_us: float | None
    algbw_GBps: float | None  # noqa: N815 - the unit's own spelling, and a name scripts rely on
    busbw_GBps: float | None  # noqa: N815
    wrong: int

    @property
    def key(self) -> tuple[str, str, str]:
        """The contestant it belongs to."""
        return self.backend, self.algorithm, self.memory


@dataclass(frozen=True)
class Times:
    """The slowest rank's time of every iteration, in nanoseconds.

    Attributes
    ----------
    call : array
        Of the call alone.
    refill : array
        Of writing fresh values and the call.
    """

    call: Samples
    refill: Samples


def summarise(case: Case, contestant: Contestant, nodes: int, wrong: int, times: Times | None) -> Result:
    """Turn one contestant's times into its result.

    Parameters
    ----------
    case : Case
        What was run.
    contestant : Contestant
        Who ran it.
    nodes : int
        Over how many nodes.
    wrong : int
        Wrong elements found.
    times : Times or None
        None where it was not timed; they are ignored where the result was wrong.

    Returns
    -------
    Result
        The record.
    """
    figures: dict[str, float | None] = dict.fromkeys(
        ("median_us", "min_us", "p95_us", "refill_median_us", "algbw_GBps", "busbw_GBps")
    )
    timed = times is not None and not wrong
    if times is not None and timed:
        median = float(np.median(times.call)) / 1e3
        bandwidth = case.bytes / (median * 1e3)
        figures = {
            "median_us": round(median, 3),
            "min_us": round(float(times.call.min()) / 1e3, 3),
            "p95_us": round(float(np.percentile(times.call, 95)) / 1e3, 3),
            "refill_median_us": round(float(np.median(times.refill)) / 1e3, 3),
            "algbw_GBps": round(bandwidth, 6),
            "busbw_GBps": round(bandwidth * COLLECTIVES[case.collective].bus_factor(case.ranks), 6),
        }
    return Result(
        backend=contestant.backend,
        collective=case.collective,
        algorithm=contestant.algorithm,
        memory=contestant.memory,
        dtype=case.dtype,
        wire=case.dtype,
        device="cpu",
        ranks=case.ranks,
        nodes=nodes,
        bytes=case.bytes,
        iterations=len(times.call) if times is not None and timed else 0,
        wrong=wrong,
        **figures,
    )


def write_json(path: str, environment: Mapping[str, Any], results: Sequence[Result]) -> None:
    """Write one object ``{"environment": ..., "results": [...]}``."""
    text = json.dumps({"environment": environment, "results": [asdict(result) for result in results]}, indent=2)
    Path(path).write_text(text + "\n", encoding="utf-8")
