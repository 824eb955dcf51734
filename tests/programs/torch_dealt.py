"""Count in the weights how often each sample was used, while ranks are lost and come."""

from __future__ import annotations

from typing import Any

import torch
from survival import Fates, main
from survival_replay import STEPS
from survival_roll import Roll
from torch.utils.data import DataLoader

import gradientflow as gf
import gradientflow.torch as gft

SAMPLES, BATCH, SEED = 100, 9, 4


def train(comm: gf.Communicator, strategy: str, fates: Fates, workers: str, persist: str) -> dict[str, Any]:
    """Train. Return weights, and who took part in which step."""
    model = torch.nn.ParameterList([torch.zeros(SAMPLES)])
    inner = torch.optim.SGD(model.parameters(), lr=1.0)
    with gft.DistributedOptimizer(
        inner, model, comm, strategy=strategy, on_failure="continue", min_ranks=1
    ) as optimizer:
        sampler = gft.ElasticSampler(SAMPLES, optimizer, batch_size=BATCH, seed=SEED)
        loader: Any = DataLoader(
            range(SAMPLES),  # type: ignore[arg-type]
            batch_sampler=sampler,
            num_workers=int(workers),
            persistent_workers=persist == "persist",
        )
        roll = Roll(optimizer, comm)
        for step, samples in sampler.steps(loader, STEPS):
            now = roll.begin(step)
            fates.begin(step, optimizer)
            optimizer.zero_grad()
            (model[0][samples].sum() * -now.size).backward()  # so that the mean over the ranks is their sum
            optimizer.step()
            roll.end(step)
            fates.end()
        return {"uses": model[0].detach().tolist(), "name": roll.name, "took_part": roll.took_part}


if __name__ == "__main__":
    main(train)
