"""The same as survival.py with a DistributedOptimizer, and a learning rate that falls where all make steps together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from survival import SHARED, TRAININGS, Rank

import gradientflow as gf
import gradientflow.torch as gft

from survive.groups import Group
from survive.task import RATE, SHAPES, flat
from survive.trainee import Recording


class Record:
    """Who has contributed to which step, as a part of an optimizer's state."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self._optimizer = optimizer
        self.history = []

    @property
    def history(self) -> Any:
        return self._optimizer.param_groups[0]["history"]

    @history.setter
    def history(self, value: Any) -> None:
        self._optimizer.param_groups[0]["history"] = value

    note = Recording.note


class Module:
    """Trains a module."""

    def __init__(self, comm: gf.Communicator, group: Group, _: Sequence[str]) -> None:
        self.model = torch.nn.ParameterList([torch.zeros(shape) for shape in SHAPES])
        inner = torch.optim.SGD(self.model.parameters(), lr=RATE, momentum=group.momentum)
        self.record = Record(inner)
        self.loop: Any = gft.DistributedOptimizer(
            inner, self.model, comm, strategy=group.strategy, on_failure="continue", min_ranks=1
        )
        gamma = 0.5 if any(group is TRAININGS[name] for name in SHARED) else 1.0
        self.schedule = torch.optim.lr_scheduler.StepLR(self.loop, 10, gamma)

    def step(self, step: int, everything: Any, note: Callable[[], None]) -> None:
        """Make a step with a gradient, and note it if it is made."""
        if self.loop.changed:  # a newcomer has the rate, but not the number; on servers a step may have been undone
            self.schedule.last_epoch = step
        self.loop.zero_grad()
        parts = torch.from_numpy(everything).split([parameter.numel() for parameter in self.model])
        sum((parameter.view(-1) * part).sum() for parameter, part in zip(self.model, parts, strict=True)).backward()
        self.loop.step()
        if not self.loop.membership.dropped:
            note()
            self.schedule.step()

    @property
    def weights(self) -> list[Any]:
        """All weights."""
        return [parameter.detach().numpy() for parameter in self.model]

    @property
    def masters(self) -> Any:
        """All weights, one after the other."""
        return flat(self.weights)

    @property
    def residuals(self) -> Any:
        """All residuals, in the order of the tensors."""
        synchronizer = self.loop.synchronizer
        residuals = dict(zip(synchronizer.layout.names, synchronizer.withheld().residuals, strict=False))
        return np.concatenate([np.zeros(0, np.float32), *(residuals[name].ravel() for name in sorted(residuals))])


if __name__ == "__main__":
    Rank(Module).run()
