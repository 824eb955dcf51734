"""The result of ``gradientflow bench ps``, and the table of results."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..core.case import Case
from ..core.measure import Times
from ..core.peers import OURS
from ..core.plan import format_size
from ..core.results import shared
from ..core.table import Column, Layout, bandwidth, figure, microseconds, name, percentage, ratios, timed
from .contestants import ServerContestant


@dataclass(frozen=True)
class ServerResult:
    """One contestant's figures; `core.results` explains the fields that all benches have.

    Attributes
    ----------
    workers, servers : int
        The numbers of workers and of servers.
    memory : str
        "array": gradients and weights in arrays of the worker; "in-place": where servers read and write them.
    bytes : int
        Of the gradients that a worker pushes, and of the weights that it pulls.
    algbw_GBps : float or None
        Both together, over the median.
    link_share : float or None
        The least time that the links need for the messages, over the median.
    """

    backend: str
    workers: int
    servers: int
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
    cpu_us: float | None
    link_share: float | None
    wrong: int


def summarise(
    case: Case,
    contestant: ServerContestant,
    servers: int,
    nodes: int,
    wrong: int,
    times: Times | None,
    link_seconds: float | None,
) -> ServerResult:
    """Make the result of a contestant from its times, which are ignored if it was wrong."""
    found = shared(case, contestant.backend, contestant.wire, nodes, wrong, times, link_seconds)
    del found["busbw_GBps"]
    median = found["median_us"]
    found["algbw_GBps"] = None if median is None else round(2 * case.bytes / (median * 1e3), 6)
    return ServerResult(workers=case.ranks, servers=servers, memory=contestant.memory, device="cpu", **found)


def _columns(results: Sequence[ServerResult], with_cpu: bool) -> list[Column]:
    beside = {(result.bytes, result.servers, result.backend): result for result in results}

    def compared(peer: str) -> Column:
        def find(result: ServerResult) -> ServerResult | None:
            return beside.get((result.bytes, result.servers, peer)) if result.backend == OURS else None

        return ratios(f"{peer} / ours", find)

    return [
        name("size", lambda result: format_size(result.bytes), justify="right", repeats=False),
        name("workers", lambda result: str(result.workers), justify="right", repeats=False),
        name("servers", lambda result: str(result.servers), justify="right", repeats=False),
        name("", lambda result: "ours" if result.backend == OURS else result.backend),
        name("memory", "memory"),
        name("wire", "wire", shown=any(result.wire != result.dtype for result in results)),
        *timed("us", microseconds),
        figure("filled", "us", "refill_median_us", microseconds),
        figure("both ways", "GB/s", "algbw_GBps", bandwidth),
        figure("link", "%", "link_share", percentage, shown=any(r.link_share is not None for r in results)),
        figure("cpu", "us", "cpu_us", microseconds, shown=with_cpu),
        *(compared(peer) for peer in dict.fromkeys(result.backend for result in results) if peer != OURS),
    ]


def _legend(results: Sequence[ServerResult], with_cpu: bool) -> str:
    text = (
        "Every worker pushes a gradient of this size, the servers apply the mean, every worker pulls the weights. "
        "Servers are in the ranks of workers. in-place: gradients are written where servers read them, and weights "
        "read where servers write them; array: they are copied to and from there. Times are those of the slowest "
        "rank; call is the median, filled that of writing the gradient as well."
    )
    if any(result.link_share is not None for result in results):
        text += " link is the least time that the busiest host's link needs for what it has to send, over call."
    if with_cpu:
        text += " cpu is the processor time of a call, of all ranks together."
    if any(result.backend != OURS for result in results):
        text += " The last columns are the other's time over ours: below 1 we are slower."
    return text


LAYOUT = Layout(_columns, lambda result: (result.bytes, result.servers), _legend, ("min", "p95", "link"))
