"""Random programs of independent collectives in one jit, each compared with the same program in one process.

    python tests/jax/random_programs.py -n 3 --programs 1000 [--first 0] [--repeats 3]

starts a job of -n ranks by ``gradientflow run --jax``; GRADIENTFLOW_TRANSPORT says over what. XLA runs the independent
calls of a program in any order, on each rank another one, after work that takes each rank another time: a library that
needs one order deadlocks, or mixes results. Every rank makes the same programs, from their numbers; in one process a
program is calculated with ``jax.vmap`` over all ranks' arguments. A program that takes too long ends the job, with the
stacks of all threads. The last line says how many programs were wrong.
"""

from __future__ import annotations

import argparse
import faulthandler
import math
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

DTYPES = ("float32", "float64", "bfloat16", "int8", "int32", "uint32", "int64", "complex64")
REDUCTIONS = ("psum", "pmean", "pmax", "pmin")
KINDS = (*REDUCTIONS, "all_gather", "psum_scatter", "ppermute", "all_to_all")
PROGRAM_SECONDS = 40.0
_QUICK_TO_COMPILE = "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"
_LARGEST = 40_000  # elements of a rank's part, now and then


@dataclass(frozen=True)
class Call:
    """A collective of one of the arguments; perhaps of one that depends on what an earlier call has given."""

    kind: str
    argument: int
    axes: tuple[str, ...]
    after: int | None
    shift: int  # of ppermute


@dataclass(frozen=True)
class Program:
    """Calls, and the parts of all ranks for each argument, in the first dimensions of it."""

    axes: dict[str, int]
    arguments: list[Array]
    calls: list[Call]


