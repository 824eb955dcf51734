"""The result of ``gradientflow bench ps``, and the table of results."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial

from ..core.case import Case
from ..core.measure import Times
from ..core.results import (
    BACKEND,
    SIZE,
    ContestantResult,
    gigabytes_per_second,
    over_peers,
    shared,
    transport_column,
    wire_column,
)
from ..core.table import Column, Layout, bandwidth, columns_of, name, shown
from .contestants import ServerContestant


@dataclass(frozen=True, kw_only=True)
class ServerResult(ContestantResult):
    """The figures of a contestant; `bytes` is the size of the gradients that a worker pushes, and of the weights.

    Attributes
    ----------
    workers, servers : int
        The numbers of workers and of servers.
    memory : str
        "array": gradients and weights in arrays of the worker; "in-place": in memory that servers read and write.
    algbw_GBps : float or None
        Bytes of gradients and weights together, over the median.
    """

    workers: int
    servers: int
    memory: str
    algbw_GBps: float | None = field(metadata=shown("both ways", "GB/s", bandwidth))  # noqa: N815 - spelled like the unit


def summarize(
    case: Case,
    contestant: ServerContestant,
    servers: int,
    nodes: int,
    wrong: int,
    times: Times | None,
    link_seconds: float | None = None,
) -> ServerResult:
    """Make the result of a contestant with this many servers, from the arguments of `core.results.shared`."""
    found = shared(case, contestant, nodes, wrong, times, link_seconds)
    rate = gigabytes_per_second(2 * case.bytes, found["median_us"])
    return ServerResult(workers=case.ranks, servers=servers, memory=contestant.memory, algbw_GBps=rate, **found)


def _block(result: ServerResult) -> object:
    return result.bytes, result.servers


def _columns(results: Sequence[ServerResult], with_cpu: bool) -> list[Column]:
    columns = partial(columns_of, ServerResult, results)
    return [
        SIZE,
        name("workers", "workers", justify="right", repeats=False),
        name("servers", "servers", justify="right", repeats=False),
        BACKEND,
        name("memory", "memory"),
        transport_column(results),
        wire_column(results),
        *columns("median_us", "min_us", "p95_us", "refill_median_us", "algbw_GBps", "link_share"),
        *columns("cpu_us", when=with_cpu),
        *over_peers(results, _block),
    ]


def _legend(results: Sequence[ServerResult], with_cpu: bool) -> str:
    return (
        "Every worker pushes a gradient of this size, the servers apply the mean, every worker pulls the weights. "
        "Servers are in the ranks of workers. in-place: gradients are written where servers read them, and weights "
        "read where servers write them; array: they are copied to and from there. Times are those of the slowest "
        "rank; call is the median, filled that of writing the gradient as well."
    )


LAYOUT = Layout(_columns, _block, _legend)
