"""A small training loop in which one rank does something wrong: faulty.py SEED [DOOR]. `Fault.of` has the choices."""

from __future__ import annotations

import os
import queue
import random
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

KINDS = ("skip", "swap", "shape", "dtype", "late", "dead", "stopped", "loop", "loader", "raise")
DOORS = ("numpy", "optimizer", "ddp", "jax")
STEPS = 8
TIMEOUT = float(os.environ.get("GRADIENTFLOW_TIMEOUT", "300"))


@dataclass(frozen=True)
class Fault:
    """The fault of a seed: its kind, the rank and step in which it happens, and the number of ranks."""

    kind: str
    rank: int
    step: int
    ranks: int
    door: str

    @classmethod
    def of(cls, seed: int, door: str) -> Fault:
        dice = random.Random(seed)
        ranks = dice.randint(2, 5)
        return cls(KINDS[seed % len(KINDS)], dice.randrange(ranks), dice.randint(2, STEPS - 2), ranks, door)

    def lines(self) -> set[int]:
        """Return the lines in this file any of which a diagnosis may name."""
        marks = {
            "skip": ("first",),
            "swap": ("second", "first"),
            "shape": ("first",),
            "dtype": ("first",),
            "late": ("late", "first"),
            "dead": ("first", "step"),
            "stopped": ("first", "step"),
            "loop": ("loop",),
            "loader": ("loader",),
            "raise": ("raise",),
        }[self.kind]
        source = Path(__file__).read_text(encoding="utf-8").splitlines()
        doors = (self.door, "all", *(["torch"] if self.door in ("ddp", "optimizer") else []))
        wanted = [f"# {mark} of {door}" for mark in marks for door in doors]
        return {number for number, line in enumerate(source, 1) if line.rstrip().endswith(tuple(wanted))}

    def now(self, kind: str, rank: int, step: int) -> bool:
        """Tell whether the fault of this kind happens here."""
        return (kind, rank, step) == (self.kind, self.rank, self.step)

    def batch(self, rank: int, step: int) -> int:
        """Return the number of a batch, as a data loader would: perhaps too late, or never."""
        if self.now("late", rank, step):
            time.sleep(2.5 * TIMEOUT)  # late of all
        if self.now("dead", rank, step):
            os.kill(os.getpid(), signal.SIGKILL)
        if self.now("stopped", rank, step):
            os.kill(os.getpid(), signal.SIGSTOP)
        if self.now("loop", rank, step):
            while True:  # loop of all
                step = step + 1 - 1  # loop of all
        if self.now("loader", rank, step):
            batches: queue.Queue[int] = queue.Queue()
            return batches.get()  # loader of all
        if self.now("raise", rank, step):
            raise ValueError("a secret")  # raise of all
        return step


def calls_in_order(
    fault: Fault, rank: int, step: int, first: Callable[[], object], second: Callable[[], object]
) -> None:
    """Make two calls, or only the second, or the second before the first."""
    if fault.now("swap", rank, step):
        second()
        first()
        return
    if not fault.now("skip", rank, step):
        first()
    second()


def train_numpy(fault: Fault) -> None:
    import numpy as np

    import gradientflow as gf

    comm = gf.init()
    for step in range(STEPS):
        fault.batch(comm.rank, step)
        size = 101 if fault.now("shape", comm.rank, step) else 100
        x = np.ones(size, "float64" if fault.now("dtype", comm.rank, step) else "float32")
        calls_in_order(
            fault,
            comm.rank,
            step,
            lambda: comm.allreduce(x),  # noqa: B023  # first of numpy
            lambda: comm.allgather(np.ones(4), out=np.ones(4 * comm.size)),  # second of numpy
        )


def train_torch(fault: Fault) -> None:
    import torch
    import torch.distributed as dist

    rank = int(os.environ["RANK"])
    model = torch.nn.Linear(16, 4)
    metric = [torch.zeros(100)]
    reduce: Callable[[torch.Tensor], object]
    if fault.door == "ddp":
        import gradientflow.torch

        dist.init_process_group("gradientflow")
        trained: torch.nn.Module = torch.nn.parallel.DistributedDataParallel(model)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        reduce = dist.all_reduce
    else:
        import gradientflow as gf
        import gradientflow.torch

        comm = gf.init()
        trained = model
        optimizer = gradientflow.torch.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model, comm)
        reduce = comm.allreduce

    def learn() -> None:
        optimizer.zero_grad()
        trained(torch.ones(2, 16)).sum().backward()  # second of ddp
        optimizer.step()  # second of optimizer

    def measure() -> None:
        reduce(metric[0])  # first of torch

    for step in range(STEPS):
        fault.batch(rank, step)
        size = 101 if fault.now("shape", rank, step) else 100
        metric[0] = torch.zeros(size, dtype=torch.float64 if fault.now("dtype", rank, step) else torch.float32)
        calls_in_order(fault, rank, step, measure, learn)


def train_jax(fault: Fault) -> None:
    import jax
    import jax.numpy as jnp

    import gradientflow as gf
    import gradientflow.jax

    comm = gf.init()
    average = jax.jit(lambda x: gradientflow.jax.allreduce(x, comm=comm))
    for step in range(STEPS):
        fault.batch(comm.rank, step)
        size = 101 if fault.now("shape", comm.rank, step) else 100
        x = jnp.ones(size, jnp.int32 if fault.now("dtype", comm.rank, step) else jnp.float32)
        calls_in_order(
            fault,
            comm.rank,
            step,
            lambda: average(x).block_until_ready(),  # noqa: B023  # first of jax
            lambda: average(jnp.ones((4, 4))).block_until_ready(),  # second of jax
        )


def main() -> None:
    fault = Fault.of(int(sys.argv[1]), sys.argv[2] if len(sys.argv) > 2 else "numpy")
    {"numpy": train_numpy, "optimizer": train_torch, "ddp": train_torch, "jax": train_jax}[fault.door](fault)


if __name__ == "__main__":
    main()
