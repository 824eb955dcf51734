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
from mpi4py import MPI
from support import RANK, SIZE, run_checks

import gradientflow as gf
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
    """A parameter: a value that it takes, and which of the odd ones it takes, too."""

    good: Any
    odd: tuple[str, ...] = ()


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
    takes: dict[str, tuple[str, ...]] = dict.fromkeys(("timeline", "cuda_library", "nccl_library"), ("text", *NUMBERS))
    takes["timeout"] = ("float", "float32", "huge")
    settings = {name: Takes(text, takes.get(name, ())) for name, text in gf.Config().items()}
    yield Case("Config", lambda **given: gf.Config(**given), settings)


def run(cases: Iterator[Case]) -> None:
    wrong: list[str] = []
    for case in cases:
        for name, takes in case.parameters.items():
            if SIZE > 1 and name in ("x", "out"):  # which only some of the ranks may read or write
                continue
            for kind, value in ODD.items():
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


def check_collectives(comm: gf.Communicator) -> None:
    run(collectives(comm))


def check_calls(comm: gf.Communicator) -> None:
    run(calls(comm))


if __name__ == "__main__":
    os.chdir(sys.argv[1])
    run_checks([check_collectives, check_calls])
