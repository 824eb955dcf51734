"""The result of ``gradientflow bench fusion``, and the table of results."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial

from gradientflow.machine import format_size

from ..core.case import Case
from ..core.measure import Times
from ..core.plan import threshold_bytes
from ..core.results import BACKEND, BandwidthResult, over_peers, shared_with_bandwidth, transport_column, wire_column
from ..core.shapes import MODELS, Model
from ..core.table import Column, Layout, columns_of, name, shown
from .contestants import COPY_FUSION, PER_TENSOR, FusionContestant


@dataclass(frozen=True, kw_only=True)
class FusionResult(BandwidthResult):
    """The figures of a contestant on a model.

    Attributes
    ----------
    method, model : str
        Names of the contestant and the model.
    tensors, parameters : int
        Numbers of tensors and parameters of the model.
    memory : str
        The memory of the tensors.
    threshold_bytes : int or str or None
        The threshold of a pool, possibly ``"inf"``, or the buffer size of copy fusion.
    calls : int
        Number of allreduces in a step.
    bytes_copied : int
        Bytes that each rank copies into and out of fusion buffers in a step.
    """

    method: str
    model: str
    tensors: int
    parameters: int
    memory: str
    threshold_bytes: int | str | None
    calls: int = field(metadata=shown("calls", "", "{:.0f}".format))
    bytes_copied: int = field(metadata=shown("copied", "MiB", lambda count: f"{count / 2**20:.1f}" if count else "0"))


def summarize_step(
    case: Case,
    model: Model,
    contestant: FusionContestant,
    copied: int,
    nodes: int,
    wrong: int,
    times: Times | None,
    link_seconds: float | None = None,
) -> FusionResult:
    """Make the result of a contestant that has copied `copied` bytes, from the arguments of `core.results.shared`."""
    return FusionResult(
        method=contestant.method,
        model=model.name,
        tensors=len(model.shapes),
        parameters=model.parameters,
        memory=contestant.memory,
        threshold_bytes=threshold_bytes(contestant.threshold),
        calls=contestant.calls,
        bytes_copied=copied,
        **shared_with_bandwidth(case, contestant, nodes, wrong, times, link_seconds),
    )


def _columns(results: Sequence[FusionResult], with_cpu: bool) -> list[Column]:
    def method(result: FusionResult) -> str:
        title = result.method.replace("-", " ")
        return f"{title}, {result.memory}" if result.method == PER_TENSOR else title

    def threshold(result: FusionResult) -> str:
        size = result.threshold_bytes
        return format_size(size) if isinstance(size, int) else size or ""

    columns = partial(columns_of, FusionResult, results, time="ms")
    return [
        name("model", lambda result: MODELS[result.model].title, repeats=False),
        name("", method),
        BACKEND,
        transport_column(results),
        wire_column(results),
        name("threshold", threshold, justify="right"),
        *columns("median_us", "min_us", "p95_us", "refill_median_us", "algbw_GBps", "busbw_GBps", "link_share"),
        *columns("cpu_us", when=with_cpu),
        *columns("calls", "bytes_copied"),
        *over_peers(
            [result for result in results if result.method == COPY_FUSION],
            lambda result: result.model,
            "copy {} / ours",
            note="The last columns are the time of copy fusion over the peer's allreduce, over ours.",
        ),
    ]


def _legend(results: Sequence[FusionResult], with_cpu: bool) -> str:
    return (
        "Times of a step are those of the slowest rank; call is the median with all gradients written before, filled "
        "that of writing them one by one and averaging them, timed together. copied is what a rank copies for fusion "
        "in a step."
    )


LAYOUT = Layout(_columns, lambda result: result.model, _legend)
