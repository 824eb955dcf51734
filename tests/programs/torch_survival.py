"""The same as survival.py with a DistributedOptimizer, and a learning rate that falls."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from survival import Fates, main
from survival_replay import RATE, SHAPES, STEPS, gradient
from survival_roll import Roll

import gradientflow as gf
import gradientflow.torch as gft


def train(comm: gf.Communicator, strategy: str, fates: Fates, *_: str) -> dict[str, Any]:
    """Train. Return weights, residuals, and who took part in which step."""
    model = torch.nn.ParameterList([torch.zeros(shape) for shape in SHAPES])
    fates.before()
    inner = torch.optim.SGD(model.parameters(), lr=RATE, momentum=1.0)
    optimizer = gft.DistributedOptimizer(inner, model, comm, strategy=strategy, on_failure="continue", min_ranks=1)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 10, gamma=0.5)
    roll = Roll(optimizer, comm)
    for step in optimizer.steps(STEPS):
        now = roll.begin(step)
        fates.begin(step, optimizer)
        if optimizer.changed:  # a newcomer has the rate, but not the number; on servers a step may have been undone
            schedule.last_epoch = step
        everything = torch.from_numpy(gradient(step, now.rank, now.size))
        optimizer.zero_grad()
        parts = everything.split([parameter.numel() for parameter in model])
        sum((parameter.view(-1) * part).sum() for parameter, part in zip(model, parts, strict=True)).backward()
        optimizer.step()
        roll.end(step)
        fates.end()
        if not optimizer.membership.dropped:
            schedule.step()
    synchronizer = optimizer.synchronizer
    residuals = dict(zip(synchronizer.layout.names, synchronizer.report().residuals, strict=False))
    found = {
        "weights": np.concatenate([parameter.detach().numpy().ravel() for parameter in model]),
        "residuals": np.concatenate([np.zeros(0), *(residuals[name].ravel() for name in sorted(residuals))]),
        "name": roll.name,
        "took_part": roll.took_part,
    }
    optimizer.close()
    return found


if __name__ == "__main__":
    main(train)
