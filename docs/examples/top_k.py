"""Top-k with error feedback: the largest gradients travel, the rest is kept for later (Stich et al., 2018)."""

import numpy as np

from gradientflow.strategies import ArraySynchronizer, Profile, Strategy


class TopK(Strategy):
    """Of each tensor, the share ``density`` of the entries with the largest magnitudes is averaged."""

    def __init__(self, density=0.01):
        self.density = density

    def profile(self):
        return Profile(is_lossless=True)

    def bind(self, comm, layout):
        return Largest(comm, layout, self)


class Largest(ArraySynchronizer):
    state_names = ("residuals",)

    def __init__(self, comm, layout, strategy):
        super().__init__(comm, layout, strategy)
        self.residuals = [np.zeros(gradient.shape, np.float32) for gradient in self.gradients]

    def gradient_ready(self, index, gradient):
        flat, residual = gradient.reshape(-1), self.residuals[index].reshape(-1)
        residual += flat / self.loss_scale
        k = max(1, int(self.strategy.density * flat.size)) if flat.size else 0
        chosen = np.argsort(-np.abs(residual), kind="stable")[:k]
        indices, values = self.comm.allgather(chosen), self.comm.allgather(residual[chosen])
        residual[chosen] = 0
        flat[...] = 0
        np.add.at(flat, indices.reshape(-1), values.reshape(-1) * (self.loss_scale / self.comm.size))
