"""Difference between a perceptron's step with and without averaged gradients, inside jit and with PyTorch.

Both frameworks train the same perceptron from the same weights on the same batches, in one job and in turns, each with
and without averaging. Averaged weights must have the same bits on all ranks, and be close in both frameworks.
"""

from __future__ import annotations

import copy
import itertools
import os
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

import gradientflow as gf
from gradientflow.annotations import JsonObject
from gradientflow.communicator import Communicator

Array = np.ndarray
Pairs = Sequence[tuple[Array, Array]]

_SIZES = (784, 2048, 2048, 10)
_BATCH, _BATCHES, _RATE = 32, 8, 0.01
_STEPS = 4  # steps of a turn


def measure(told: JsonObject) -> JsonObject:
    """Time the steps; give medians over turns in milliseconds, and the number of wrong weights."""
    with gf.init() as comm:
        rng = np.random.default_rng([told["seed"], 1])
        weights = [
            (rng.normal(0, size**-0.5, (size, below)).astype(np.float32), np.zeros(size, np.float32))
            for below, size in itertools.pairwise(_SIZES)
        ]
        own = np.random.default_rng([told["seed"], 2, comm.rank])
        batches = [
            (own.random((_BATCH, _SIZES[0]), np.float32), own.integers(0, _SIZES[-1], _BATCH)) for _ in range(_BATCHES)
        ]
        contestants = {
            "jax": _jax(comm, weights, batches, averaged=True),
            "jax alone": _jax(comm, weights, batches, averaged=False),
            "pytorch": _torch(comm, weights, batches, averaged=True),
            "pytorch alone": _torch(comm, weights, batches, averaged=False),
        }
        wrong = _compare(comm, contestants)
        times: dict[str, list[float]] = {name: [] for name in contestants}
        for turn in range(told["turns"]):
            for name in list(contestants)[:: 1 if turn % 2 == 0 else -1]:
                train = contestants[name][0]
                comm.barrier()
                began = np.array(time.perf_counter())
                train(_STEPS)
                taken = np.full(1, time.perf_counter() - began)
                comm.allreduce(taken, op="max")
                times[name].append(float(taken[0]) / _STEPS * 1e3)
        found: dict[str, JsonObject] = {
            name: {"median_ms": float(np.median(each)), "turns": each} for name, each in times.items()
        }
        for name in ("jax", "pytorch"):
            found[name]["over_alone_ms"] = float(
                np.median(np.subtract(found[name]["turns"], found[f"{name} alone"]["turns"]))
            )
        return {"ranks": comm.size, "nodes": comm.nodes, "wrong": wrong, "steps": found}


Contestant = tuple[Callable[[int], None], Callable[[], list[Array]]]  # (train some steps, give the weights)


def _compare(comm: Communicator, contestants: dict[str, Contestant]) -> int:
    """Count elements that differ between ranks, or clearly between frameworks, after a turn of steps."""
    wrong = 0
    for train, _ in contestants.values():
        train(_STEPS)
    for name in ("jax", "pytorch"):
        for array in contestants[name][1]():
            low, high = array.copy(), array.copy()
            comm.allreduce(low, op="min")
            comm.allreduce(high, op="max")
            wrong += int((low != high).sum())
    for ours, theirs in zip(contestants["jax"][1](), contestants["pytorch"][1](), strict=True):
        wrong += int((~np.isclose(ours, theirs, rtol=1e-3, atol=1e-4)).sum())
    return wrong


def _jax(comm: Communicator, weights: Pairs, batches: Pairs, *, averaged: bool) -> Contestant:
    import jax
    import jax.numpy as jnp
    import optax

    from gradientflow.jax import average

    optimizer = optax.sgd(_RATE)
    if averaged:
        optimizer = optax.chain(average("dense", comm=comm), optimizer)

    def loss(weights: Sequence[tuple[jax.Array, jax.Array]], x: jax.Array, labels: jax.Array) -> object:
        for matrix, bias in weights[:-1]:
            x = jnp.tanh(x @ matrix.T + bias)  # smooth: with a kink, rounding would change the steps
        scores = x @ weights[-1][0].T + weights[-1][1]
        return optax.softmax_cross_entropy_with_integer_labels(scores, labels).mean()

    def step(weights: Any, state: object, x: Any, labels: object) -> Any:
        updates, state = optimizer.update(jax.grad(loss)(weights, x, labels), state, weights)
        return optax.apply_updates(weights, updates), state

    compiled = jax.jit(step, donate_argnums=(0, 1))
    there = [(jnp.asarray(x), jnp.asarray(labels)) for x, labels in batches]
    now = {"weights": jax.tree.map(jnp.array, weights), "done": 0}
    now["state"] = optimizer.init(now["weights"])

    def train(steps: int) -> None:
        for _ in range(steps):
            x, labels = there[now["done"] % len(there)]
            now["weights"], now["state"] = compiled(now["weights"], now["state"], x, labels)
            now["done"] += 1
        for each in jax.tree.leaves(now["weights"]):
            each.block_until_ready()

    return train, lambda: [np.array(each) for each in jax.tree.leaves(now["weights"])]


def _torch(comm: Communicator, weights: Pairs, batches: Pairs, *, averaged: bool) -> Contestant:
    import torch
    from torch import nn

    from gradientflow.torch import DistributedOptimizer

    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", torch.get_num_threads())))
    layers: list[nn.Module] = []
    for matrix, bias in copy.deepcopy(weights):
        linear = nn.Linear(*reversed(matrix.shape))
        linear.weight.data, linear.bias.data = torch.from_numpy(matrix), torch.from_numpy(bias)
        layers += [linear, nn.Tanh()]
    model = nn.Sequential(*layers[:-1])
    optimizer: Any = torch.optim.SGD(model.parameters(), lr=_RATE)
    if averaged:
        optimizer = DistributedOptimizer(optimizer, model, comm, strategy="dense")
    there = [(torch.from_numpy(x), torch.from_numpy(labels)) for x, labels in batches]
    done = {"steps": 0}

    def train(steps: int) -> None:
        for _ in range(steps):
            x, labels = there[done["steps"] % len(there)]
            optimizer.zero_grad()
            loss: Any = nn.functional.cross_entropy(model(x), labels)
            loss.backward()
            optimizer.step()
            done["steps"] += 1

    return train, lambda: [each.detach().numpy().copy() for each in model.parameters()]
