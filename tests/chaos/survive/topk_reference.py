"""Top-k sparsification with error feedback in straight-line NumPy: all ranks at once, layer by layer."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Vector = NDArray[np.float32]


def largest(values: Vector, count: int) -> NDArray[np.intp]:
    """Return where the largest magnitudes are, in order; of equal ones the first."""
    ranked = np.argsort(-np.abs(np.asarray(values, np.float64)), kind="stable")
    return np.sort(ranked[:count])


class Reference:
    """What every rank sends, keeps and gets.

    Parameters
    ----------
    ranks : int
        How many.
    elements : sequence of int
        Of each layer, the last one first.
    ratios : sequence of float
        Of each layer.
    momentum, masking, clip
        Of DGC: momentum correction, its masking, and the norm of a rank's gradient of a layer, times the root of P.
    rounded : callable
        What values travel as.
    """

    def __init__(
        self,
        ranks: int,
        elements: Sequence[int],
        ratios: Sequence[float],
        *,
        momentum: float | None = None,
        masking: bool = True,
        clip: float | None = None,
        rounded: Callable[[Vector], Vector] = np.copy,
    ) -> None:
        self.ranks, self.elements, self.ratios = ranks, list(elements), list(ratios)
        self.momentum, self.masking, self.clip, self.rounded = momentum, masking, clip, rounded
        self.residuals = [[np.zeros(count, np.float32) for count in elements] for _ in range(ranks)]
        self.velocities = [[np.zeros(count, np.float32) for count in elements] for _ in range(ranks)]
        self.sent: list[list[Vector]] = []  # of each rank, each layer
        self.deltas: list[float] = []  # of each layer: Assumption 1

    def step(self, gradients: Sequence[Sequence[Vector]], chosen: Any = None) -> list[NDArray[np.float64]]:
        """Return the mean of what the ranks send of each layer.

        Parameters
        ----------
        gradients : sequence
            Of each rank, each layer: a flat vector.
        chosen : callable, optional
            ``chosen(rank, layer)``: what is sent in place of the largest.
        """
        self.sent = [[] for _ in range(self.ranks)]
        self.deltas = []
        means = []
        for layer, (count, ratio) in enumerate(zip(self.elements, self.ratios, strict=True)):
            k = math.ceil(count / ratio)
            everything, total = np.zeros(count), np.zeros(count)
            for rank in range(self.ranks):
                added = np.array(gradients[rank][layer], np.float32).reshape(-1)
                if self.clip is not None:
                    limit, norm = self.clip * math.sqrt(self.ranks), float(np.linalg.norm(added.astype(np.float64)))
                    if norm > limit:
                        added = added * np.float32(limit / norm)
                if self.momentum is not None:
                    velocity = self.velocities[rank][layer]
                    velocity[...] = np.float32(self.momentum) * velocity + added
                    added = velocity
                accumulated = self.residuals[rank][layer] + added
                places = largest(accumulated, k) if chosen is None else chosen(rank, layer)
                sent = np.zeros(count, np.float32)
                sent[places] = self.rounded(accumulated[places])
                self.residuals[rank][layer] = accumulated - sent
                if self.momentum is not None and self.masking:
                    self.velocities[rank][layer][places] = 0
                self.sent[rank].append(sent)
                total += sent
                everything += accumulated
            means.append(total / self.ranks)
            rest, norm = float(((everything - total) ** 2).sum()), float((everything**2).sum())
            self.deltas.append(rest / ((1 - k / count) * norm) if k < count and norm else 0.0)
        return means


__all__ = ["Reference", "largest"]
