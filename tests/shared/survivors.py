"""Jobs whose ranks die while they train, and what those that are left have in the end."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from jobs import begin
from survival_groups import TRAININGS

from gradientflow.launch import module_command

from survive.ending import Ending
from survive.task import FLOATS, RATE

MIXED = ("float32", "float16", "float32")
HALVES = ("float16", "float32", "float16")


class Fate(NamedTuple):
    """What happens to a rank: see tests/programs/fates.py."""

    rank: int  # at the beginning of the job
    step: int
    what: str = "die"
    seconds: float = 0.0


class Training(NamedTuple):
    """One of the trainings of a job."""

    name: str  # of a group
    fates: Sequence[Fate] = ()
    dtypes: Sequence[str] = FLOATS


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


def arguments_for(folder: Path, trainings: Sequence[Training]) -> tuple[Path, str]:
    """Return the arguments of tests/programs/survival.py, whose folders are made."""
    for number in range(len(trainings)):
        (folder / str(number)).mkdir(parents=True)
    return folder, json.dumps(trainings)


def train(
    program: Sequence[str],
    folder: Path,
    ranks: int,
    trainings: Sequence[Training],
    *,
    restart: bool = False,
    rate: Callable[[int], float] = lambda _: RATE,
    **settings: object,
) -> list[Ending]:
    """Run the command of tests/programs/survival.py, or of one like it, and check what is left of each training."""
    print(trainings, settings)  # to be read where it fails
    run_ranks(program, ranks, *arguments_for(folder, trainings), restart=restart, **settings)
    return endings(folder, ranks, trainings, restart=restart, rate=rate)


def endings(
    folder: Path,
    ranks: int,
    trainings: Sequence[Training],
    *,
    restart: bool = False,
    rate: Callable[[int], float] = lambda _: RATE,
) -> list[Ending]:
    """Return what is left of each training, where it is right.

    All weights are the same, to the bit, and those of the replay; those that have died are missing, and were replaced
    if they were started again.
    """
    found, living = list[Ending](), set(range(ranks))
    for number, (name, fates, dtypes) in enumerate(trainings):
        dead = [fate.rank for fate in fates if fate.what.startswith("die")]
        where = folder / str(number)
        words = {int(path.suffix[1:]): json.loads(path.read_text()) for path in where.glob("words.*")}
        for place in dead:
            own = max(each for each in living if each % 10 == place)
            living.remove(own)
            living |= {own + 10} if restart else set()
        assert set(words) == living, f"training {number}"
        ending = Ending(where, ranks, len(dead), words, dtypes, rate)
        assert not (problem := TRAININGS[name].check(ending)), f"training {number}: {problem}"
        first = next(iter(words.values()))
        assert all(each == first for each in words.values()), f"training {number}: {words}"
        weights = [np.load(where / f"left.{own}.npz")["weights"] for own in words]
        assert all(np.array_equal(each, weights[0]) for each in weights)
        found.append(ending)
    return found


__all__ = ["HALVES", "MIXED", "Fate", "Training", "arguments_for", "endings", "run_ranks", "train"]
