"""Sign-SGD with majority vote (Bernstein et al., 2018): one sign for each gradient, and the sign of their sum."""

import numpy as np

from gradientflow.strategies import ArraySynchronizer, Strategy


class SignSGD(Strategy):
    """The step uses ``scale`` times the sign on which most ranks agree; 0 where as many are for as against."""

    def __init__(self, scale=1.0):
        self.scale = scale

    def bind(self, comm, layout):
        return Votes(comm, layout, self)


class Votes(ArraySynchronizer):
    """Each gradient's votes travel while the next layers are in backpropagation: a byte for each."""

    def prepare(self):
        self.votes = []

    def gradient_ready(self, index, gradient):
        votes = np.sign(gradient).astype(np.int8)
        self.votes.append((index, votes, self.comm.allreduce_async(votes)))

    def backward_done(self):
        for index, votes, handle in self.votes:
            handle.wait()
            self.gradients[index][...] = self.loss_scale * self.strategy.scale * np.sign(votes)
