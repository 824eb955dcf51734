"""The result of ``gradientflow bench sparse``, and the table of results."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ..core.case import Case
from ..core.measure import Times
from ..core.peers import OURS
from ..core.plan import format_size
from ..core.results import shared
from ..core.shapes import Model
from ..core.table import Column, Layout, figure, megabytes, milliseconds, name, percentage, ratios
from .contestants import CSC, DENSE, SparseContestant


@dataclass(frozen=True)
class Traced:
    """The measurements of a contestant.

    Attributes
    ----------
    times : Times or None
        None where it was not timed.
    bytes_sent : int or None
        By a rank in a step, as the network interface counts them; None if unknown.
    bookkeeping_seconds : float or None
        The slowest rank's bookkeeping of chunks in a step; None for dense contestants.
    link_seconds : float or None
        The least time that the links between the hosts need for the sent gradients; None if unknown.
    """

    times: Times | None
    bytes_sent: int | None
    bookkeeping_seconds: float | None
    link_seconds: float | None


@dataclass(frozen=True)
class SparseResult:
    """One contestant's figures on one model; `core.results` explains the fields that all benches have.

    Attributes
    ----------
    method, model : str
        The method, "dense" or "csc", and the model.
    tensors, parameters : int
        Their numbers in the model.
    chunk_size : int
        Elements of a chunk; for dense contestants that of the run.
    density : float or None
        The share of the chunks that is sent; None for dense contestants.
    sent_share : float
        The same in whole chunks.
    bookkeeping_us : float or None
        The slowest rank's bookkeeping in a step: gathering and scattering chunks, updating residuals, selecting.
    bytes_sent : int or None
        By a rank in a step, as the network interface counts them.
    bytes_reported : int or None
        The same in messages to other nodes, as the library counts them, norms included.
    link_share : float or None
        The least time that the links between the hosts need for the gradients that are sent, over the median.
    wrong : int
        Wrong elements, norms and selections, summed over ranks and checks.
    """

    backend: str
    method: str
    model: str
    tensors: int
    parameters: int
    bytes: int
    chunk_size: int
    density: float | None
    sent_share: float
    dtype: str
    wire: str
    device: str
    ranks: int
    nodes: int
    iterations: int
    median_us: float | None
    min_us: float | None
    p95_us: float | None
    refill_median_us: float | None
    cpu_us: float | None
    bookkeeping_us: float | None
    bytes_sent: int | None
    bytes_reported: int | None
    link_share: float | None
    wrong: int

    @property
    def bookkeeping_share(self) -> float | None:
        """Bookkeeping over the step with writing the gradients."""
        if self.bookkeeping_us is None or self.refill_median_us is None:
            return None
        return self.bookkeeping_us / self.refill_median_us


def summarise_sparse(
    case: Case, model: Model, chunk_size: int, contestant: SparseContestant, nodes: int, wrong: int, traced: Traced
) -> SparseResult:
    """Make the result of a contestant from its measurements; times are ignored if it was wrong."""
    times = None if wrong else traced.times
    bookkeeping = traced.bookkeeping_seconds
    exchange = contestant.exchange
    found = shared(case, exchange.backend, exchange.wire, nodes, wrong, times, traced.link_seconds)
    del found["algbw_GBps"], found["busbw_GBps"]  # they would count gradients that are not sent
    return SparseResult(
        method=exchange.method,
        model=model.name,
        tensors=len(model.shapes),
        parameters=model.parameters,
        chunk_size=chunk_size,
        density=contestant.density,
        sent_share=round(contestant.share, 6),
        device="cpu",
        bookkeeping_us=None if times is None or bookkeeping is None else round(bookkeeping * 1e6, 3),
        bytes_sent=None if times is None else traced.bytes_sent,
        bytes_reported=None if times is None else contestant.bytes_reported(),
        **found,
    )


def _columns(results: Sequence[SparseResult], with_cpu: bool) -> list[Column]:
    def compared(backend: str) -> Column:
        def find(result: SparseResult) -> SparseResult | None:
            """Find the dense counterpart of a result; if it is ours, with the same wire."""
            place = result.model, result.chunk_size, DENSE, backend
            for other in results if result.backend == OURS else ():
                alike = backend != OURS or other.wire == result.wire
                if (other.model, other.chunk_size, other.method, other.backend) == place and alike:
                    return None if other == result else other
            return None

        return ratios(f"{'dense' if backend == OURS else backend} / this", find)

    def known(heading: str, unit: str, value: str, show: Callable[[float | None], str]) -> Column:
        return figure(heading, unit, value, show, shown=any(getattr(result, value) for result in results))

    dense = dict.fromkeys(result.backend for result in results if result.method == DENSE)
    return [
        name("model", "model", repeats=False),
        name("chunk", lambda result: format_size(result.chunk_size), repeats=False),
        name("", lambda result: result.method if result.backend == OURS else result.backend),
        name("density", lambda result: "" if result.density is None else f"{result.density:g}"),
        name("wire", "wire", shown=any(result.wire != result.dtype for result in results)),
        known("call", "ms", "median_us", milliseconds),
        known("min", "ms", "min_us", milliseconds),
        known("p95", "ms", "p95_us", milliseconds),
        known("filled", "ms", "refill_median_us", milliseconds),
        known("chunks", "ms", "bookkeeping_us", milliseconds),
        known("chunks", "% of filled", "bookkeeping_share", percentage),
        known("link", "%", "link_share", percentage),
        known("sent", "MB", "bytes_sent", megabytes),
        known("reported", "MB", "bytes_reported", megabytes),
        figure("cpu", "ms", "cpu_us", milliseconds, shown=with_cpu),
        *map(compared, dense),
    ]


def _legend(results: Sequence[SparseResult], with_cpu: bool) -> str:
    text = (
        "Times of a step are those of the slowest rank; call is the median with all gradients written before, filled "
        "that of writing them one by one, exchanging them as they come and waiting for the rest."
    )
    if any(result.method == CSC for result in results):
        text += (
            " chunks is what the slowest rank spends with gathering, updating residuals, scattering and choosing, "
            "while backpropagation and communication go on or not; % of filled."
        )
    if any(result.bytes_sent is not None for result in results):
        text += " sent is what a rank sends in a step, as the network interface counts it."
    if any(result.bytes_reported for result in results):
        text += " reported is the same as the library says, norms included."
    if any(result.link_share is not None for result in results):
        text += " link is the least time that the links need for the gradients that are sent, over call."
    if with_cpu:
        text += " cpu is the processor time of a step, of all ranks together."
    return text + " The last columns are the time of the dense exchange, over this one's."


LAYOUT = Layout(
    _columns, lambda result: (result.model, result.chunk_size), _legend, ("min", "p95", "link", "reported", "chunks")
)