def make_program(number: int, ranks: int) -> Program:
    """Make the program of a number. Ranks form one axis, or where they can in half of the programs two."""
    rng = np.random.default_rng([number, ranks])
    axes = {"x": 2, "y": ranks // 2} if ranks > 2 and ranks % 2 == 0 and rng.random() < 0.5 else {"x": ranks}
    arguments = []
    for dtype in rng.choice(DTYPES, int(rng.integers(1, 7))):
        rows = ranks * int(rng.integers(1, 4))
        largest = _LARGEST if rng.random() < 0.1 else 200
        columns = 1 + int(math.exp(rng.uniform(0, math.log(largest)))) // rows
        arguments.append(rng.integers(0, 9, (*axes.values(), rows, columns)).astype(_numpy_dtype(str(dtype))))
    calls: list[Call] = []
    for place in range(int(rng.integers(2, 17))):
        argument = int(rng.integers(len(arguments)))
        kinds = KINDS if arguments[argument].dtype.kind in "fV" else [kind for kind in KINDS if kind != "pmean"]
        kinds = [kind for kind in kinds if arguments[argument].dtype.kind != "c" or kind not in ("pmax", "pmin")]
        kind = str(rng.choice(kinds))
        whole = kind in REDUCTIONS and rng.random() < 0.5  # jax.vmap knows no others over two axes at once
        names = tuple(axes) if whole else (str(rng.choice(list(axes))),)
        after = int(rng.integers(place)) if place and rng.random() < 0.2 else None
        calls.append(Call(kind, argument, names, after, int(rng.integers(ranks))))
    return Program(axes, arguments, calls)


def _numpy_dtype(name: str) -> Any:
    import ml_dtypes

    return ml_dtypes.bfloat16 if name == "bfloat16" else name


def body(program: Program) -> Callable[..., Any]:
    """Write a program as one function of a rank's parts, and of how long it works before each call."""
    import jax.numpy as jnp
    from jax import lax

    turn = jnp.roll(jnp.eye(24, dtype=jnp.float32), 1, 0)

    def after_work(value: Any, steps: Any) -> Any:
        turned = lax.fori_loop(0, steps, lambda _, each: each @ turn, turn)
        return value + (turned.sum() - 24).astype(value.dtype)  # 0, which the compiler does not know

    def collective(call: Call, value: Any) -> Any:
        size = math.prod(program.axes[name] for name in call.axes)
        axes = call.axes if len(call.axes) > 1 else call.axes[0]
        if call.kind in REDUCTIONS:
            return getattr(lax, call.kind)(value, axes)
        if call.kind == "all_gather":
            return lax.all_gather(value, axes, tiled=True)
        if call.kind == "psum_scatter":
            return lax.psum_scatter(value, axes, tiled=True)
        if call.kind == "all_to_all":
            return lax.all_to_all(value, axes, 0, 0, tiled=True)
        return lax.ppermute(value, axes, [(rank, (rank + call.shift) % size) for rank in range(size)])

    def run(steps: Any, *parts: Any) -> list[Any]:
        results: list[Any] = []
        for place, call in enumerate(program.calls):
            value = after_work(parts[call.argument], steps[place])
            if call.after is not None:
                value = value + (results[call.after].real.sum() > 0).astype(value.dtype)
            results.append(collective(call, value))
        return results

    return run


class Comparison:
    """Runs programs on all ranks, and in this process alone."""

    def __init__(self) -> None:
        # Compiling takes nearly all of the time. XLA reads this when it starts; the order of its calls stays as free.
        os.environ.setdefault("XLA_FLAGS", _QUICK_TO_COMPILE)
        import jax

        jax.config.update("jax_enable_x64", True)
        jax.distributed.initialize()
        self.rank, self.ranks = jax.process_index(), jax.process_count()

    def wrong_calls(self, number: int, repeats: int) -> list[str]:
        """Name the calls of a program that give something else than in one process."""
        program = make_program(number, self.ranks)
        expected = self._alone(program)
        rng = np.random.default_rng([number, self.rank])  # each rank at its own pace
        wrong: list[str] = []
        run = self._compiled(program)
        for _ in range(repeats):
            steps = rng.integers(0, 200, len(program.calls)) * (rng.random(len(program.calls)) < 0.5)
            results = run(steps)
            for place, (call, result, wanted) in enumerate(zip(program.calls, results, expected, strict=True)):
                tolerance = 2e-2 if wanted.dtype.itemsize == 2 else 1e-5 if wanted.dtype.kind in "fc" else 0.0
                kind = np.complex128 if wanted.dtype.kind == "c" else np.float64
                if not np.allclose(result.astype(kind), wanted.astype(kind), rtol=tolerance, atol=0):
                    wrong.append(f"call {place}, {call.kind} of {wanted.dtype} over {call.axes}")
        return wrong

    def _alone(self, program: Program) -> list[Array]:
        """Calculate what this rank is to get, for all ranks at once and without any collective."""
        import jax

        run = body(program)
        for name in reversed(program.axes):
            run = jax.vmap(run, axis_name=name)
        steps = np.zeros((*program.axes.values(), len(program.calls)), np.int64)
        place = np.unravel_index(self.rank, tuple(program.axes.values()))
        return [np.asarray(each)[place] for each in jax.jit(run)(steps, *program.arguments)]

    def _compiled(self, program: Program) -> Callable[[Array], list[Array]]:
        import jax
        from jax.sharding import Mesh, NamedSharding
        from jax.sharding import PartitionSpec as P

        sizes = tuple(program.axes.values())
        mesh = Mesh(np.array(jax.devices()).reshape(sizes), tuple(program.axes))
        spec = P(tuple(program.axes))

        def spread(own: Array) -> Any:
            shape = (self.ranks * own.shape[0], *own.shape[1:])
            return jax.make_array_from_single_device_arrays(shape, NamedSharding(mesh, spec), [jax.device_put(own)])

        run = jax.jit(jax.shard_map(body(program), mesh=mesh, in_specs=spec, out_specs=spec, check_vma=False))
        place = np.unravel_index(self.rank, sizes)
        parts = [spread(each[place]) for each in program.arguments]
        return lambda steps: [np.asarray(each.addressable_shards[0].data) for each in run(spread(steps), *parts)]


def compare(first: int, programs: int, repeats: int) -> int:
    """Compare programs on all ranks of a job; return how many were wrong on this one."""
    comparison, wrong, began = Comparison(), 0, time.monotonic()
    for number in range(first, first + programs):
        faulthandler.dump_traceback_later(PROGRAM_SECONDS, exit=True)
        if calls := comparison.wrong_calls(number, repeats):
            wrong += 1
            print(f"rank {comparison.rank}: program {number}: {'; '.join(calls)}\n", end="", flush=True)
        done = number + 1 - first
        if comparison.rank == 0 and done % 50 == 0:
            print(f"{done} programs on {comparison.ranks} ranks in {time.monotonic() - began:.0f} s", flush=True)
    faulthandler.cancel_dump_traceback_later()
    print(f"rank {comparison.rank} of {comparison.ranks}: {wrong} of {programs} programs wrong\n", end="", flush=True)
    return wrong


def main() -> int:
    """Start the job, or be a rank of it."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("-n", "--ranks", type=int, help="how many ranks to start; without it, this is one")
    parser.add_argument("--programs", type=int, default=30)
    parser.add_argument("--first", type=int, default=0, help="the number of the first program")
    parser.add_argument("--repeats", type=int, default=3, help="how often each program runs, each time at another pace")
    given = parser.parse_args()
    if given.ranks is None:
        return compare(given.first, given.programs, given.repeats) != 0
    numbers = ["--programs", given.programs, "--first", given.first, "--repeats", given.repeats]
    words = ["run", "-n", given.ranks, "--jax", "--", Path(__file__).resolve(), *numbers]
    return subprocess.call([sys.executable, "-m", "gradientflow", *map(str, words)])


if __name__ == "__main__":
    sys.exit(main())
