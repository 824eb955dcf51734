"""Results: the record of one contestant at one size, and the JSON file of a run."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from .collectives import COLLECTIVES, Case
from .contestants import Contestant, Key
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
    cpu_us : float or None
        Processor time of a call, user and system, of all ranks' processes together; the mean.
    launch_us : float or None
        On a device, how long a call keeps the host, which does not wait for the device; the median of the slowest rank.
    link_share : float or None
        The least time that the links between the hosts need for the call, over the median; None where their rate is not
        known.
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
    cpu_us: float | None
    launch_us: float | None
    link_share: float | None
    wrong: int

    @property
    def key(self) -> Key:
        """The contestant it belongs to."""
        return self.backend, self.algorithm, self.memory, self.wire


@dataclass(frozen=True)
class Times:
    """The times of every iteration, in nanoseconds.

    Attributes
    ----------
    call : array
        Of the call alone, on the slowest rank.
    refill : array
        Of writing fresh values and the call, on the slowest rank.
    processor : array
        Processor time of the call alone, of all ranks together; of fewer iterations.
    launch : array or None
        On a device, until the call returns, which may be before the device is done; on the slowest rank.
    """

    call: Samples
    refill: Samples
    processor: Samples
    launch: Samples | None = None


def summarise(
    case: Case, contestant: Contestant, nodes: int, wrong: int, times: Times | None, link_seconds: float | None = None
) -> Result:
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
    link_seconds : float or None
        The least time that the links between the hosts need for it, where that is known.

    Returns
    -------
    Result
        The record.
    """
    timed = None if wrong else times
    return Result(
        backend=contestant.backend,
        collective=case.collective,
        algorithm=contestant.algorithm,
        memory=contestant.memory,
        dtype=case.dtype,
        wire=contestant.wire,
        device=contestant.device,
        ranks=case.ranks,
        nodes=nodes,
        bytes=case.bytes,
        iterations=0 if timed is None else len(timed.call),
        wrong=wrong,
        launch_us=None if timed is None or timed.launch is None else round(float(np.median(timed.launch)) / 1e3, 3),
        **figures(case, timed, link_seconds),
    )


def figures(case: Case, times: Times | None, link_seconds: float | None) -> dict[str, float | None]:
    """Work out what results say of times; all is None where there are none.

    Parameters
    ----------
    case : Case
        What was run.
    times : Times or None
        Of one contestant.
    link_seconds : float or None
        The least time that the links between the hosts need for it, where that is known.

    Returns
    -------
    dict
        The figures by the names of their fields.
    """
    if times is None:
        return dict.fromkeys(
            ("median_us", "min_us", "p95_us", "refill_median_us", "algbw_GBps", "busbw_GBps", "cpu_us", "link_share")
        )
    median = float(np.median(times.call)) / 1e3
    bandwidth = case.bytes / (median * 1e3)
    return {
        "median_us": round(median, 3),
        "min_us": round(float(times.call.min()) / 1e3, 3),
        "p95_us": round(float(np.percentile(times.call, 95)) / 1e3, 3),
        "refill_median_us": round(float(np.median(times.refill)) / 1e3, 3),
        "algbw_GBps": round(bandwidth, 6),
        "busbw_GBps": round(bandwidth * COLLECTIVES[case.collective].bus_factor(case.ranks), 6),
        "cpu_us": round(float(times.processor.mean()) / 1e3, 3),
        "link_share": None if link_seconds is None else round(link_seconds * 1e6 / median, 4),
    }


def write_json(
    path: str,
    environment: Mapping[str, Any],
    results: Sequence[Any],
    others: Mapping[str, Sequence[Any]] | None = None,
) -> None:
    """Write one object ``{"environment": ..., "results": [...]}``, with other results under names of their own."""
    tables = {"results": results, **(others or {})}
    lists = {name: [asdict(result) for result in table] for name, table in tables.items()}
    text = json.dumps({"environment": environment, **lists}, indent=2)
    Path(path).write_text(text + "\n", encoding="utf-8")
