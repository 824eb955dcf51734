"""Measurement, for each layer during training, of the assumption behind the convergence of sparsification."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from gradientflow.communicator import Communicator
from gradientflow.pools.residual import as_float32
from gradientflow.strategies.layout import Layout

from .tables import text_table

if TYPE_CHECKING:
    from gradientflow.pools.top_k import LayerSelection, TopKGradientPool

Vector = npt.NDArray[np.float32]


class LayerMonitor(NamedTuple):
    """The measurements of a layer.

    Attributes
    ----------
    name : str
        Name of its first tensor.
    elements, k, sent : int
        Numbers of its elements, of entries to be sent, and of entries that this rank has sent.
    ratio : float
        Compression ratio of the layer.
    delta : float
        The squared norm of the sum over the ranks of unsent values, divided by (1 - k / elements) and by the squared
        norm of the sum of x. Here x is a rank's gradient plus residual before the selection. At most 1 where LAGS-SGD's
        Assumption 1 holds. The same on all ranks.
    residual_norm : float
        L2 norm of this rank's residual.
    """

    name: str
    elements: int
    k: int
    sent: int
    ratio: float
    delta: float
    residual_norm: float


@dataclass(frozen=True)
class MonitorTable:
    """The measurements of an iteration. Its `str` is a table.

    Attributes
    ----------
    iteration : int
        Number of iterations that had ended.
    layers : tuple of LayerMonitor
        The layers, in the order of backpropagation.
    """

    iteration: int
    layers: tuple[LayerMonitor, ...]

    @property
    def worst(self) -> LayerMonitor | None:
        """The layer with the largest delta."""
        return max(self.layers, key=lambda layer: layer.delta, default=None)

    def __str__(self) -> str:
        """Write a table of the layers."""
        rows = [
            (
                each.name,
                f"{each.elements:,}",
                f"{each.ratio:g}",
                f"{each.k:,}",
                f"{each.sent:,}",
                f"{each.delta:.3f}",
                f"{each.residual_norm:.3g}",
            )
            for each in self.layers
        ]
        return text_table(("layer", "elements", "ratio", "k", "sent", "delta", "residual norm"), rows)


class _Part(NamedTuple):
    """The data of a pool, tensor after tensor: the sum of the ranks' sent entries, and this rank's residuals."""

    names: list[str]
    places: list[int]  # offsets of the tensors, then the end of the last
    sent: Vector
    kept: Vector
    layers: Sequence[LayerSelection]


class Monitor:
    """Measurement of values that sparsification leaves unsent.

    The input of a rank's selection is the sum of the entries that it then sends and its new residual. The gradients
    already have the sum of the sent entries over the ranks, so only the residuals have to be summed.
    """

    def __init__(self) -> None:
        self._parts: list[_Part] = []
        self._iteration = 0

    def take(self, layout: Layout, pools: Sequence[TopKGradientPool], ranks: int) -> None:
        """Copy gradients and this rank's residuals, before a step changes them. Does not communicate."""
        self._iteration = pools[0].iteration
        self._parts = []
        for (_, indices), pool in zip(layout.groups, pools, strict=True):
            memory = pool.memory if isinstance(pool.memory, np.ndarray) else pool.memory.get()
            gradients = as_float32(memory, pool.dtype)
            counts = [layout.counts[index] for index in indices]
            starts = [offset * len(gradients) // max(1, pool.nbytes) for offset in pool.offsets]
            sent = np.concatenate([gradients[at : at + count] for at, count in zip(starts, counts, strict=True)])
            sent *= np.float32(ranks / pool.loss_scale)
            kept = np.concatenate([residual.reshape(-1) for residual in pool.residuals])
            names = [layout.names[index] for index in indices]
            self._parts.append(_Part(names, [0, *accumulate(counts)], sent, kept, pool.layer_selections))

    def reset(self) -> None:
        """Drop the copies."""
        self._parts = []

    def measure(self, comm: Communicator) -> MonitorTable | None:
        """Return the measurements of the copies; None if there are none. Collective."""
        if not self._parts:
            return None
        layers = []
        with comm.span("monitor"):
            for part in self._parts:
                left = comm.allreduce(part.kept.copy(), "sum")
                for each in part.layers:
                    own = slice(part.places[each.first_tensor], part.places[each.first_tensor + each.tensors])
                    delta, norm = _delta(left[own], part.sent[own], each.k), float(np.linalg.norm(part.kept[own]))
                    name = part.names[each.first_tensor]
                    layers.append(LayerMonitor(name, each.elements, each.k, each.sent, each.ratio, delta, norm))
        self.reset()
        table = MonitorTable(self._iteration, tuple(layers))
        if table.worst is not None:
            with comm.span(f"largest delta {table.worst.delta:.3f}: {table.worst.name}"):
                pass  # the timeline shows the span
        return table


def _delta(left: Vector, sent: Vector, k: int) -> float:
    """Return delta of a layer, from the sums over the ranks of residuals and of sent entries."""
    unsent = left.astype(np.float64)
    everything = unsent + sent
    share, norm = 1 - k / max(1, len(left)), float(everything @ everything)
    return float(unsent @ unsent) / (share * norm) if share > 0 and norm > 0 else 0.0


__all__ = ["LayerMonitor", "Monitor", "MonitorTable"]
