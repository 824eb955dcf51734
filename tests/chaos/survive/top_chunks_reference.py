"""Coarse-grained sparse communication in straight-line NumPy: all ranks at once."""

from __future__ import annotations

import math

import numpy as np


class StraightLine:
    """Algorithm 1 of the paper and its choice of chunks, for all ranks at once, written without any of the library.

    Gradients of all ranks are rows. What is sent is averaged.
    """

    def __init__(self, elements: int, chunk_size: int, momentum: float, ranks: int) -> None:
        self.chunk_size = min(chunk_size, elements)
        self.edges = [*range(0, elements, self.chunk_size), elements]
        self.residuals = np.zeros((ranks, elements), np.float32)
        self.important = [True] * (len(self.edges) - 1)
        self.momentum = np.float32(momentum)
        self.velocity = np.zeros(elements, np.float32)
        self.weights = np.ones(elements, np.float32)
        self.norms: list[float] = []

    def iterate(self, gradients: np.ndarray, density: float) -> np.ndarray:
        """Return what is sent of these gradients of all ranks; choose the chunks of the next iteration."""
        ranks = len(gradients)
        total = gradients.astype(np.float32) + self.residuals
        used = np.zeros(gradients.shape[1], np.float32)
        self.norms = []
        for chunk, is_important in enumerate(self.important):
            part = slice(self.edges[chunk], self.edges[chunk + 1])
            if is_important:
                used[part] = total[:, part].sum(axis=0, dtype=np.float32) / np.float32(ranks)
                self.residuals[:, part] = 0
                self.norms.append(ranks * float(np.abs(used[part].astype(np.float64)).sum()))
            else:
                self.residuals[:, part] = self.momentum * total[:, part]
                self.norms.append(float(np.abs(total[:, part].astype(np.float64)).sum()))
        self.sent = [chunk for chunk, is_important in enumerate(self.important) if is_important]
        number = max(1, math.ceil(density * len(self.important) - 1e-9))
        first = sorted(range(len(self.norms)), key=lambda chunk: (-self.norms[chunk], chunk))[:number]
        self.important = [chunk in first for chunk in range(len(self.norms))]
        return used

    def step(self, used: np.ndarray, rate: float, momentum: float, weight_decay: float) -> None:
        """Make a step with what was sent."""
        for chunk in self.sent:
            part = slice(self.edges[chunk], self.edges[chunk + 1])
            direction = used[part] + np.float32(weight_decay) * self.weights[part]
            self.velocity[part] = np.float32(momentum) * self.velocity[part] + np.float32(rate) * direction
            self.weights[part] -= self.velocity[part]


__all__ = ["StraightLine"]
