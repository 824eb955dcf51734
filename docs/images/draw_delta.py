"""Draw delta of each layer while LAGS trains: ``gradientflow run -n 4 -- python docs/images/draw_delta.py [RATIO]``.

The form is that of Figure 2 of the LAGS-SGD paper. It writes delta.png beside itself, from the models and data of
``gradientflow bench train``.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch
from matplotlib.figure import Figure

import gradientflow as gf
import gradientflow.torch as gft
from gradientflow.bench.train.data import SampleOrder
from gradientflow.bench.train.tasks import load_task
from gradientflow.strategies import LAGS

FOLDER = Path(__file__).resolve().parent
STEPS = {"mlp": 60, "cnn": 120, "lstm": 40}
BATCH = 32


def deltas(comm: gf.Communicator, name: str, ratio: float) -> tuple[dict[str, list[float]], list[float]]:
    """Train a model; return delta of each of its layers in each step, and the loss on this rank."""
    task = load_task(name)
    model = task.model(0)
    inner = torch.optim.SGD(model.parameters(), task.learning_rate, 0.9)
    order = SampleOrder(len(task.data.inputs), BATCH * comm.size, 0)
    found: dict[str, list[float]] = {}
    losses = []
    with gft.DistributedOptimizer(inner, model, comm, strategy=LAGS(ratio, warmup=0, monitor=True)) as optimizer:
        for step in range(STEPS[name]):
            inputs, targets = task.samples(order.rows(step)[comm.rank * BATCH :][:BATCH])
            optimizer.zero_grad()
            loss = task.loss(model(inputs), targets)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
            synchronizer: Any = optimizer.synchronizer
            for layer in synchronizer.monitor.layers:
                found.setdefault(layer.name, []).append(layer.delta)
    return found, losses


def main() -> None:
    """Train, and draw on rank 0."""
    ratio = float(sys.argv[1]) if len(sys.argv) > 1 else 250.0
    torch.set_num_threads(1)
    figure = Figure(figsize=(12, 3.6), layout="constrained")
    with gf.init() as comm:
        for place, name in enumerate(STEPS, 1):
            found, losses = deltas(comm, name, ratio)
            axes = figure.add_subplot(1, len(STEPS), place)
            for layer, values in found.items():
                axes.plot(values, linewidth=0.8, label=layer)
            axes.axhline(1.0, color="black", linestyle=":")
            axes.set_title(f"{name}, ratio {ratio:g}, {comm.size} ranks")
            axes.set_xlabel("step")
            axes.set_ylabel("delta")
            axes.set_ylim(0, max(1.2, *(max(values) for values in found.values())))
            axes.legend(frameon=False, fontsize=6, loc="lower left")
            loss = axes.twinx()
            loss.plot(losses, color="gray", alpha=0.4, linewidth=0.8)
            loss.set_ylabel("loss of rank 0", color="gray")
            if comm.rank == 0:
                worst = max(found, key=lambda layer: max(found[layer]))
                above = sum(value > 1 for values in found.values() for value in values)
                count = sum(map(len, found.values()))
                print(f"{name}: at most {max(found[worst]):.3f} ({worst}); above 1 in {above} of {count}")
        if comm.rank == 0:
            figure.savefig(FOLDER / "delta.png", dpi=110)


if __name__ == "__main__":
    main()
