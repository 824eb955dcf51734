"""Count in the weights how often each sample was used, while ranks are lost and come.

The arguments: a folder, what happens, as in survival.py, and how many workers a DataLoader has, and whether they stay.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import torch
from survival import STEPS, Fates
from torch.utils.data import DataLoader

import gradientflow as gf
import gradientflow.torch as gft

SAMPLES, BATCH, SEED = 100, 9, 4


def main() -> None:
    """Train."""
    folder, happens, (workers, *persist) = Path(sys.argv[1]), json.loads(sys.argv[2]), sys.argv[3:]
    comm, place, life = gf.join(), *(int(os.environ[f"GRADIENTFLOW_{name}"]) for name in ("RANK", "RESTARTS"))
    fates = Fates(place, life, [happens], folder)
    model = torch.nn.ParameterList([torch.zeros(SAMPLES)])
    inner = torch.optim.SGD(model.parameters(), lr=1.0)
    sizes = [0] * STEPS  # how many ranks were in each step
    with gft.DistributedOptimizer(inner, model, comm, on_failure="continue", min_ranks=1) as optimizer:
        sampler = gft.ElasticSampler(SAMPLES, optimizer, batch_size=BATCH, seed=SEED)
        loader: Any = DataLoader(
            range(SAMPLES),  # type: ignore[arg-type]
            batch_sampler=sampler,
            num_workers=int(workers),
            persistent_workers=persist == ["persist"],
        )
        for step, samples in sampler.steps(loader, STEPS):
            now = optimizer.membership
            fates.begin(0, step, optimizer)
            optimizer.zero_grad()
            (model[0][samples].sum() * -now.size).backward()  # so that the mean over the ranks is their sum
            optimizer.step()
            if not optimizer.membership.dropped:
                sizes[step] = now.size
    found = {"uses": model[0].detach().tolist(), "sizes": sizes}
    (folder / f"left.{place}.{life}").write_text(json.dumps(found))


if __name__ == "__main__":
    main()
