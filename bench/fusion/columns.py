"""The result of ``gradientflow bench fusion``, and the table of results."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..core.case import Case
from ..core.measure import Times
from ..core.peers import OURS
from ..core.plan import format_size, threshold_bytes
from ..core.results import shared
from ..core.shapes import MODELS, Model
from ..core.table import Column, Layout, bandwidth, figure, milliseconds, name, percentage, ratios, timed
from .contestants import COPY_FUSION, PER_TENSOR, FusionContestant


@dataclass(frozen=True)
class FusionResult:
    """One contestant's figures on one model; `core.results` explains the fields that all benches have.

    Attributes
    ----------
    method, model : str
        The contestant, and the model.
    tensors, parameters : int
        Their numbers in the model.
    memory : str
        The memory of the tensors.
    threshold_bytes : int or str or None
        The threshold of a pool, possibly ``"inf"``, or the buffer size of copy fusion.
    calls : int
        Allreduces in a step.
    bytes_copied : int
        Bytes that each rank copies into and out of fusion buffers in a step.
    """

    backend: str
    method: str
    model: str
    tensors: int
    parameters: int
    bytes: int
    memory: str
    threshold_bytes: int | str | None
    calls: int
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
    algbw_GBps: float | None  # noqa: N815 - the unit's own spelling, and a name scripts rely on
    busbw_GBps: float | None  # noqa: N815
    cpu_us: float | None
    link_share: float | None
    bytes_copied: int
    wrong: int


def summarise_step(
    case: Case,
    model: Model,
    contestant: FusionContestant,
    nodes: int,
    copied: int,
    wrong: int,
    times: Times | None,
    link_seconds: float | None,
) -> FusionResult:
    """Make the result of a contestant from its times, which are ignored if it was wrong."""
    return FusionResult(
        method=contestant.method,
        model=model.name,
        tensors=len(model.shapes),
        parameters=model.parameters,
        memory=contestant.memory,
        threshold_bytes=threshold_bytes(contestant.threshold),
        calls=contestant.calls,
        device="cpu",
        bytes_copied=copied,
        **shared(case, contestant.backend, contestant.wire, nodes, wrong, times, link_seconds),
    )


def _columns(results: Sequence[FusionResult], with_cpu: bool) -> list[Column]:
    fused = {(result.model, result.backend): result for result in results if result.method == COPY_FUSION}

    def compared(peer: str) -> Column:
        def find(result: FusionResult) -> FusionResult | None:
            return fused.get((result.model, peer)) if result.backend == OURS else None

        return ratios(f"copy {peer} / ours", find)

    def method(result: FusionResult) -> str:
        title = result.method.replace("-", " ")
        return f"{title}, {result.memory}" if result.method == PER_TENSOR else title

    def threshold(result: FusionResult) -> str:
        size = result.threshold_bytes
        return format_size(size) if isinstance(size, int) else size or ""

    return [
        name("model", lambda result: MODELS[result.model].title, repeats=False),
        name("", method),
        name("", lambda result: "ours" if result.backend == OURS else result.backend),
        name("wire", "wire", shown=any(result.wire != result.dtype for result in results)),
        name("threshold", threshold, justify="right"),
        *timed("ms", milliseconds),
        figure("filled", "ms", "refill_median_us", milliseconds),
        figure("algbw", "GB/s", "algbw_GBps", bandwidth),
        figure("busbw", "GB/s", "busbw_GBps", bandwidth),
        figure("link", "%", "link_share", percentage, shown=any(r.link_share is not None for r in results)),
        figure("cpu", "ms", "cpu_us", milliseconds, shown=with_cpu),
        figure("calls", "", "calls", lambda calls: f"{calls:.0f}"),
        figure("copied", "MiB", "bytes_copied", lambda count: f"{count / 2**20:.1f}" if count else "0"),
        *(compared(peer) for peer in dict.fromkeys(result.backend for result in results) if peer != OURS),
    ]


def _legend(results: Sequence[FusionResult], with_cpu: bool) -> str:
    text = (
        "Times of a step are those of the slowest rank; call is the median with all gradients written before, filled "
        "that of writing them one by one and averaging them, timed together. copied is what a rank copies for fusion "
        "in a step."
    )
    if any(result.link_share is not None for result in results):
        text += " link is the least time that the links need for what has to be sent, over call."
    if with_cpu:
        text += " cpu is the processor time of a step, of all ranks together."
    if any(result.backend != OURS for result in results):
        text += " The last columns are the time of copy fusion over the peer's allreduce, over ours."
    return text


LAYOUT = Layout(_columns, lambda result: result.model, _legend, ("min", "busbw", "p95", "algbw", "link", "calls"))
