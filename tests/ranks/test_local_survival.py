"""Ranks that train on weights of their own, and die and come: the end is that of a replay of what each has done."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
from survival_replay import FLOATS
from survivors import Fate, Left, newcomers, numbered_gradient, rest, rounded, run_ranks

from gradientflow.bench.survive.local_replay import Replay
from gradientflow.bench.survive.log import read

Command = Callable[[str], list[str]]

LOCAL = "local_sgd(period=4)"
FRAGMENTS = "diloco(period=6, fragments=2, outer_rate=0.5, outer_momentum=0.5)"
DELAYED = "diloco(period=6, fragments=2, delay=4, outer_rate=0.5, outer_momentum=0.5)"
SPARSE = "sparse_loco(period=4, decay=0.5)"
HALVES = ("float16", "float32", "float16")
ALONE = "psgd"
METHODS = (LOCAL, "local_sgd(period=4, delay=2)", FRAGMENTS, DELAYED, SPARSE)

FATES: dict[str, list[Fate]] = {
    "in between": [(1, 9, "die", 0)],
    "the first": [(0, 10, "die", 0)],
    "in the exchange": [(0, 11, "die in", 0)],
    "behind": [(2, 11, "miss", 0), (0, 12, "die", 0)],
    "two at once": [(0, 10, "die", 0), (2, 10, "die", 0)],
    "at the end": [(2, 29, "die at the end", 0)],
    "behind at the end": [(1, 29, "miss", 0), (0, 29, "die at the end", 0)],
}

ALONE_FATES: dict[str, list[Fate]] = {
    "before": [(0, 9, "die", 0), (2, 20, "die", 0)],
    "at the end": [(0, 29, "die at the end", 0)],
    "behind": [(1, 29, "miss the end", 0)],
}

FAST = (
    ("the first", FRAGMENTS),
    ("in the exchange", SPARSE),
    ("behind", DELAYED),
    ("two at once", LOCAL),
    ("behind at the end", DELAYED),
)

COME_BACK: dict[str, list[Fate]] = {
    "one": [(1, 5, "die", 0)],
    "the first": [(0, 5, "die", 0)],
    "two at once": [(0, 4, "die", 0), (2, 4, "die", 0)],
    "twice": [(1, 3, "die", 0), (1, 18, "die again", 0)],
}


def train(
    program: Sequence[str],
    folder: Path,
    ranks: int,
    strategy: str,
    fates: Sequence[Fate],
    dtypes: Sequence[str] = FLOATS,
    *,
    restart: bool = False,
) -> Left:
    """Run the program. Return what is left, which is that of a replay."""
    folder.mkdir()
    run_ranks(program, ranks, folder, strategy, json.dumps(fates), *dtypes, restart=restart)
    left = rest(folder)
    replay = Replay(strategy, read(folder), [found["number"] for found in left.values()], numbered_gradient)
    first = next(iter(left.values()))["weights"]
    for found in left.values():
        rank = replay.ranks[found["number"]]
        assert np.array_equal(found["weights"], first)
        if strategy in (LOCAL, ALONE):
            assert np.array_equal(found["masters"], rank.weights)
        masters = found["masters"]
        assert np.abs(masters - rank.weights).max() < 0.02  # rounded; anything wrong would change more
        assert np.array_equal(found["weights"], rounded(masters, dtypes))
        assert not len(found["residuals"]) or np.array_equal(found["residuals"], rank.residuals)
    return left


def check_survivors(
    program: Sequence[str], folder: Path, strategy: str, fates: Sequence[Fate], dtypes: Sequence[str] = FLOATS
) -> None:
    left = train(program, folder, 4, strategy, fates, dtypes)
    dead = {str(rank) for rank, _, what, _ in fates if what.startswith("die")}
    assert set(left) == {"0", "1", "2", "3"} - dead


@pytest.mark.parametrize(("fates", "strategy"), FAST)
def test_survivors_go_on(process_command: Command, tmp_path: Path, fates: str, strategy: str) -> None:
    check_survivors(process_command("local_survival"), tmp_path / "left", strategy, FATES[fates])


@pytest.mark.parametrize("fates", ALONE_FATES)
def test_a_loss_is_noticed_at_the_end_where_nothing_is_exchanged_before(
    process_command: Command, tmp_path: Path, fates: str
) -> None:
    check_survivors(process_command("local_survival"), tmp_path / "left", ALONE, ALONE_FATES[fates])


def test_nobody_is_told_of_an_exchange_that_nobody_needs(process_command: Command, tmp_path: Path) -> None:
    (tmp_path / "left").mkdir()
    fates: list[Fate] = [(1, 4, "die", 0.0)]  # one is under way, and another begins
    arguments = (process_command("local_survival"), 4, tmp_path / "left", DELAYED, json.dumps(fates), *FLOATS)
    assert "has waited for its handle" not in run_ranks(*arguments, errors=True)


@pytest.mark.slow
@pytest.mark.parametrize("dtypes", [FLOATS, HALVES])
@pytest.mark.parametrize("strategy", METHODS)
def test_survivors_go_on_with_all(
    process_command: Command, tmp_path: Path, strategy: str, dtypes: Sequence[str]
) -> None:
    for number, fates in enumerate(FATES.values()):
        check_survivors(process_command("local_survival"), tmp_path / str(number), strategy, fates, dtypes)


@pytest.mark.slow
@pytest.mark.parametrize("strategy", [*METHODS, ALONE])
def test_many_kills(process_command: Command, tmp_path: Path, strategy: str) -> None:
    for number in range(8):
        ranks = random.randrange(2, 5)
        victims = random.sample(range(ranks), random.randrange(1, ranks))
        fates = [(victim, random.randrange(30), "die", random.random() * 0.003) for victim in victims]
        print(ranks, fates)  # to be read where it fails
        left = train(process_command("local_survival"), tmp_path / str(number), ranks, strategy, fates)
        assert set(left) >= {str(rank) for rank in range(ranks) if rank not in victims}


@pytest.mark.parametrize(
    ("fates", "strategy"),
    [
        ("behind", LOCAL),
        ("in the exchange", DELAYED),
    ],
)
def test_survivors_go_on_with_weights_of_16_bits(
    process_command: Command, tmp_path: Path, fates: str, strategy: str
) -> None:
    """The weights that are exchanged are the master weights."""
    check_survivors(process_command("local_survival"), tmp_path / "left", strategy, FATES[fates], HALVES)


@pytest.mark.parametrize("strategy", [LOCAL, DELAYED])
def test_a_rank_comes_back_to_weights_of_16_bits(process_command: Command, tmp_path: Path, strategy: str) -> None:
    fates = COME_BACK["the first"]
    left = train(process_command("local_survival"), tmp_path / "left", 3, strategy, fates, HALVES, restart=True)
    assert len(left) == 3


@pytest.mark.parametrize(
    ("fates", "strategy"),
    [
        ("the first", DELAYED),
        ("two at once", SPARSE),
        *(
            pytest.param(fates, strategy, marks=pytest.mark.slow)
            for fates in COME_BACK
            for strategy in METHODS
            if (fates, strategy) not in (("the first", DELAYED), ("two at once", SPARSE))
        ),
    ],
)
def test_a_rank_comes_back(process_command: Command, tmp_path: Path, fates: str, strategy: str) -> None:
    left = train(process_command("local_survival"), tmp_path / "left", 3, strategy, COME_BACK[fates], restart=True)
    assert len(left) == 3
    assert newcomers(left)


@pytest.mark.parametrize("strategy", [LOCAL, DELAYED, "local_sgd(period=40)"])
def test_others_train_on_while_one_comes_back(process_command: Command, tmp_path: Path, strategy: str) -> None:
    file = tmp_path / "others have trained on"
    said = run_ranks(process_command("local_ends"), 3, "meanwhile", strategy, file, restart=True).splitlines()
    assert len(said) == 3
    assert len(set(said)) == 1


@pytest.mark.parametrize(
    ("what", "strategy", "ranks"),
    [("loaded", LOCAL, 3), ("apart", "diloco(period=6, delay=4)", 3), ("past the end", LOCAL, 4)],
)
def test_all_end_with_the_same_weights(process_command: Command, what: str, strategy: str, ranks: int) -> None:
    said = run_ranks(process_command("local_ends"), ranks, what, strategy, restart=what == "loaded").splitlines()
    assert len(said) == ranks
    assert len(set(said)) == 1
    assert said[0].endswith(str(what == "loaded"))
