"""Contestants of ``gradientflow bench sparse``: the gradients of a model, dense and by important chunks.

The dense contestants are a `GradientPool`, and one allreduce of all gradients by each peer. The sparse contestants are
a `SparseGradientPool` with each density. Each has its own tensors, marked as ready as soon as they are written.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

import gradientflow as gf

from ..core.case import Case
from ..core.data import Values
from ..core.peers import OURS, Peer
from ..core.shapes import Model
from ..fusion.contestants import FusionContestant
from .plan import SparsePlan

if TYPE_CHECKING:
    from gradientflow.communicator import Communicator

DENSE = "dense"
CSC = "csc"  # coarse-grained sparse communication

_THRESHOLD = "auto"


@dataclass(frozen=True)
class SparseContestant(FusionContestant):
    """A way to exchange the gradients of a model; its `method` is "dense" or "csc".

    Attributes
    ----------
    pool : GradientPool, SparseGradientPool or None
        The pool; None for a peer.
    density : float or None
        The share of the chunks that is sent; None for dense contestants.
    bookkeeping : list of float
        Seconds of this rank's work on chunks in each step of a sparse pool, without communication.
    """

    pool: Any = None
    density: float | None = None
    bookkeeping: list[float] = field(default_factory=list)

    @property
    def name(self) -> str:
        """The contestant in words."""
        what = DENSE if self.density is None else f"{CSC} {self.density:g}"
        by = "" if self.backend == OURS else f", {self.backend}"
        wire = "" if self.wire == "float32" else f", {self.wire} on the wire"
        return f"{what}{by}{wire}"

    @property
    def share(self) -> float:
        """The share of the gradients that is sent."""
        return 1.0 if self.density is None else float(np.count_nonzero(self.pool.important)) / self.pool.chunks

    def bytes_reported(self) -> int | None:
        """Give the bytes that this rank sent in the last step, as counted by the library; None if it does not count."""
        if self.pool is None:
            return None
        sent = [report.bytes_sent for report in self.pool.reports]
        return None if None in sent else sum(sent)


def sparse_contestants(
    comm: Communicator, case: Case, model: Model, chunk_size: int, plan: SparsePlan, peers: Sequence[Peer]
) -> Iterator[SparseContestant]:
    """Make all contestants for a model and a chunk size, dense contestants first. Collective."""
    for wire in plan.wires:
        dense = gf.GradientPool(comm, model.gradients, case.dtype, _THRESHOLD, _rounding(case, wire))
        yield _over_pool(DENSE, dense, wire)
    for name, peer in zip(plan.peers, peers, strict=False):
        yield _from_peer(name, peer, case, model)
    for wire in plan.wires:
        for density in plan.densities:
            pool = gf.SparseGradientPool(
                *(comm, model.gradients, case.dtype),
                density=density,
                momentum=plan.momentum,
                chunk_size=chunk_size,
                fusion_threshold=_THRESHOLD,
                wire=_rounding(case, wire),
            )
            yield _over_pool(CSC, pool, wire, density)


def _rounding(case: Case, wire: str) -> str | None:
    return None if wire == case.dtype else wire


def _over_pool(method: str, pool: Any, wire: str, density: float | None = None) -> SparseContestant:
    tensors = [view.reshape(-1) for view in pool.views]
    bookkeeping: list[float] = []

    def wait_and_account() -> None:
        pool.wait()
        bookkeeping.append(pool.bookkeeping_seconds)

    return SparseContestant(
        *(method, OURS, "pool", _THRESHOLD, wire, tensors, len(tensors)),
        ready=pool.ready,
        wait=pool.wait if density is None else wait_and_account,
        close=pool.close,
        pool=pool,
        density=density,
        bookkeeping=bookkeeping,
    )


def _from_peer(name: str, peer: Peer, case: Case, model: Model) -> SparseContestant:
    """Make a peer's contestant: one allreduce of all gradients once they are written, the best without overlap."""
    gradients = np.empty(model.parameters, case.dtype)
    ends = np.cumsum([int(np.prod(shape)) for shape in model.gradients])
    tensors: list[Values] = np.split(gradients, ends[:-1])
    call = peer.contestant(replace(case, size=gradients.nbytes), gradients).call
    return SparseContestant(*(DENSE, name, "array", None, case.dtype, tensors, 1), ready=lambda index: None, wait=call)
