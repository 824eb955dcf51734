"""Results of ``gradientflow bench sparse``: the record of one contestant on one model."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .collectives import Case
from .results import Times
from .shapes import Model
from .sparse import SparseContestant


@dataclass(frozen=True)
class Traced:
    """What was measured of a contestant.

    Attributes
    ----------
    times : Times or None
        None where it was not timed.
    bytes_sent : int or None
        By a rank in a step, as the network interface counts them; None where that is not known.
    bookkeeping_seconds : float or None
        What the slowest rank spent with chunks in a step; None where nothing is sparse.
    link_seconds : float or None
        The least time that the links between the hosts need for the gradients that are sent, where that is known.
    """

    times: Times | None
    bytes_sent: int | None
    bookkeeping_seconds: float | None
    link_seconds: float | None


@dataclass(frozen=True)
class SparseResult:
    """One contestant's figures; scripts rely on the names.

    Attributes
    ----------
    backend, method, model : str
        What was measured; the method is "dense" or "csc".
    tensors, parameters, bytes : int
        On how many gradients.
    chunk_size : int
        Elements of a chunk; of dense contestants that of the sparse ones beside which they were measured.
    density : float or None
        The share of the chunks that is sent; None where it is dense.
    sent_share : float
        The same in whole chunks.
    dtype, wire, device : str
        Element type, what travels between nodes, and where.
    ranks, nodes, iterations : int
        The number of ranks, of nodes, of timed steps.
    median_us, min_us, p95_us : float or None
        Of a step with gradients that are written already. None, like all figures, where a result was wrong.
    refill_median_us : float or None
        Of a step together with writing the gradients.
    cpu_us : float or None
        Processor time of a step, user and system, of all ranks' processes together; the mean.
    bookkeeping_us : float or None
        What the slowest rank spends with chunks in a step: gathering, holding back, scattering, choosing.
    bytes_sent : int or None
        By a rank in a step, as the network interface counts them.
    bytes_reported : int or None
        The same in messages to other nodes, as the library itself says, norms included.
    link_share : float or None
        The least time that the links between the hosts need for the gradients that are sent, over the median.
    wrong : int
        Wrong elements, norms and choices, summed over ranks and checks.
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
        """Bookkeeping over the step that writes the gradients as well."""
        if self.bookkeeping_us is None or self.refill_median_us is None:
            return None
        return self.bookkeeping_us / self.refill_median_us


def summarise_sparse(
    case: Case, model: Model, chunk_size: int, contestant: SparseContestant, nodes: int, wrong: int, traced: Traced
) -> SparseResult:
    """Turn what was measured of one contestant into its result.

    Parameters
    ----------
    case : Case
        The allreduce of all gradients.
    model : Model
        Whose gradients they are.
    chunk_size : int
        Elements of a chunk.
    contestant : SparseContestant
        Who exchanged them.
    nodes : int
        Over how many nodes.
    wrong : int
        How much was wrong; times are ignored then.
    traced : Traced
        What was measured.

    Returns
    -------
    SparseResult
        The record.
    """
    times = None if wrong else traced.times
    call = None if times is None else times.call / 1e3
    bookkeeping = traced.bookkeeping_seconds
    link = traced.link_seconds
    exchange = contestant.exchange
    return SparseResult(
        backend=exchange.backend,
        method=exchange.method,
        model=model.name,
        tensors=len(model.shapes),
        parameters=model.parameters,
        bytes=case.bytes,
        chunk_size=chunk_size,
        density=contestant.density,
        sent_share=round(contestant.share, 6),
        dtype=case.dtype,
        wire=exchange.wire,
        device="cpu",
        ranks=case.ranks,
        nodes=nodes,
        iterations=0 if call is None else len(call),
        median_us=None if call is None else round(float(np.median(call)), 3),
        min_us=None if call is None else round(float(call.min()), 3),
        p95_us=None if call is None else round(float(np.percentile(call, 95)), 3),
        refill_median_us=None if times is None else round(float(np.median(times.refill)) / 1e3, 3),
        cpu_us=None if times is None else round(float(times.processor.mean()) / 1e3, 3),
        bookkeeping_us=None if times is None or bookkeeping is None else round(bookkeeping * 1e6, 3),
        bytes_sent=None if times is None else traced.bytes_sent,
        bytes_reported=None if times is None else contestant.bytes_reported(),
        link_share=None if call is None or link is None else round(link * 1e6 / float(np.median(call)), 4),
        wrong=wrong,
    )
