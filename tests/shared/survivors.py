"""Jobs whose ranks die while they train, and what those that are left have in the end."""

from __future__ import annotations

import json
import pickle
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from jobs import begin
from survival_replay import FLOATS, RATE, SIZES, STEPS, gradient, replay

from gradientflow.bench.survive import rounds_replay
from gradientflow.bench.survive.log import read
from gradientflow.launch import module_command

Fate = tuple[int, int, str, float]  # of a rank, in a step; and after how many seconds
Left = dict[str, dict[str, Any]]  # by the names of a roll

Sent = tuple[str, dict[str, float]]  # what a strategy sends: see `replay`

METHODS: dict[str, Sent] = {
    "dense": ("everything", {}),
    "dense(wire='bfloat16')": ("everything", {}),
    "auto": ("everything", {}),
    "csc(density=0.2, chunk_size=32, momentum=1.0)": ("chunks", {"density": 0.2, "chunk_size": 32}),
    "top_k(ratio=8)": ("entries", {"ratio": 8}),
    "dgc(ratio=8, momentum=0, selection='exact')": ("entries", {"ratio": 8}),
    "lags(max_ratio=8, warmup=100, selection='exact')": ("entries", {"ratio": 8}),
    "powersgd(rank=2, warmup=3)": ("products", {"rank": 2, "warmup": 3}),
}
SERVED: dict[str, Sent] = {
    "ssgd(replicas=1)": ("everything", {}),
    "ssgd(replicas=1, servers=2, fusion_threshold=1024)": ("everything", {}),
    "ssd_sgd(k=3, warmup=3, replicas=1)": ("everything", {}),
}


def run_ranks(
    program: Sequence[str],
    ranks: int,
    *arguments: object,
    restart: bool = False,
    env: Mapping[str, str] | None = None,
    errors: bool = False,
    **settings: object,
) -> str:
    """Run a command on ranks that may die; with `restart` they are started again.

    Return what they print; with `errors` on standard error.
    """
    options = ["run", "-n", ranks, "--transport", "tcp", "--min-ranks", "1", *(["--restart"] if restart else ())]
    command = module_command("gradientflow.cli", [str(each) for each in [*options, "--", *program, *arguments]])
    variables = {f"GRADIENTFLOW_{name.upper()}": str(value) for name, value in settings.items()} | dict(env or {})
    job = begin(command, variables | ({"OTHERS_COME": "1"} if restart else {}), 90)
    try:
        ended = job.finish()
    finally:
        job.close()
    assert ended.returncode == 0, ended.output
    return ended.stderr if errors else ended.stdout


def train(
    program: Sequence[str],
    folder: Path,
    ranks: int,
    strategy: str,
    fates: Sequence[Fate],
    *,
    dtypes: Sequence[str] = FLOATS,
    restart: bool = False,
    **settings: Any,
) -> Left:
    """Run the command of tests/programs/survival.py, or of one like it. Return what is left."""
    folder.mkdir()
    run_ranks(program, ranks, folder, strategy, json.dumps(fates), *dtypes, restart=restart, **settings)
    return {path.name: pickle.loads(path.read_bytes()) for path in folder.iterdir()}


def check(
    left: Left, strategy: str, rates: Sequence[float] = (RATE,) * STEPS, dtypes: Sequence[str] = FLOATS
) -> list[Sequence[str]]:
    """Check what is left against the replay. Return who took part in each step.

    Weights are the same on all ranks, and to the bit those of the replay where all sums are of whole numbers.
    """
    took_part = next(found["took_part"] for name, found in left.items() if name not in newcomers(left))
    assert sorted(took_part) == list(range(STEPS))
    steps = [took_part[step] for step in range(STEPS)]
    weights, residuals = replay(*(METHODS | SERVED)[strategy], steps, rates, dtypes)
    weights = rounded(weights, dtypes)
    is_same = partial(np.allclose, rtol=1e-4, atol=2) if strategy.startswith("powersgd") else np.array_equal
    assert set(left) <= set(residuals)
    for name, found in left.items():
        assert name in newcomers(left) or found["took_part"] == took_part
        assert sorted(found["took_part"]) == [step for step in range(STEPS) if name in steps[step]]
        assert np.array_equal(found["weights"], next(iter(left.values()))["weights"])
        assert is_same(found["weights"], weights)
        assert is_same(found["residuals"], residuals[name])
    return steps


def rounded(weights: Any, dtypes: Sequence[str]) -> Any:
    """Return weights as tensors of these dtypes hold them."""
    parts = np.split(weights, np.cumsum(SIZES)[:-1])
    return np.concatenate([part.astype(dtype).astype(part.dtype) for part, dtype in zip(parts, dtypes, strict=True)])


def rest(folder: Path) -> Left:
    """Return what processes have left in a folder beside their logs, by their names."""
    return {path.name: pickle.loads(path.read_bytes()) for path in folder.iterdir() if path.suffix == ""}


def numbered_gradient(number: int, step: int, rank: int, size: int) -> Any:
    """Return the gradient of a process, as its entry in a log says."""
    return gradient(step, rank, size)


def train_in_rounds(
    program: Sequence[str],
    folder: Path,
    ranks: int,
    fates: Sequence[Fate],
    dtypes: Sequence[str] = FLOATS,
    *,
    restart: bool = False,
) -> Left:
    """Run the command of tests/programs/rounds_survival.py, or of one like it.

    Return what is left, which is to the bit that of a replay.
    """
    folder.mkdir()
    run_ranks(program, ranks, folder, "hpsgd", json.dumps(fates), *dtypes, restart=restart)
    left = rest(folder)
    replay = rounds_replay.Replay(read(folder), [found["number"] for found in left.values()], numbered_gradient)
    for found in left.values():
        assert np.array_equal(found["masters"], replay.common[-1])
        assert np.array_equal(found["weights"], rounded(found["masters"], dtypes))
    return left


def newcomers(left: Left) -> list[str]:
    """Return the names of those that have come later."""
    return [name for name in left if ":" in name]


__all__ = [
    "METHODS",
    "SERVED",
    "check",
    "newcomers",
    "numbered_gradient",
    "rest",
    "rounded",
    "run_ranks",
    "train",
    "train_in_rounds",
]
