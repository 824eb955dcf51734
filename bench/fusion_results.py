"""Results of ``gradientflow bench fusion``: the record of one contestant on one model."""

from __future__ import annotations

import math
from dataclasses import dataclass

from .collectives import Case
from .fusion import FusionContestant
from .fusion_plan import Threshold
from .results import Times, figures
from .shapes import Model


@dataclass(frozen=True)
class FusionResult:
    """One contestant's figures; scripts rely on the names.

    Attributes
    ----------
    backend, method, model : str
        What was measured.
    tensors, parameters, bytes : int
        On how many gradients.
    memory : str
        Where the tensors lie.
    threshold_bytes : int or str or None
        Of a pool, which may be ``"inf"``, or the size of the buffer of copy fusion.
    calls : int
        Allreduces in a step.
    dtype, wire, device : str
        Element type, what travels between nodes, and where.
    ranks, nodes, iterations : int
        The number of ranks, of nodes, of timed steps.
    median_us, min_us, p95_us : float or None
        Of a step: all gradients averaged that are written already. None, like all figures, where a result was wrong.
    refill_median_us : float or None
        Of a step together with writing the gradients.
    algbw_GBps, busbw_GBps : float or None
        Bandwidth at the median, in 10^9 bytes per second.
    cpu_us : float or None
        Processor time of a step, user and system, of all ranks' processes together; the mean.
    link_share : float or None
        The least time that the links between the hosts need for a step, over the median; None where their rate is not
        known.
    bytes_copied : int
        Into and out of buffers for fusion in a step, by each rank.
    wrong : int
        Wrong elements, summed over ranks and checks.
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
    """Turn one contestant's times into its result.

    Parameters
    ----------
    case : Case
        The allreduce of all gradients.
    model : Model
        Whose gradients they are.
    contestant : FusionContestant
        Who averaged them.
    nodes : int
        Over how many nodes.
    copied : int
        Bytes copied in a step.
    wrong : int
        Wrong elements found.
    times : Times or None
        None where it was not timed; they are ignored where a result was wrong.
    link_seconds : float or None
        The least time that the links between the hosts need for a step, where that is known.

    Returns
    -------
    FusionResult
        The record.
    """
    timed = None if wrong else times
    threshold = contestant.threshold
    return FusionResult(
        backend=contestant.backend,
        method=contestant.method,
        model=model.name,
        tensors=len(model.shapes),
        parameters=model.parameters,
        bytes=case.bytes,
        memory=contestant.memory,
        threshold_bytes=_threshold_bytes(threshold),
        calls=contestant.calls,
        dtype=case.dtype,
        wire=contestant.wire,
        device="cpu",
        ranks=case.ranks,
        nodes=nodes,
        iterations=0 if timed is None else len(timed.call),
        bytes_copied=copied,
        wrong=wrong,
        **figures(case, timed, link_seconds),
    )


def _threshold_bytes(threshold: Threshold | None) -> int | str | None:
    if threshold is None or isinstance(threshold, str):
        return threshold
    return "inf" if math.isinf(threshold) else int(threshold)
