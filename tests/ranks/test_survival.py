"""Training that goes on when ranks die: what is left is to the bit what a replay of those who took part gives."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from jobs import ENDS_WITHOUT_MPI, Finished
from survival_replay import FLOATS
from survivors import METHODS, Fate, check, rest, run_ranks, train

import gradientflow as gf
from gradientflow.errors import ArgumentError

Command = Callable[[str], list[str]]

CSC = "csc(density=0.2, chunk_size=32, momentum=1.0)"
MIXED = ("float32", "float16", "float32")


@pytest.mark.parametrize("strategy", METHODS)
def test_survivors_go_on(process_command: Command, tmp_path: Path, strategy: str) -> None:
    program = process_command("survival")
    victim = random.randrange(3)
    fates = [(victim, random.randrange(10), "die", random.random() * 0.003)]
    left = train(program, tmp_path / "left", 3, strategy, fates, node_size=random.choice((0, 1, 2)))
    check(left, strategy)
    assert sorted(left) == [str(rank) for rank in range(3) if rank != victim]


@pytest.mark.parametrize(
    "strategy",
    [
        "dense",
        CSC,
        "top_k(ratio=8)",
        "powersgd(rank=2, warmup=3)",
    ],
)
def test_a_rank_that_is_behind_catches_up(process_command: Command, tmp_path: Path, strategy: str) -> None:
    """Rank 2 has not heard the end of a step that the others have made; rank 0 dies after it."""
    fates = [(2, 7, "fall behind", 0.0), (0, 7, "die after", 0.0)]
    left = train(process_command("survival"), tmp_path / "left", 4, strategy, fates, node_size=1)
    steps = check(left, strategy)
    assert steps[7] == ["0", "1", "2", "3"]
    assert steps[8] == ["1", "2", "3"]
    assert [left[rank]["changes"] for rank in "123"] == [[8], [8], [8]]  # though rank 2 knew before


@pytest.mark.parametrize(
    ("strategy", "fates"),
    [
        (CSC, [(1, 4, "die", 0.001)]),
        ("top_k(ratio=8)", [(2, 7, "fall behind", 0.0), (0, 7, "die after", 0.0)]),
        ("dense", [(0, 4, "die", 0.0)]),
    ],
)
def test_tensors_of_several_dtypes(process_command: Command, tmp_path: Path, strategy: str, fates: list[Fate]) -> None:
    left = train(process_command("survival"), tmp_path / "left", 4, strategy, fates, dtypes=MIXED, node_size=1)
    check(left, strategy, dtypes=MIXED)
    assert len(left) == 3


@pytest.mark.parametrize("outcome", ["kept", "dropped"])
@pytest.mark.parametrize("strategy", [CSC, "top_k(ratio=8)"])
def test_an_iteration_that_fails_in_one_pool_is_kept_or_dropped_in_all(
    process_command: Command, strategy: str, outcome: str
) -> None:
    run_ranks(process_command("several_pools"), 2, strategy, outcome, timeout=20)


@pytest.mark.parametrize("strategy", ["dense", CSC, "top_k(ratio=8)", "ssgd(replicas=1)"])
def test_survivors_go_on_over_mpi(mpirun: Callable[..., Finished], tmp_path: Path, strategy: str) -> None:
    """Ranks die one after the other."""
    fates = [(0, 4, "die", 0.0), (3, 11, "die after", 0.0), (1, 20, "die", random.random() * 0.003)]
    env = {**ENDS_WITHOUT_MPI, "GRADIENTFLOW_NODE_SIZE": random.choice("012")}
    finished = mpirun(
        4, "survival", tmp_path, strategy, json.dumps(fates), *FLOATS, env=env, recover="ulfm", check=False
    )
    left = rest(tmp_path)
    assert list(left) == ["2"], finished.output
    assert check(left, strategy)[-1] == ["2"]


@pytest.mark.slow
@pytest.mark.parametrize("dtypes", [FLOATS, MIXED])
@pytest.mark.parametrize("strategy", METHODS)
def test_many_kills(process_command: Command, tmp_path: Path, strategy: str, dtypes: Sequence[str]) -> None:
    program = process_command("survival")
    for number in range(15):
        ranks = random.randrange(2, 5)
        victims = random.sample(range(ranks), random.randrange(1, ranks))
        fates = [(victim, random.randrange(10), "die", random.random() * 0.003) for victim in victims]
        print(ranks, fates)  # to be read where it fails
        node_size = random.choice((0, 1, 2))
        left = train(program, tmp_path / str(number), ranks, strategy, fates, dtypes=dtypes, node_size=node_size)
        check(left, strategy, dtypes=dtypes)
        assert set(left) >= {
            str(rank) for rank in range(ranks) if rank not in victims
        }  # a rank alone may end before it dies


@pytest.mark.parametrize("strategy", ["dense", "csc(density=0.2, chunk_size=32, momentum=1.0)", "ssgd(replicas=1)"])
def test_a_rank_dies_before_it_has_made_its_loop(process_command: Command, tmp_path: Path, strategy: str) -> None:
    left = train(process_command("survival"), tmp_path / "left", 3, strategy, [(1, -1, "die", 0.0)])
    assert len(left) == 2
    check(left, strategy)


def test_the_rank_dies_with_whose_weights_all_were_to_begin(process_command: Command, tmp_path: Path) -> None:
    with pytest.raises(AssertionError) as failure:
        train(process_command("survival"), tmp_path / "left", 3, "dense", [(0, -1, "die", 0.0)])
    assert str(failure.value).count("CommunicationError: rank 0 has died before its weights, with which all begin") == 2


def test_what_needs_all_ranks_is_refused() -> None:
    def loop(strategy: str, dtypes: Sequence[str] = ("float32",), **options: Any) -> None:
        weights = [np.zeros(20, dtype) for dtype in dtypes]
        with gf.init(transport="tcp") as comm, gf.training.ArrayLoop(comm, weights, strategy, **options) as training:
            assert training.membership == gf.training.Membership(0, 1, (0,))
            assert not training.changed
            if options.get("on_failure") == "continue":
                with pytest.raises(ArgumentError, match="join"), training.join():
                    pass

    loop("dense")
    loop("dense", ("float32", "float64"), on_failure="continue", min_ranks=1)
    for strategy in ("diloco", "hpsgd", "psgd", "csc"):
        loop(strategy, on_failure="continue")
        loop(strategy, ("float32", "float16"), on_failure="continue")
    sign_sgd = Path(__file__).resolve().parents[2] / "docs" / "examples" / "sign_sgd.py"
    with pytest.raises(ArgumentError, match="cannot go on without a rank that was lost: it needs on_failure='raise'"):
        loop(f"{sign_sgd}:SignSGD", on_failure="continue")
    with pytest.raises(ArgumentError, match="'raise' or 'continue', not 'stop'"):
        loop("dense", on_failure="stop")
    with pytest.raises(ArgumentError, match="min_ranks goes with on_failure='continue'"):
        loop("dense", min_ranks=1)
    with pytest.raises(ArgumentError, match="min_ranks"):
        loop("dense", on_failure="continue", min_ranks=0)


def test_a_rank_that_loses_another_at_the_end_waits_for_none_that_is_past_it(process_command: Command) -> None:
    printed = run_ranks(process_command("two_rounds"), 3).splitlines()
    assert sorted(printed) == [f"rank {rank} has recovered: True" for rank in range(3)]


@pytest.mark.parametrize("node_size", [0, 1])
def test_a_rank_that_has_closed_its_communicator_is_not_waited_for(
    process_command: Command, tmp_path: Path, node_size: int
) -> None:
    program = process_command("past_the_end")
    printed = run_ranks(program, 3, tmp_path / "has_ended", node_size=node_size, timeout=20)
    assert re.match(r"\(1,\) without \(\(0, 'has closed the communicator'\), \(2, 'has died: ", printed), printed


def test_a_step_that_a_rank_gives_up_comes_again(process_command: Command) -> None:
    run_ranks(process_command("gives_up"), 3)


def test_what_a_rank_has_sent_in_a_failed_iteration_leaves_its_residuals(process_command: Command) -> None:
    """Where the other ranks say that they have ended it."""
    for node_size in (0, 1):
        run_ranks(process_command("settle"), 2, node_size=node_size)


def test_objects_are_handed_over_and_their_arrays_are_not_copied(process_command: Command) -> None:
    run_ranks(process_command("hand_over"), 3)
