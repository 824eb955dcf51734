"""Local SGD (Stich, 2019): every rank trains by itself, and every few steps the weights are averaged."""

from gradientflow.strategies import ArraySynchronizer, Strategy


class LocalSGD(Strategy):
    """Weights are averaged every ``period`` steps, and when training is finished."""

    gradients = "local"

    def __init__(self, period=8):
        self.period = period

    def bind(self, comm, layout):
        return Averaging(comm, layout, self)


class Averaging(ArraySynchronizer):
    state_names = ("steps",)
    steps = 0

    def after_step(self):
        self.steps += 1
        if self.steps % self.strategy.period == 0:
            self.finish()

    def finish(self):
        for weights in self.weights:
            self.comm.allreduce(weights, "mean")
