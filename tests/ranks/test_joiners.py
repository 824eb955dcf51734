"""Training loops that take in ranks which were started again: the end is to the bit that of a replay."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest
from survivors import METHODS, Fate, check, newcomers, run_ranks, train

Command = Callable[[str], list[str]]

FATES: dict[str, list[Fate]] = {
    "one": [(1, 5, "die", 0)],
    "the first": [(0, 5, "die", 0)],
    "two at once": [(0, 4, "die", 0), (2, 4, "die", 0)],
    "twice": [(1, 3, "die", 0), (1, 18, "die again", 0)],
}


@pytest.mark.parametrize(
    ("fates", "strategy"),
    [
        ("one", "csc(density=0.2, chunk_size=32, momentum=1.0)"),
        ("the first", "dense"),
        ("two at once", "top_k(ratio=8)"),
        ("the first", "powersgd(rank=2, warmup=3)"),
        pytest.param("twice", "dense", marks=pytest.mark.slow),
    ],
)
def test_a_rank_comes_back(process_command: Command, tmp_path: Path, fates: str, strategy: str) -> None:
    left = train(process_command("survival"), tmp_path / "left", 3, strategy, FATES[fates], restart=True)
    check(left, strategy)
    assert len(left) == 3
    assert newcomers(left)


def test_one_with_other_settings_is_sent_away(process_command: Command, tmp_path: Path) -> None:
    is_sent_away = tmp_path / "is_sent_away"
    printed = run_ranks(process_command("other_settings"), 3, is_sent_away, restart=True)
    assert printed.splitlines() == ["2 ranks go on"] * 2
    message = "the ranks have different models: strategy is csc on rank 2 and dense on rank 0"
    assert is_sent_away.read_text() == message


@pytest.mark.slow
@pytest.mark.parametrize("strategy", METHODS)
def test_many_come_and_go(process_command: Command, tmp_path: Path, strategy: str) -> None:
    for number in range(3):
        ranks = random.randrange(2, 5)
        victims = random.sample(range(ranks), random.randrange(1, ranks))
        fates = [(victim, random.randrange(10), "die", random.random() * 0.05) for victim in victims]
        print(ranks, fates)  # to be read where it fails
        left = train(process_command("survival"), tmp_path / str(number), ranks, strategy, fates, restart=True)
        check(left, strategy)
        assert len(left) == ranks
