"""Every parameter of the public API is given values that it cannot serve: each is refused by an error of the library.

A table says what a parameter takes. Of a fixed set of odd values, those that it does not take must be refused, by an
exception of `gradientflow.errors` in a sentence of the library's own; and what it takes must be served. All ranks make
the same calls, so that what is accepted ends.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from marks import on_ranks
from mpi4py import MPI
from support import RANK, SIZE, run_checks

import gradientflow as gf
from gradientflow import device, launch, optimizers, strategies
from gradientflow.errors import GradientFlowError

ODD: dict[str, Any] = {
    "None": None,
    "object": object(),
    "text": "x",
    "bytes": b"x",
    "float": 1.5,
    "float32": np.float32(1.9),
    "negative": -1,
    "huge": 2**70,
    "list": [],
    "dict": {},
    "nan": float("nan"),
    "infinity": float("inf"),
    "op": MPI.SUM,
}
NUMBERS = ("float", "float32", "negative", "huge", "nan", "infinity")

# What is left of pybind11's or Python's own words where nobody has looked at an argument.
FOREIGN = ("incompatible function arguments", "Invoked with", "NotImplementedType", "has no attribute")


@dataclass(frozen=True)
class Takes:
    """A parameter: a value that it takes, and which of the odd ones it takes, too.

    Some are left out: what can be called is a function of the user's, and so are its exceptions; and a wait of no time
    may end well or not.
    """

    good: Any
    odd: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()


@dataclass(frozen=True)
class Case:
    """A public function, and what its parameters take."""

    name: str
    function: Callable[..., Any]
    parameters: dict[str, Takes]


def tensor() -> Any:
    return np.ones(4 * SIZE, np.float32)


RANK_NUMBER = Takes(0)
OP = Takes("sum")
ALGORITHM = Takes("auto")
WIRE = Takes(None, ("None",))
OUT = Takes(None, ("None",))
READ = Takes(tensor(), ("bytes", "float32"))  # bytes and NumPy's numbers have the buffer protocol: they can be sent
BLOCK = OUT if SIZE == 1 else Takes(np.empty(4, np.float32))
WRITTEN = Takes(tensor())
TIMEOUT = Takes(None, ("None", "float", "float32", "negative", "huge", "infinity"))


def collectives(comm: gf.Communicator) -> Iterator[Case]:
    tables: dict[str, dict[str, Takes]] = {
        "allreduce": {"x": WRITTEN, "op": OP, "algorithm": ALGORITHM, "out": OUT, "wire": WIRE},
        "broadcast": {"x": READ, "root": RANK_NUMBER, "algorithm": ALGORITHM},
        "reduce": {"x": WRITTEN, "root": RANK_NUMBER, "op": OP, "algorithm": ALGORITHM, "out": OUT},
        "allgather": {"x": READ, "algorithm": ALGORITHM, "out": OUT},
        "allgatherv": {"x": READ, "counts": Takes(None, ("None",)), "algorithm": ALGORITHM, "out": OUT},
        "reduce_scatter": {"x": READ, "op": OP, "algorithm": ALGORITHM, "out": OUT},
        "alltoall": {"x": READ, "algorithm": ALGORITHM, "out": OUT},
        "gather": {"x": READ, "root": RANK_NUMBER, "algorithm": ALGORITHM, "out": OUT},
        "scatter": {"x": READ, "root": RANK_NUMBER, "algorithm": ALGORITHM, "out": BLOCK},
    }
    for name, parameters in tables.items():
        blocking, background = getattr(comm, name), getattr(comm, f"{name}_async")
        yield Case(f"Communicator.{name}", blocking, parameters)
        prepared = getattr(comm, f"{name}_init")
        yield Case(f"Communicator.{name}_init", prepared, parameters)
        yield Case(f"Communicator.{name}_async", lambda call=background, **given: call(**given).wait(), parameters)


def calls(comm: gf.Communicator) -> Iterator[Case]:
    handle = comm.barrier_async()
    yield Case("Handle.wait", handle.wait, {"timeout": TIMEOUT})
    yield Case("Communicator.send", comm.send, {"x": Takes(tensor()), "dest": Takes(RANK)})
    yield Case("Communicator.recv", comm.recv, {"x": Takes(tensor()), "source": Takes(RANK)})
    yield Case("Communicator.split", comm.split, {"color": Takes(0, ("None",)), "key": Takes(0, ("None", "negative"))})
    sizes = Takes((2, 3), ("list",))
    dtype = Takes("float32", ("None", "float32"))  # NumPy's default, and what has a dtype
    yield Case("Communicator.empty", comm.empty, {"shape": sizes, "dtype": dtype, "device": Takes("cpu")})
    yield Case("Communicator.start_timeline", comm.start_timeline, {"path": Takes("trace", ("text", "bytes"))})
    comm.stop_timeline()
    yield Case("Communicator.span", lambda name: comm.span(name).__enter__(), {"name": Takes("a", ("text",))})
    world = MPI.COMM_WORLD
    yield Case("init", gf.init, {"comm": Takes(world, ("None",)), "config": Takes(None, ("None", "dict"))})
    takes: dict[str, tuple[str, ...]] = dict.fromkeys(
        ("timeline", "dump", "cuda_library", "nccl_library"), ("text", *NUMBERS)
    )
    takes["interface"] = ("text", *NUMBERS)
    takes["congestion"] = ("text", "nan", "infinity")
    takes["timeout"] = takes["host_timeout"] = ("float", "float32", "huge")
    settings = {name: Takes(text, takes.get(name, ())) for name, text in gf.Config().items()}
    yield Case("Config", lambda **given: gf.Config(**given), settings)


SHAPES = Takes([(2, 3), 4], ("list",))
DTYPE = Takes("float32")
THRESHOLD = Takes("auto", ("infinity", "huge"))
DEVICE = Takes("cpu")
STREAM = Takes(None, ("None",))
DENSITY = Takes(0.5, left_out=("op",))
WHOLE = Takes(3)


def averaged(pool: gf.GradientPool | gf.SparseGradientPool) -> Callable[..., None]:
    """Return what makes all tensors ready, and waits."""

    def wait(**given: Any) -> None:
        pool.ready()
        pool.wait(**given)

    return wait


def pools(comm: gf.Communicator) -> Iterator[Case]:
    in_time = Takes(None, TIMEOUT.odd, left_out=("negative",))
    common = {
        "comm": Takes(comm),
        "shapes": SHAPES,
        "fusion_threshold": THRESHOLD,
        "wire": WIRE,
        "algorithm": ALGORITHM,
        "device": DEVICE,
    }
    yield Case("GradientPool", gf.GradientPool, {**common, "dtype": Takes("float32", ("None", "float32"))})
    sparse = {
        "dtype": Takes("float32", ("float32",)),
        "density": DENSITY,
        "momentum": Takes(0.9),
        "chunk_size": WHOLE,
        "extra": WHOLE,
        "first_iteration": WHOLE,
        "skip_nonfinite": Takes(False, tuple(ODD)),  # whatever has a truth value
    }
    yield Case("SparseGradientPool", gf.SparseGradientPool, {**common, **sparse})
    with gf.GradientPool(comm, [3, 4]) as pool:
        yield Case(
            "GradientPool.ready", pool.ready, {"index": Takes(0, ("None",), left_out=("negative",))}
        )  # all are, then
        pool.rollback()
        yield Case("GradientPool.wait", averaged(pool), {"timeout": in_time, "stream": STREAM})
        yield Case("GradientPool.rollback", pool.rollback, {"stream": STREAM})
        yield Case("GradientPool.count_nonfinite", pool.count_nonfinite, {"stream": STREAM})
    with gf.SparseGradientPool(comm, [3, 4]) as pool:
        yield Case("SparseGradientPool.wait", averaged(pool), {"timeout": in_time, "stream": STREAM})
        pool.wait()  # what the last refusal has left ready
        yield Case("SparseGradientPool.zero", pool.zero, {"stream": STREAM})
        yield Case("SparseGradientPool.density_at", pool.density_at, {"iteration": Takes(0, tuple(ODD))})
        yield Case(
            "SparseGradientPool.loss_scale",
            lambda scale: setattr(pool, "loss_scale", scale),
            {"scale": Takes(1, ("huge",))},
        )
        yield Case("SparseGradientPool.load_state_dict", pool.load_state_dict, {"state": Takes(pool.state_dict())})
        yield Case("SparseGradientPool.check_state_dict", pool.check_state_dict, {"state": Takes(pool.state_dict())})
        yield Case("SparseGradientPool.set_residuals", pool.set_residuals, {"residuals": Takes(pool.residuals)})


def methods(comm: gf.Communicator) -> Iterator[Case]:
    wires = {"fusion_threshold": THRESHOLD, "wire": WIRE, "algorithm": ALGORITHM}

    def used(kind: type, **given: Any) -> None:
        kind(**given).make_pool(comm, [3]).close()

    yield Case("Dense", lambda **given: used(strategies.Dense, **given), wires)
    csc = {
        "density": DENSITY,
        "chunk_size": Takes(3, ("None",)),
        "momentum": Takes(0.5, ("None",)),
        "warmup": Takes(3, ("huge",)),
    }
    yield Case("CSC", lambda **given: used(strategies.CSC, **given), {**wires, **csc})
    strategy = strategies.Dense()
    explained = {
        "comm": Takes(comm),
        "parameters": WHOLE,
        "dtype": Takes("float32", ("None", "float32")),
        "device": DEVICE,
    }
    seconds = Takes(None, ("None", "float", "float32", "huge"))
    explained |= {"compute_seconds": seconds, "backward_seconds": seconds}
    yield Case("Strategy.explain", strategy.explain, explained)
    yield Case("Strategy.wire_of", strategy.wire_of, {"dtype": Takes("float32", ("None", "float32", "list", "dict"))})
    words = {"text": Takes("csc(density=0.5)")}
    yield Case("parse_strategy", strategies.parse_strategy, words)
    yield Case("parse_strategies", strategies.parse_strategies, words)

    positive = ("float", "float32", "huge")
    with gf.GradientPool(comm, [3]) as pool:
        sgd = {
            "gradients": Takes(pool),
            "parameters": Takes([np.ones(3, np.float32)]),
            "lr": Takes(0.1, positive, left_out=("op",)),
            "momentum": Takes(0.0, positive),
            "weight_decay": Takes(0.0, positive),
            "loss_scale": Takes(None, ("None",)),
        }
        yield Case("SGD", optimizers.SGD, sgd)
        yield Case("LARS", optimizers.LARS, {**sgd, "trust": Takes(0.1, positive)})
        adam = {name: sgd[name] for name in ("gradients", "parameters", "lr", "weight_decay", "loss_scale")}
        adam |= {"betas": Takes((0.9, 0.99)), "eps": Takes(1e-8, positive)}
        yield Case("Adam", optimizers.Adam, adam)
        yield Case("AdamW", optimizers.AdamW, adam)
        optimizer = optimizers.SGD(pool, [np.ones(3, np.float32)], lr=0.1)
        averaged(pool)()
        yield Case("SGD.step", optimizer.step, {"stream": STREAM})
        yield Case("SGD.load_state_dict", optimizer.load_state_dict, {"state": Takes(optimizer.state_dict())})
    scale = optimizers.LossScale()
    yield Case("LossScale", optimizers.LossScale, {"initial": Takes(1.0), "growth_interval": Takes(1)})
    yield Case("LossScale.load_state_dict", scale.load_state_dict, {"state": Takes(scale.state_dict())})
    number = {"rate": Takes(0.1, positive), "batch": Takes(8), "base_batch": Takes(8)}
    yield Case("scaled_rate", optimizers.scaled_rate, number)
    ramp = {"peak": Takes(0.1, positive), "steps": Takes(3, positive), "start": Takes(0.1, positive)}
    yield Case("LinearWarmup", optimizers.LinearWarmup, ramp)


def starting(_: gf.Communicator) -> Iterator[Case]:
    launcher = launch.find_launcher()
    yield Case("find_launcher", launch.find_launcher, {"library": Takes(None, ("None",))})
    ranks, program = Takes(1), Takes(["a"], ("list",))
    names = {"launcher": Takes(launcher), "ranks": ranks, "program": program, "hosts": Takes(None, ("None", "text"))}
    yield Case("mpirun_command", launch.mpirun_command, names)
    yield Case("launch_environment", launch.launch_environment, {"launcher": Takes(launcher)})
    text = Takes("gradientflow", ("text",))
    yield Case("module_command", launch.module_command, {"module": text, "arguments": Takes([], ("list",))})
    yield Case("slots", launch.slots, {"hosts": Takes(None, ("None", "text"))})
    yield Case("device.empty", device.empty, {"shape": Takes(3), "dtype": DTYPE, "device": Takes("cuda")})
    yield Case("device.asarray", device.asarray, {"values": Takes([1.0]), "device": Takes("cuda")})


def run(cases: Iterator[Case]) -> None:
    wrong: list[str] = []
    for case in cases:
        for name, takes in case.parameters.items():
            if SIZE > 1 and name in ("x", "out"):  # which only some of the ranks may read or write
                continue
            for kind, value in ODD.items():
                if kind in takes.left_out:
                    continue
                given = {other: each.good for other, each in case.parameters.items()} | {name: value}
                call = f"{case.name}({name}={value!r})"
                try:
                    result = case.function(**given)
                except GradientFlowError as error:
                    if kind in takes.odd:
                        wrong.append(f"{call} is refused: {error}")
                    elif any(words in str(error) for words in FOREIGN):
                        wrong.append(f"{call} says: {error}")
                except Exception as error:
                    wrong.append(f"{call} raises {type(error).__name__}: {error}")
                else:
                    if kind not in takes.odd:
                        wrong.append(f"{call} is accepted")
                    if isinstance(result, gf.Communicator):
                        result.close()
    assert not wrong, "\n".join(wrong)


@on_ranks(1, 3)
def check_collectives(comm: gf.Communicator) -> None:
    run(collectives(comm))


@on_ranks(1, 3)
def check_calls(comm: gf.Communicator) -> None:
    run(calls(comm))


def check_pools(comm: gf.Communicator) -> None:
    run(pools(comm))


def check_methods(comm: gf.Communicator) -> None:
    run(methods(comm))


def check_starting(comm: gf.Communicator) -> None:
    run(starting(comm))


if __name__ == "__main__":
    os.chdir(sys.argv[1])
    run_checks()
