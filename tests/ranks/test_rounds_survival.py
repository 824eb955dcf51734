"""hpsgd, whose ranks die and come while rounds are under way: the end is that of a replay of what each has done."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
from survivors import Fate, newcomers, run_ranks
from survivors import train_in_rounds as train

Command = Callable[[str], list[str]]

FATES: dict[str, list[Fate]] = {
    "in between": [(1, 9, "die", 0)],
    "the first": [(0, 10, "die", 0)],
    "in the round": [(0, 11, "die in", 0)],
    "behind": [(2, 11, "miss", 0)],
    "behind one that dies": [(2, 11, "miss", 0), (0, 3, "die in recovery", 0)],
    "two at once": [(0, 10, "die", 0), (2, 10, "die", 0)],
    "in recovery": [(0, 10, "die", 0), (2, 3, "die in recovery", 0)],
    "at the end": [(2, 29, "die at the end", 0)],
    "behind at the end": [(1, 29, "miss", 0), (0, 29, "die at the end", 0)],
}

COME_BACK: dict[str, list[Fate]] = {
    "one": [(1, 5, "die", 0)],
    "the first": [(0, 5, "die", 0)],
    "two at once": [(0, 4, "die", 0), (2, 4, "die", 0)],
    "twice": [(1, 3, "die", 0), (1, 18, "die again", 0)],
}


def some_are_slow(names: Iterable[str], *others: str) -> list[Any]:
    return [name if name in others else pytest.param(name, marks=pytest.mark.slow) for name in names]


@pytest.mark.parametrize("fates", some_are_slow(FATES, "the first", "in the round", "behind", "behind at the end"))
def test_survivors_go_on(process_command: Command, tmp_path: Path, fates: str) -> None:
    left = train(process_command("rounds_survival"), tmp_path / "left", 4, FATES[fates])
    dead = {str(rank) for rank, _, what, _ in FATES[fates] if what.startswith("die")}
    assert set(left) == {"0", "1", "2", "3"} - dead


def test_weights_of_16_bits(process_command: Command, tmp_path: Path) -> None:
    """Rounds change the master weights."""
    dtypes = ("float16", "float32", "float16")
    left = train(process_command("rounds_survival"), tmp_path / "left", 3, COME_BACK["one"], dtypes, restart=True)
    assert len(newcomers(left)) == 1


def test_what_was_bound_to_ranks_before_is_freed(process_command: Command) -> None:
    printed = run_ranks(process_command("survival_ends"), 3, "freed", "hpsgd").splitlines()
    assert printed.count("freed True") == 2


@pytest.mark.parametrize("fates", some_are_slow(COME_BACK, "two at once"))
def test_a_rank_comes_back(process_command: Command, tmp_path: Path, fates: str) -> None:
    left = train(process_command("rounds_survival"), tmp_path / "left", 3, COME_BACK[fates], restart=True)
    assert len(left) == 3
    assert newcomers(left)


@pytest.mark.slow
@pytest.mark.parametrize("restart", [False, True])
def test_many_kills(process_command: Command, tmp_path: Path, restart: bool) -> None:
    for number in range(10):
        ranks = random.randrange(2, 5)
        victims = random.sample(range(ranks), random.randrange(1, ranks))
        fates = [(victim, random.randrange(30 - 15 * restart), "die", random.random() * 0.005) for victim in victims]
        print(ranks, fates)  # to be read where it fails
        left = train(process_command("rounds_survival"), tmp_path / str(number), ranks, fates, restart=restart)
        assert set(left) >= {str(rank) for rank in range(ranks) if rank not in victims}
