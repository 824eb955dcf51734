"""Strategies on parameter servers whose ranks die and come: what is left is a state that all servers have."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from survivors import SERVED, Fate, check, newcomers, run_ranks, train

from gradientflow.errors import PeerError
from gradientflow.server.recovery import _parts
from gradientflow.training.survival import Survival

Command = Callable[[str], list[str]]

ASYNCHRONOUS = ("asgd(replicas=1)", "ssp(3, replicas=1)", "dssp(2, 4, replicas=1)", "elastic_bsp(8, replicas=1)")


@pytest.mark.parametrize("strategy", SERVED)
def test_survivors_go_on(process_command: Command, tmp_path: Path, strategy: str) -> None:
    victim = random.randrange(3)
    fates = [(victim, random.randrange(10), "die", random.random() * 0.003)]
    node_size = random.choice((0, 1, 2))
    print(fates, node_size)  # to be read where it fails
    left = train(process_command("survival"), tmp_path / "left", 3, strategy, fates, node_size=node_size)
    check(left, strategy)
    assert sorted(left) == [str(rank) for rank in range(3) if rank != victim]


@pytest.mark.parametrize("node_size", [0, 1])
def test_one_after_the_other_dies(process_command: Command, tmp_path: Path, node_size: int) -> None:
    fates = [(0, 4, "die", 0.0), (3, 11, "die after", 0.0), (1, 20, "die", 0.001)]
    strategy = "ssgd(replicas=1)"
    left = train(process_command("survival"), tmp_path / "left", 4, strategy, fates, node_size=node_size)
    assert check(left, strategy)[-1] == ["2"]


def test_without_copies_a_rank_that_serves_nothing_may_die(process_command: Command, tmp_path: Path) -> None:
    strategy = "ssgd(servers=1)"
    fates: list[Fate] = [(2, 6, "die", 0.0)]
    SERVED[strategy] = SERVED["ssgd(replicas=1)"]
    try:
        left = train(process_command("survival"), tmp_path / "left", 3, strategy, fates, node_size=1)
        assert check(left, strategy)[-1] == ["0", "1"]
    finally:
        del SERVED[strategy]


def test_weights_that_are_lost_are_the_same_error_on_all_ranks(process_command: Command, tmp_path: Path) -> None:
    fates: list[Fate] = [(1, 6, "die", 0.0)]
    with pytest.raises(AssertionError) as failure:
        train(process_command("survival"), tmp_path / "left", 3, "ssgd", fates)
    assert str(failure.value).count("CommunicationError: the weights of server 1 are lost with its rank") == 2


@pytest.mark.parametrize("strategy", ASYNCHRONOUS)
def test_ranks_at_their_own_pace_go_on(process_command: Command, tmp_path: Path, strategy: str) -> None:
    """Which pushes have been applied depends on time: ranks are compared with each other."""
    victim = random.randrange(3)
    fates = [(victim, random.randrange(10), "die", random.random() * 0.003)]
    print(fates)
    left = train(process_command("survival"), tmp_path / "left", 3, strategy, fates, node_size=random.choice((0, 1)))
    weights = [found["weights"] for found in left.values()]
    assert len(weights) == 2
    assert np.isfinite(weights[0]).all()
    assert np.array_equal(weights[0], weights[1])


@pytest.mark.parametrize(
    ("strategy", "victim"),
    [
        *(("ssgd(replicas=1)", 0), ("ssd_sgd(k=3, warmup=3, replicas=1)", 1), ("asgd(replicas=1)", 0)),
        pytest.param("ssgd(replicas=1)", 1, marks=pytest.mark.slow),
        pytest.param("ssd_sgd(k=3, warmup=3, replicas=1)", 0, marks=pytest.mark.slow),
        pytest.param("asgd(replicas=1)", 1, marks=pytest.mark.slow),
    ],
)
def test_a_rank_comes_back(process_command: Command, tmp_path: Path, strategy: str, victim: int) -> None:
    fates: list[Fate] = [(victim, 5, "die", 0)]
    left = train(process_command("survival"), tmp_path / "left", 3, strategy, fates, restart=True)
    assert len(left) == 3
    assert newcomers(left)
    if strategy in SERVED:
        check(left, strategy)
    weights = [found["weights"] for found in left.values()]
    assert all(np.array_equal(each, weights[0]) for each in weights)


@pytest.mark.parametrize("strategy", ["asgd(replicas=1)", "ssgd(replicas=1)"])
def test_a_rank_that_fails_while_others_let_one_in_goes_on_with_them(
    process_command: Command, tmp_path: Path, strategy: str
) -> None:
    fates: list[Fate] = [(1, 5, "die", 0), (2, 7, "miss the door", 0)]
    left = train(process_command("survival"), tmp_path / "left", 4, strategy, fates, restart=True)
    assert len(left) == 4
    weights = [found["weights"] for found in left.values()]
    assert all(np.array_equal(each, weights[0]) for each in weights)


@pytest.mark.parametrize("strategy", ["ssgd(replicas=1)", "ssd_sgd(k=5, warmup=5, replicas=1, local_update='none')"])
def test_steps_that_are_undone_at_the_end_are_made_again(process_command: Command, strategy: str) -> None:
    printed = run_ranks(process_command("survival_ends"), 3, "last", strategy).splitlines()
    assert printed == ["weights -6.0"] * 2


@pytest.mark.parametrize(("what", "strategy"), [("loaded", "ssgd"), ("one goes ahead", "asgd")])
def test_what_servers_had_before_is_not_gone_back_to(process_command: Command, what: str, strategy: str) -> None:
    printed = run_ranks(process_command("survival_ends"), 3, what, strategy).splitlines()
    assert len(printed) == 2
    assert all("are lost with its rank" in each for each in printed), printed


@pytest.mark.parametrize("how", [["bsp"], ["bsp", "behind"], ["bsp", "adam"], ["asp"]])
@pytest.mark.parametrize("node_size", [0, 1])
def test_a_parameter_server_is_recovered(process_command: Command, how: list[str], node_size: int) -> None:
    printed = run_ranks(process_command("recovered_servers"), 3, *how, node_size=node_size)
    assert printed.splitlines() == ["recovered"] * 2


@pytest.mark.slow
@pytest.mark.parametrize("strategy", SERVED)
def test_many_kills(process_command: Command, tmp_path: Path, strategy: str) -> None:
    for number in range(15):
        ranks = random.randrange(2, 5)
        fates = [(random.randrange(ranks), random.randrange(25), "die", random.random() * 0.003)]
        node_size = random.choice((0, 1, 2))
        print(ranks, fates, node_size)  # to be read where it fails
        left = train(process_command("survival"), tmp_path / str(number), ranks, strategy, fates, node_size=node_size)
        check(left, strategy)


def test_too_few_ranks_while_newcomers_come_are_an_error() -> None:
    class Communicator:
        closed = False

    class Served:
        meets_in = "servers"

    class Failing(Survival):
        def __init__(self) -> None:
            self.comm: Any = Communicator()
            self._awaits_head_start = False
            self.recoveries = 0

        def admit(self, synchronizer: Any) -> bool:
            message = "too few are left"
            raise PeerError(message)

        def recover(self, synchronizer: Any) -> None:
            self.recoveries += 1

    survival = Failing()
    survival._admit_all(cast("Any", Served()))
    assert survival.recoveries == 1
    survival.comm.closed = True
    with pytest.raises(PeerError, match="too few"):
        survival._admit_all(cast("Any", Served()))


def test_the_last_round_that_all_servers_have() -> None:
    both = [[[0, 3, 5], [1, 2, 4]], [[1, 3, 5], [0, 2, 3]]]
    chosen = _parts(both, 2, None, in_step=True)
    assert not isinstance(chosen, int)
    assert [(each.server, each.round, each.rank) for each in chosen] == [(0, 5, 0), (1, 5, 1)]
    chosen = _parts(both, 2, 4, in_step=True)
    assert not isinstance(chosen, int)
    assert [(each.server, each.round, each.rank) for each in chosen] == [(0, 4, 0), (1, 4, 0)]
    assert _parts([[[0, 3, 5]], []], 2, None, in_step=True) == 1  # nobody has the second part
    assert _parts([[[0, 3, 5]], [[1, 0, 2]]], 2, None, in_step=True) == 1  # no round in common
    latest = _parts([[[0, 5, 5]], [[1, 2, 2]]], 2, None, in_step=False)
    assert not isinstance(latest, int)
    assert [each.round for each in latest] == [5, 2]
