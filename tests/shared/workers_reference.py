"""Servers and workers in straight-line NumPy: what strategies on a parameter server have to give, bit for bit."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]
Gradient = Callable[[int, int, Floats], Floats]  # of a worker in an iteration, with these weights

f32 = np.float32


class Servers:
    """Servers with a shard of the weights each, and momentum SGD, with the rate inside the momentum or outside."""

    def __init__(
        self,
        weights: Floats,
        number: int,
        rate: float,
        momentum: float = 0.0,
        decay: float = 0.0,
        *,
        inside: bool = True,
    ) -> None:
        self.shards = [part.copy() for part in np.array_split(weights, number)]
        self.momenta = [np.zeros_like(part) for part in self.shards]
        self.rate, self.momentum, self.decay, self.inside = rate, momentum, decay, inside

    @property
    def weights(self) -> Floats:
        return np.concatenate(self.shards)

    def apply(self, gradients: list[Floats]) -> None:
        """One round: a gradient of each worker."""
        number = len(self.shards)
        pushed = [np.array_split(gradient, number) for gradient in gradients]
        for s, (shard, velocity) in enumerate(zip(self.shards, self.momenta, strict=True)):
            total = pushed[0][s].copy()
            for worker in pushed[1:]:
                total = total + worker[s]
            direction = total / f32(len(gradients)) + f32(self.decay) * shard
            inner, outer = (self.rate, 1) if self.inside else (1, self.rate)
            velocity[:] = f32(self.momentum) * velocity + f32(inner) * direction
            shard[:] = shard - f32(outer) * velocity


@dataclass
class Worker:
    """A worker of SSD-SGD."""

    weights: Floats
    updates: int = 0
    pre_weights: Floats | None = None
    pulled: Floats | None = None  # that has come while a gradient is computed, and waits
    mean_squares: Floats = field(init=False)

    def __post_init__(self) -> None:
        self.mean_squares = np.zeros_like(self.weights)

    def update(self, rule: str, g: Floats, servers: Servers, k: int, rate: float, **numbers: float) -> None:
        """The local update, before which weights that were pulled replace the worker's own."""
        before = self.weights
        if self.pulled is not None:
            self.weights, self.pulled = self.pulled, None
        w = self.weights
        decay = f32(servers.decay)
        if rule == "glu":
            if self.pre_weights is None:
                self.pre_weights = w
            scale = (1 - servers.momentum) / (servers.rate * k) if servers.rate else 0.0
            grad_sync = (self.pre_weights - w) * f32(scale)
            if self.updates > 0 and self.updates % k == 0:
                self.pre_weights = w
            alpha, beta = f32(numbers.get("alpha", 2.0)), f32(numbers.get("beta", 0.5))
            direction = alpha * g + decay * w + beta * grad_sync
        elif rule == "dc_asgd":
            keep = f32(numbers.get("decay", 0.95))
            self.mean_squares = keep * self.mean_squares + (f32(1) - keep) * (g * g)
            lambda_t = f32(numbers.get("lambda_0", 2.0)) / np.sqrt(self.mean_squares + f32(1e-7))
            direction = g + lambda_t * (g * g) * (w - before) + decay * w
        else:
            direction = g + decay * w
        if rule != "none":
            self.weights = w - f32(rate) * direction
        self.updates += 1


def ssd_sgd(
    start: Floats,
    gradient: Gradient,
    iterations: int,
    *,
    workers: int,
    servers: Servers,
    k: int,
    warmup: int,
    rule: str = "glu",
    loc_lr: float | None = None,
    **numbers: float,
) -> tuple[list[list[Floats]], list[Floats]]:
    """Give, for each iteration, the weights of each worker after it, and those of the servers."""
    everyone = [Worker(start.copy()) for _ in range(workers)]
    rate = workers * servers.rate if loc_lr is None else loc_lr
    local, common = [], []
    for t in range(iterations):
        gradients = [gradient(rank, t, worker.weights) for rank, worker in enumerate(everyone)]
        servers.apply(gradients)
        for worker, g in zip(everyone, gradients, strict=True):
            if t < warmup:
                worker.weights = servers.weights
                continue
            worker.update(rule, g, servers, k, rate, **numbers)
            if (t + 1) % k == 0:
                worker.pulled = servers.weights
        local.append([worker.weights for worker in everyone])
        common.append(servers.weights)
    return local, common


def ssgd(start: Floats, gradient: Gradient, iterations: int, *, workers: int, servers: Servers) -> list[Floats]:
    """Give the weights after each iteration of synchronous SGD."""
    local, _ = ssd_sgd(start, gradient, iterations, workers=workers, servers=servers, k=1, warmup=iterations)
    return [each[0] for each in local]


def gradient_of(rank: int, iteration: int, weights: Any) -> Floats:
    """A gradient that depends on the weights, with bits of all kinds."""
    random = np.random.default_rng([rank, iteration])
    noise = random.normal(size=np.shape(weights)).astype(f32)
    return (weights - f32(1)) * f32(0.3) + noise * f32(0.2)
