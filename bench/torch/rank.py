"""A rank of the job: verifies and times calls of both process groups, and of the communicator."""

from __future__ import annotations

import gc
import json
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from itertools import count
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.distributed._functional_collectives

import gradientflow as gf
from gradientflow.communicator import Communicator

from ..core.gloo import GlooPeer, all_gather, dist, reduce_scatter
from ..core.job_turns import MARK

functional: ModuleType = torch.distributed._functional_collectives  # untyped: PyTorch leaves it without annotations

COMM = "comm"
# Names since PyTorch 2.13, which warns of the older names.
_all_gather = getattr(functional, "all_gather_single", functional.all_gather_tensor)
_reduce_scatter = getattr(functional, "reduce_scatter_single", functional.reduce_scatter_tensor)
_WARM_UP = 5


class Timed(NamedTuple):
    """A call of one contestant on its own tensors; it returns the result."""

    call: str
    form: str
    contestant: str
    source: torch.Tensor
    run: Callable[[], torch.Tensor]


def _tensors(call: str, elements: int, ranks: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return source and result: each is a whole tensor, or the part that belongs to one rank."""
    whole, part = torch.zeros(elements), torch.zeros(elements // ranks)
    return {"all_reduce": (whole, whole), "all_gather": (part, whole), "reduce_scatter": (whole, part)}[call]


def _of_group(call: str, form: str, name: str, group: torch.distributed.ProcessGroup, elements: int) -> Timed:
    source, result = _tensors(call, elements, group.size())
    plain: Callable[..., Any] = {
        "all_reduce": partial(dist.all_reduce, source, group=group),
        "all_gather": partial(all_gather, result, source, group=group),
        "reduce_scatter": partial(reduce_scatter, result, source, group=group),
    }[call]
    returning: Callable[[torch.Tensor], torch.Tensor] = {
        "all_reduce": lambda x: functional.all_reduce(x, "sum", group),
        "all_gather": lambda x: _all_gather(x, 0, group),
        "reduce_scatter": lambda x: _reduce_scatter(x, "sum", 0, group),
    }[call]
    compiled: Any = torch.compile(returning, dynamic=False) if form == "compiled" else None
    run: Callable[[], torch.Tensor] = {
        "sync": lambda: plain() or result,
        "async": lambda: plain(async_op=True).wait() and result,
        "functional": lambda: functional.wait_tensor(returning(source)),
        "compiled": lambda: functional.wait_tensor(compiled(source)),
    }[form]
    return Timed(call, form, name, source, run)


def _of_communicator(comm: Communicator, call: str, form: str, elements: int) -> Timed:
    """Return the communicator's call for a form: a call that waits, or an asynchronous call."""
    source, result = _tensors(call, elements, comm.size)
    name, arguments = {
        "all_reduce": ("allreduce", {}),
        "all_gather": ("allgather", {"out": result}),
        "reduce_scatter": ("reduce_scatter", {"out": result}),
    }[call]
    if form == "sync":
        return Timed(call, form, COMM, source, partial(getattr(comm, name), source, **arguments))
    start = partial(getattr(comm, f"{name}_async"), source, **arguments)
    return Timed(call, form, COMM, source, lambda: start().wait())


def _wrong(comm: Communicator, timed: Timed, seed: int) -> int:
    """Make the call on fresh integers, which every rank knows for all ranks; return the number of wrong elements."""
    given = [
        np.random.default_rng([seed, rank]).integers(-1000, 1000, timed.source.numel()).astype(np.float32)
        for rank in range(comm.size)
    ]
    timed.source.copy_(torch.from_numpy(given[comm.rank]))
    found = timed.run().numpy()
    whole = np.concatenate(given) if timed.call == "all_gather" else np.sum(given, axis=0)
    wanted = np.split(whole, comm.size)[comm.rank] if timed.call == "reduce_scatter" else whole
    return int((found != wanted).sum())


def _times(comm: Communicator, contestants: list[Timed], rounds: int, calls: int) -> Iterator[np.ndarray]:
    """Time calls in turns; yield the microseconds of each contestant, with the time of the slowest rank."""
    found: list[list[list[float]]] = [[] for _ in contestants]
    for number in range(rounds):
        for timed, turns in list(zip(contestants, found, strict=True))[:: 1 if number % 2 else -1]:
            comm.barrier()
            turn = []
            for _ in range(_WARM_UP + calls):
                began = time.perf_counter()
                timed.run()
                turn.append(time.perf_counter() - began)
            turns.append(turn[_WARM_UP:])
    for turns in found:
        mine = np.array(turns).ravel() * 1e6
        yield comm.allreduce(mine, "max")


def main() -> None:
    """Measure as the job is told."""
    told = json.loads(sys.argv[1])
    results, seeds = [], count(told["seed"])
    dynamo: ModuleType = torch._dynamo
    dynamo.config.recompile_limit = 1000  # for the functions of all sizes and groups, which share their code
    with gf.init() as comm:
        peer = GlooPeer(comm)
        groups = {"gradientflow": dist.new_group(backend="gradientflow"), "gloo": dist.group.WORLD}
        for size in told["sizes"]:
            elements = max(1, size // 4 // comm.size) * comm.size
            for call, form in ((call, form) for call in told["calls"] for form in told["forms"]):
                contestants = [_of_group(call, form, name, group, elements) for name, group in groups.items()]
                contestants.append(_of_communicator(comm, call, form, elements))
                wrong = [_wrong(comm, timed, next(seeds)) for timed in contestants]
                for timed in contestants:
                    timed.source.zero_()  # sums of sums would overflow
                gc.collect()
                gc.disable()
                for timed, bad, times in zip(
                    contestants, wrong, _times(comm, contestants, told["rounds"], told["repeat"]), strict=True
                ):
                    results.append(
                        {
                            "bytes": size,
                            "call": call,
                            "form": form,
                            "contestant": timed.contestant,
                            "median_us": float(np.median(times)),
                            "p10_us": float(np.quantile(times, 0.1)),
                            "wrong": int(comm.allreduce(np.array([bad]))[0]),
                        }
                    )
                gc.enable()
        if comm.rank == 0:
            print(f"{MARK}{json.dumps({'ranks': comm.size, 'nodes': comm.nodes, 'results': results})}", flush=True)
        peer.close()


if __name__ == "__main__":
    main()
