"""The result of a collective, and the table of results."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from ..core.case import Case
from ..core.measure import Times
from ..core.peers import OURS, Contestant, Key
from ..core.results import (
    BACKEND,
    SIZE,
    BandwidthResult,
    over_peers,
    shared_with_bandwidth,
    transport_column,
    wire_column,
)
from ..core.table import Column, Layout, bandwidth, columns_of, figure, name, percentage, ratio, shown
from .plan import LIMIT, PREPARED


@dataclass(frozen=True, kw_only=True)
class Result(BandwidthResult):
    """One contestant's figures at one size.

    Attributes
    ----------
    collective, algorithm, memory : str
        Names of the contestant in results.
    launch_us : float or None
        On a device, time that a call occupies the host, without a wait for the device; the slowest rank's median.
    """

    collective: str
    algorithm: str
    memory: str
    launch_us: float | None = field(metadata=shown("launch"))

    @property
    def key(self) -> Key:
        """The key of the contestant."""
        return self.backend, self.algorithm, self.memory, self.wire


def summarize(
    case: Case, contestant: Contestant, nodes: int, wrong: int, times: Times | None, link_seconds: float | None = None
) -> Result:
    """Make the result of a contestant from its times, which are ignored if its elements were wrong."""
    launch = None if wrong or times is None else times.launch
    return Result(
        collective=case.collective,
        algorithm=contestant.algorithm,
        memory=contestant.memory,
        device=contestant.device,
        launch_us=None if launch is None else round(float(np.median(launch)) / 1e3, 3),
        **shared_with_bandwidth(case, contestant, nodes, wrong, times, link_seconds),
    )


def _columns(results: Sequence[Result], with_cpu: bool) -> list[Column]:
    sized = any(result.bytes for result in results)  # a barrier has no bytes
    limits = {result.bytes: result for result in results if result.backend == LIMIT}
    chosen = any(result.algorithm != "auto" for result in results if result.backend == OURS)

    def of_limit(result: Result) -> float | None:
        limit = limits.get(result.bytes)
        return None if limit is None or result.backend == LIMIT else ratio(result.median_us, limit.median_us)

    def cpu_per_byte(result: Result) -> float | None:
        return None if result.cpu_us is None else result.cpu_us * 1e3 / (result.bytes * result.ranks)

    columns = partial(columns_of, Result, results)
    return [
        SIZE,
        BACKEND,
        name("memory", "memory"),
        name("algorithm", "algorithm", shown=chosen),
        transport_column(results),
        wire_column(results),
        *columns("median_us", "min_us", "p95_us", "launch_us"),
        *columns("refill_median_us", "algbw_GBps", "busbw_GBps", "link_share", when=sized),
        figure("of limit", "%", of_limit, percentage, shown=bool(limits)),
        *columns("cpu_us", when=with_cpu),
        figure("cpu", "ns/B", cpu_per_byte, bandwidth, shown=with_cpu and sized, note="ns/B is of a byte and rank."),
        *over_peers(results, lambda result: result.bytes, filled=sized, without=(LIMIT,)),
    ]


def _legend(results: Sequence[Result], with_cpu: bool) -> str:
    backends = {result.backend for result in results}
    text = "Times are those of the slowest rank; call is the median."
    if any(result.bytes for result in results):
        text += (
            " filled is the median of writing fresh values into the buffer and the call, timed together: what a "
            "training step pays."
        )
    if any(result.device == "cuda" for result in results):
        text += " Both end when the device is done; launch is how long the call keeps the host before that."
        if backends & {"mpi", "gloo"}:
            text += " mpi and gloo copy to pinned memory of the host, call, and copy back."
    if LIMIT in backends:
        text += " limit is the same traffic in node memory with no word between ranks; of limit, its time over call."
    if PREPARED in backends:
        text += " prepared is ours with a prepared call: its start and its wait."
    return text


LAYOUT = Layout(_columns, lambda result: result.bytes, _legend)
