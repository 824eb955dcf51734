"""A rank of ``python tests/chaos train``: trains the perceptron with whoever is there, until it is ended.

Its arguments are the samples of a step, the strategy, and the file of the data. Prints lines of JSON: that it is ready,
and what its imports and data took; that it takes part; and as rank 0, several times a second, the samples of all ranks
and the loss since the line before.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

import gradientflow as gf
from gradientflow.bench.core.process import age
from gradientflow.bench.train.data import Data
from gradientflow.bench.train.tasks import perceptron
from gradientflow.torch import DistributedOptimizer

_REPORT_SECONDS = 0.2


def _tell(**what: object) -> None:
    print(json.dumps({"at": time.monotonic(), "pid": os.getpid(), **what}), flush=True)


def main() -> None:
    """Train."""
    batch, strategy = int(sys.argv[1]), sys.argv[2]
    task = perceptron(Data.load(Path(sys.argv[3])))
    model = task.model(0)
    inner = torch.optim.SGD(model.parameters(), task.learning_rate)
    _tell(ready=age(), processor=time.process_time())
    comm = gf.join()
    optimizer = DistributedOptimizer(inner, model, comm, strategy=strategy, on_failure="continue", min_ranks=1)
    samples, losses, last, takes_part = 0, [], time.monotonic(), False
    for step in optimizer.steps(sys.maxsize):
        now = optimizer.membership
        rows = np.random.default_rng(step).integers(len(task.data.inputs), size=batch * now.size)
        inputs, targets = task.samples(rows[now.rank :: now.size])
        optimizer.zero_grad()
        loss: Any = task.loss(model(inputs), targets)
        loss.backward()
        optimizer.step()
        now = optimizer.membership
        if now.dropped:
            continue
        samples += batch * now.size
        losses.append(float(loss.detach()))
        if not takes_part:
            takes_part = True
            _tell(takes_part=True)
        if time.monotonic() - last > _REPORT_SECONDS:
            if now.rank == 0:
                _tell(samples=samples, loss=sum(losses) / len(losses), size=now.size)
            samples, losses, last = 0, [], time.monotonic()


if __name__ == "__main__":
    main()
