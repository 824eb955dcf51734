"""The contestants of ``gradientflow bench sparse``: all gradients of a model, dense and by important chunks.

Dense are a `GradientPool`, and one allreduce over everything by each peer; sparse is a `SparseGradientPool` with each
density. Each has tensors of its own, and is told of each as soon as that is written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
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
class SparseContestant:
    """One way to exchange the gradients of a model.

    Attributes
    ----------
    exchange : FusionContestant
        What it does; `method` is "dense" or "csc".
    pool : GradientPool, SparseGradientPool or None
        What does it; None for a peer.
    density : float or None
        The share of the chunks that is sent; None where it is dense.
    bookkeeping : list of float
        A sparse pool's own account of each step: seconds that this rank spent with chunks, apart from communication.
    """

    exchange: FusionContestant
    pool: Any
    density: float | None
    bookkeeping: list[float]

    @property
    def name(self) -> str:
        """The contestant in words."""
        what = DENSE if self.density is None else f"{CSC} {self.density:g}"
        by = "" if self.exchange.backend == OURS else f", {self.exchange.backend}"
        wire = "" if self.exchange.wire == "float32" else f", {self.exchange.wire} on the wire"
        return f"{what}{by}{wire}"

    @property
    def share(self) -> float:
        """What of the gradients is sent."""
        return 1.0 if self.density is None else float(np.count_nonzero(self.pool.important)) / self.pool.chunks

    def bytes_reported(self) -> int | None:
        """Give the bytes that the library says this rank sent in the last step; None where it does not say."""
        if self.pool is None:
            return None
        sent = [report.bytes_sent for report in self.pool.reports]
        return None if None in sent else sum(sent)

    @property
    def inputs(self) -> Sequence[Values]:
        """Where gradients are written to."""
        return self.exchange.tensors

    @property
    def results(self) -> Sequence[Values]:
        """Where the update is."""
        return self.exchange.tensors

    def push(self) -> None:
        """Nothing to do: gradients are where they are exchanged."""

    def pull(self) -> None:
        """Nothing to do, likewise."""

    def call(self) -> None:
        """Exchange gradients that are written already."""
        self.exchange.call()

    def close(self) -> None:
        """Give back what it holds; all ranks together."""
        self.exchange.close()


def sparse_contestants(
    comm: Communicator, case: Case, model: Model, chunk_size: int, plan: SparsePlan, peers: Sequence[Peer]
) -> Iterator[SparseContestant]:
    """Make all contestants for a model and a chunk size; all ranks together.

    Parameters
    ----------
    comm : Communicator
        The ranks.
    case : Case
        The allreduce of all gradients, for element type and ranks.
    model : Model
        Whose gradients are exchanged.
    chunk_size : int
        Elements of a chunk.
    plan : SparsePlan
        Which variants there are.
    peers : sequence of Peer
        The other libraries.

    Yields
    ------
    SparseContestant
        Dense ones first.
    """
    for wire in plan.wires:
        dense = gf.GradientPool(comm, model.gradients, case.dtype, _THRESHOLD, _rounding(case, wire))
        yield SparseContestant(_over_pool(DENSE, dense, wire, dense.wait), dense, None, [])
    for name, peer in zip(plan.peers, peers, strict=True):
        yield SparseContestant(_from_peer(name, peer, case, model), None, None, [])
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
            accounts: list[float] = []
            exchange = _over_pool(CSC, pool, wire, _accounting_wait(pool, accounts))
            yield SparseContestant(exchange, pool, density, accounts)


def _rounding(case: Case, wire: str) -> str | None:
    return None if wire == case.dtype else wire


def _over_pool(method: str, pool: Any, wire: str, wait: Callable[[], object]) -> FusionContestant:
    tensors = [view.reshape(-1) for view in pool.views]
    return FusionContestant(
        *(method, OURS, "pool", _THRESHOLD, wire, tensors, len(tensors)), ready=pool.ready, wait=wait, close=pool.close
    )


def _accounting_wait(pool: Any, accounts: list[float]) -> Callable[[], object]:
    def wait() -> None:
        pool.wait()
        accounts.append(pool.bookkeeping_seconds)

    return wait


def _from_peer(name: str, peer: Peer, case: Case, model: Model) -> FusionContestant:
    """Let a peer reduce everything at once when all is written, which is the best it can do without overlap."""
    gradients = np.empty(model.parameters, case.dtype)
    ends = np.cumsum([int(np.prod(shape)) for shape in model.gradients])
    tensors: list[Values] = np.split(gradients, ends[:-1])
    call = peer.contestant(replace(case, size=gradients.nbytes), gradients).call
    return FusionContestant(*(DENSE, name, "array", None, case.dtype, tensors, 1), ready=lambda index: None, wait=call)
