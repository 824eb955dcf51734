"""The result of a collective, and the table of results."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ..core.case import Case
from ..core.measure import Times
from ..core.peers import OURS, Contestant, Key
from ..core.plan import format_size
from ..core.results import shared
from ..core.table import Column, Layout, bandwidth, figure, microseconds, name, percentage, ratio, ratios, timed
from .plan import LIMIT, PREPARED


@dataclass(frozen=True)
class Result:
    """One contestant's figures at one size; `core.results` explains the fields that all benches have.

    Attributes
    ----------
    collective, algorithm, memory : str
        The contestant.
    launch_us : float or None
        On a device, how long a call occupies the host, without waiting for the device; the median of the slowest rank.
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


def summarise(
    case: Case, contestant: Contestant, nodes: int, wrong: int, times: Times | None, link_seconds: float | None = None
) -> Result:
    """Make the result of a contestant from its times, which are ignored if it was wrong."""
    timed = None if wrong else times
    return Result(
        collective=case.collective,
        algorithm=contestant.algorithm,
        memory=contestant.memory,
        device=contestant.device,
        launch_us=None if timed is None or timed.launch is None else round(float(np.median(timed.launch)) / 1e3, 3),
        **shared(case, contestant.backend, contestant.wire, nodes, wrong, times, link_seconds),
    )


def _columns(results: Sequence[Result], with_cpu: bool) -> list[Column]:
    ours = [result for result in results if result.backend == OURS]
    sized = any(result.bytes for result in results)  # a barrier has no bytes
    beside = {(result.bytes, result.backend): result for result in results}

    def compared(peer: str) -> Column:
        def find(result: Result) -> Result | None:
            return beside.get((result.bytes, peer)) if result.backend == OURS else None

        return ratios(f"{peer} / ours", find, filled=sized)

    def size(result: Result) -> str:
        return format_size(result.bytes) if result.bytes else "-"

    def of_limit(result: Result) -> float | None:
        limit = beside.get((result.bytes, LIMIT))
        return None if limit is None or result.backend == LIMIT else ratio(result.median_us, limit.median_us)

    def cpu_per_byte(result: Result) -> float | None:
        return None if result.cpu_us is None else result.cpu_us * 1e3 / (result.bytes * result.ranks)

    return [
        name("size", size, justify="right", repeats=False),
        name("", lambda result: "ours" if result.backend == OURS else result.backend),
        name("memory", "memory"),
        name("algorithm", "algorithm", shown=any(result.algorithm != "auto" for result in ours)),
        name("wire", "wire", shown=any(result.wire != result.dtype for result in ours)),
        *timed("us", microseconds),
        figure("launch", "us", "launch_us", microseconds, shown=any(r.launch_us is not None for r in results)),
        figure("filled", "us", "refill_median_us", microseconds, shown=sized),
        figure("algbw", "GB/s", "algbw_GBps", bandwidth, shown=sized),
        figure("busbw", "GB/s", "busbw_GBps", bandwidth, shown=sized),
        figure("link", "%", "link_share", percentage, shown=sized and any(r.link_share is not None for r in results)),
        figure("of limit", "%", of_limit, percentage, shown=any(result.backend == LIMIT for result in results)),
        figure("cpu", "us", "cpu_us", microseconds, shown=with_cpu),
        figure("cpu", "ns/B", cpu_per_byte, bandwidth, shown=with_cpu and sized),
        *(compared(peer) for peer in dict.fromkeys(result.backend for result in results) if peer not in (OURS, LIMIT)),
    ]


def _legend(results: Sequence[Result], with_cpu: bool) -> str:
    text = "Times are those of the slowest rank; call is the median."
    if any(result.bytes for result in results):
        text += (
            " filled is the median of writing fresh values into the buffer and the call, timed together: what a "
            "training step pays."
        )
    if any(result.device == "cuda" for result in results):
        text += " Both end when the device is done; launch is how long the call keeps the host before that."
        if any(result.backend in ("mpi", "gloo") for result in results):
            text += " mpi and gloo copy to pinned memory of the host, call, and copy back."
    if any(result.link_share is not None for result in results):
        text += " link is the least time that the links need for what has to be sent, over call."
    if with_cpu:
        text += " cpu is the processor time of a call: of all ranks together, and for each byte and rank."
    if any(result.backend == LIMIT for result in results):
        text += " limit is the same traffic in node memory with no word between ranks; of limit, its time over call."
    if any(result.backend == PREPARED for result in results):
        text += " prepared is ours with a prepared call: its start and its wait."
    if any(result.backend not in (OURS, LIMIT) for result in results):
        text += " The last columns are the peer's time over ours: below 1 we are slower."
    return text


LAYOUT = Layout(_columns, lambda result: result.bytes, _legend, ("min", "busbw", "p95", "algbw", "link"))
