"""The result of ``gradientflow bench sparse``, and the table of results."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial

from gradientflow.machine import format_size

from ..core.case import Case
from ..core.measure import Times
from ..core.peers import OURS
from ..core.results import ContestantResult, shared, transport_column, wire_column
from ..core.shapes import Model
from ..core.table import Column, Layout, columns_of, figure, megabytes, name, percentage, ratios, shown
from .contestants import CSC, DENSE, SparseContestant


@dataclass(frozen=True, kw_only=True)
class SparseResult(ContestantResult):
    """The figures of a contestant on a model; `wrong` counts elements, norms and selections.

    Attributes
    ----------
    method, model : str
        Names of the method, "dense" or "csc", and of the model.
    tensors, parameters : int
        Numbers of tensors and parameters of the model.
    chunk_size : int
        Elements of a chunk; for dense contestants the chunk size of the run.
    density : float or None
        The requested share of the chunks; None for dense contestants.
    sent_share : float
        The share of the chunks that is sent, counted in whole chunks.
    bookkeeping_us : float or None
        The slowest rank's bookkeeping in a step: gathering and scattering chunks, updating residuals, selecting.
    bytes_sent : int or None
        Bytes that a rank sends in a step, counted by the network interface.
    bytes_reported : int or None
        Bytes that a rank sends to other nodes in messages in a step, counted by the library, norms included.
    """

    method: str
    model: str
    tensors: int
    parameters: int
    chunk_size: int
    density: float | None
    sent_share: float
    bookkeeping_us: float | None = field(metadata=shown("chunks"))
    bytes_sent: int | None = field(
        metadata=shown(
            *("sent", "MB", megabytes),
            note="sent is what a rank sends in a step, as the network interface counts it.",
        )
    )
    bytes_reported: int | None = field(
        metadata=shown(
            *("reported", "MB", megabytes),
            note="reported is what a rank sends in a step, as the library counts it, norms included.",
        )
    )

    @property
    def bookkeeping_share(self) -> float | None:
        """Bookkeeping over the step with writing the gradients."""
        if self.bookkeeping_us is None or self.refill_median_us is None:
            return None
        return self.bookkeeping_us / self.refill_median_us


def summarize_sparse(
    case: Case,
    model: Model,
    chunk_size: int,
    contestant: SparseContestant,
    bytes_sent: int | None,
    bookkeeping_seconds: float | None,
    nodes: int,
    wrong: int,
    times: Times | None,
    link_seconds: float | None = None,
) -> SparseResult:
    """Make the result of a contestant, from its measurements and the arguments of `core.results.shared`."""
    found = shared(case, contestant, nodes, wrong, times, link_seconds)
    return SparseResult(
        method=contestant.method,
        model=model.name,
        tensors=len(model.shapes),
        parameters=model.parameters,
        chunk_size=chunk_size,
        density=contestant.density,
        sent_share=round(contestant.share, 6),
        bookkeeping_us=None if bookkeeping_seconds is None else round(bookkeeping_seconds * 1e6, 3),
        bytes_sent=bytes_sent,
        bytes_reported=contestant.bytes_reported() if found["iterations"] else None,
        **found,
    )


def _columns(results: Sequence[SparseResult], with_cpu: bool) -> list[Column]:
    def compared(backend: str) -> Column:
        def find(result: SparseResult) -> SparseResult | None:
            """Find the dense counterpart of a result; if it is ours, with the same wire and transport."""
            place = result.model, result.chunk_size, DENSE, backend
            for other in results if result.backend == OURS else ():
                alike = backend != OURS or (other.wire, other.transport) == (result.wire, result.transport)
                if (other.model, other.chunk_size, other.method, other.backend) == place and alike:
                    return None if other == result else other
            return None

        heading = f"{'dense' if backend == OURS else backend} / this"
        return ratios(heading, find, note="The last columns are the time of the dense exchange, over this one's.")

    columns = partial(columns_of, SparseResult, results, time="ms")
    dense = dict.fromkeys(result.backend for result in results if result.method == DENSE)
    kept = any(result.bookkeeping_share for result in results)
    return [
        name("model", "model", repeats=False),
        name("chunk", lambda result: format_size(result.chunk_size), repeats=False),
        name("", lambda result: result.method if result.backend == OURS else result.backend),
        name("density", lambda result: "" if result.density is None else f"{result.density:g}"),
        transport_column(results),
        wire_column(results),
        *columns("median_us", "min_us", "p95_us", "refill_median_us", "bookkeeping_us"),
        figure("chunks", "% of filled", "bookkeeping_share", percentage, shown=kept),
        *columns("link_share", "bytes_sent", "bytes_reported"),
        *columns("cpu_us", when=with_cpu),
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
    return text


LAYOUT = Layout(_columns, lambda result: (result.model, result.chunk_size), _legend)
