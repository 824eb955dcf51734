"""The same as rounds_survival.py with a DistributedOptimizer."""

from __future__ import annotations

import random
import time
from typing import Any

import torch
from rounds_survival import STEPS, checksum, flat, keep, let_happen
from survival import Fates, main
from survival_replay import RATE, SHAPES, gradient
from survival_rosters import begin, name_of

import gradientflow as gf
import gradientflow.torch as gft


def train(comm: gf.Communicator, strategy: str, fates: Fates, *_: str) -> dict[str, Any]:
    """Train. Return weights, and the name of this rank."""
    roster, log = begin(keep)
    model = torch.nn.ParameterList([torch.zeros(shape) for shape in SHAPES])
    weights = [parameter.detach().numpy() for parameter in model]
    inner = torch.optim.SGD(model.parameters(), lr=RATE)
    optimizer = gft.DistributedOptimizer(inner, model, comm, strategy=strategy, on_failure="continue", min_ranks=1)
    for step in optimizer.steps(STEPS):
        now = optimizer.membership
        roster.begin(optimizer.comm)
        if not let_happen(fates.peek(step), optimizer.synchronizer):
            fates.begin(step, optimizer)
        everything = torch.from_numpy(gradient(step, now.rank, now.size))
        time.sleep(random.random() * 0.002)  # ranks are at other steps
        log.write("gradient", step, now.rank, now.size)
        optimizer.zero_grad()
        parts = everything.split([parameter.numel() for parameter in model])
        sum((parameter.view(-1) * part).sum() for parameter, part in zip(model, parts, strict=True)).backward()
        optimizer.step()
        log.write("weights", checksum(flat(weights)))
        fates.end()
    log.write("weights", checksum(flat(weights)))
    found = {"weights": flat(weights), "masters": flat(weights), "number": roster.own, "name": name_of(roster.own)}
    optimizer.close()
    return found


if __name__ == "__main__":
    main(train)
