"""Training that goes on when ranks die, and takes in those that come back: the end is to the bit that of a replay.

Strategies differ in how their ranks meet, in five ways: a job has trainings of one way, one after the other, which a
rank or two do not survive. What happens to them is told in tests/programs/fates.py.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from jobs import ENDS_WITHOUT_MPI, Finished, times_raised
from survival_groups import SHARED, TRAININGS
from survivors import HALVES, MIXED, Fate, Training, arguments_for, endings, run_ranks, train

import gradientflow as gf
from gradientflow.errors import ArgumentError, PeerError
from gradientflow.server.recovery import _parts
from gradientflow.strategies import DSSP, SSP, Layout, as_strategy
from gradientflow.strategies.parsing import _KINDS
from gradientflow.training.steps import Steps
from gradientflow.training.survival import Survival

from survive.task import FLOATS

Command = Callable[[str], list[str]]
Job = tuple[int, list[Training]]  # ranks at the beginning


def soon(rank: int) -> Fate:
    """Let a rank die at any moment of some steps."""
    return Fate(rank, random.randrange(10), "die", 0.0001 + random.random() * 0.003)


def behind(rank: int, victim: int) -> list[Fate]:
    """Let a rank not hear the end of a step that the others have made, after which another one dies."""
    return [Fate(rank, 7, "miss"), Fate(victim, 7, "die after")]


STEPS: Job = (
    5,
    [
        Training("full rank", behind(4, 1)),
        Training("csc", behind(2, 0), MIXED),
        Training("top_k", behind(2, 3), MIXED),
        Training("dense", [soon(4)], MIXED),
    ],
)
SERVERS: Job = (
    6,
    [
        Training("one server", [Fate(5, 6)]),  # and no copies: it serves nothing
        Training("ssgd", [Fate(0, 4), Fate(3, 11, "die after")]),
        Training("two servers", [soon(2)]),
        Training("ssd_sgd", [soon(1)]),
    ],
)
DIE: dict[str, Job] = {
    "in steps": STEPS,
    "in steps, before the loop": (
        5,
        [
            Training("csc", [Fate(4, -1)]),
            Training("auto", [soon(1)]),
            Training("full rank", [soon(3)]),
            Training("ssgd", [Fate(2, -1)]),
        ],
    ),
    "in steps of entries": (
        4,
        [Training("narrow wire", [soon(3)]), Training("dgc", [soon(2)], MIXED), Training("lags", [soon(0)])],
    ),
    "own weights": (
        6,
        [
            Training("local_sgd", [Fate(0, 10), Fate(4, 10)]),
            Training("fragments", [Fate(1, 10)]),
            Training("local_sgd", [Fate(2, 11, "miss"), Fate(3, 12)], HALVES),
        ],
    ),
    "own weights, in the exchange": (
        5,
        [
            Training("sparse_loco", [Fate(0, 11, "die in")]),
            Training("diloco", [Fate(2, 11, "miss"), Fate(1, 12)], HALVES),
            Training("diloco", [Fate(3, 29, "miss"), Fate(2, 29, "die at the end")]),
        ],
    ),
    "own weights, exchanged at the end": (
        4,
        [
            Training("psgd", [Fate(1, 29, "miss the end")]),
            Training("psgd", [Fate(0, 29, "die at the end")]),
            Training("psgd", [Fate(1, 9), Fate(2, 20)]),
        ],
    ),
    "rounds": (
        5,
        [
            Training("hpsgd", [Fate(2, 11, "miss")]),
            Training("hpsgd", [Fate(0, 10)]),
            Training("hpsgd", [Fate(1, 11, "die in")], HALVES),
            Training("hpsgd", [Fate(3, 29, "miss"), Fate(2, 29, "die at the end")]),
        ],
    ),
    "rounds, in recovery": (
        6,
        [
            Training("hpsgd", [Fate(2, 11, "miss"), Fate(0, 3, "die in recovery")]),
            Training("hpsgd", [Fate(3, 10), Fate(4, 3, "die in recovery")]),
        ],
    ),
    "servers": SERVERS,
    "servers at the ranks' own pace": (
        5,
        [Training(name, [soon(rank)]) for rank, name in enumerate(("asgd", "ssp", "dssp", "elastic_bsp"))],
    ),
}
COME_BACK: dict[str, Job] = {
    "in steps": (
        3,
        [
            Training("csc", [Fate(1, 5)]),
            Training("dense", [Fate(0, 5)]),
            Training("top_k", [Fate(0, 4), Fate(2, 4)]),
            Training("full rank", [Fate(0, 5)]),
        ],
    ),
    "own weights": (
        3,
        [
            Training("diloco", [Fate(0, 5)], HALVES),
            Training("sparse_loco", [Fate(0, 4), Fate(2, 4)]),
            Training("local_sgd", [Fate(1, 5)], HALVES),
        ],
    ),
    "rounds": (3, [Training("hpsgd", [Fate(0, 4), Fate(2, 4)]), Training("hpsgd", [Fate(1, 5)], HALVES)]),
    "servers": (
        4,
        [
            Training("ssgd", [Fate(1, 5), Fate(2, 0, "miss the admission")]),
            Training("asgd", [Fate(0, 5), Fate(2, 0, "miss the admission")]),
            Training("ssd_sgd", [Fate(1, 5)]),
        ],
    ),
    "twice": (
        3,
        [Training(name, [Fate(rank, 3), Fate(rank, 18)]) for rank, name in enumerate(("diloco", "dense", "hpsgd"))],
    ),
}


def thorough(jobs: dict[str, Job], *plain: str) -> list[Any]:
    return [name if name in plain else pytest.param(name, marks=pytest.mark.thorough) for name in jobs]


@pytest.mark.parametrize("job", thorough(DIE, "in steps", "servers"))
def test_survivors_go_on(process_command: Command, tmp_path: Path, job: str) -> None:
    node_size = 1 if job in ("in steps", "in steps of entries") else random.choice((0, 1, 2))
    found = train(process_command("survival"), tmp_path, *DIE[job], node_size=node_size)
    for training, ending in zip(DIE[job][1], found, strict=True):
        if any(fate.what == "die after" and fate.step == 7 for fate in training.fates):
            assert ending.changes == {8}  # also on the rank that knew before


@pytest.mark.parametrize("job", thorough(COME_BACK, "in steps"))
def test_ranks_come_back(process_command: Command, tmp_path: Path, job: str) -> None:
    train(process_command("survival"), tmp_path, *COME_BACK[job], restart=True)


@pytest.mark.thorough
def test_survivors_go_on_over_mpi(mpirun: Callable[..., Finished], tmp_path: Path) -> None:
    trainings = [
        Training("csc", [Fate(0, 4)]),
        Training("top_k", [Fate(3, 11, "die after")]),
        Training("ssgd", [soon(1)]),
    ]
    env = {**ENDS_WITHOUT_MPI, "GRADIENTFLOW_NODE_SIZE": random.choice("012")}
    finished = mpirun(4, "survival", *arguments_for(tmp_path, trainings), env=env, recover="ulfm", check=False)
    print(finished.output)  # to be read where it fails
    endings(tmp_path, 4, trainings)


MANY = [name for name in TRAININGS if name not in ("collectives", "one server", "no copies")]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "restart"), [*((name, False) for name in MANY), *((name, True) for name in MANY if name != "psgd")]
)
def test_many_kills(process_command: Command, tmp_path: Path, name: str, restart: bool) -> None:
    """Those that come back have died in the same step."""
    may_lose_weights = TRAININGS[name].may_lose_weights or name == "two servers"
    for number in range(3 if restart else 10):
        ranks = random.randrange(2, 5)
        victims = random.sample(range(ranks), 1 if may_lose_weights else random.randrange(1, ranks))
        dtypes = FLOATS
        if number % 2 and (name in SHARED or TRAININGS[name].keep):
            dtypes = MIXED if name in SHARED else random.choice((MIXED, HALVES))
        fates = [soon(victim) for victim in victims]
        if restart:
            fates = [each._replace(step=fates[0].step) for each in fates]
        job = [Training(name, fates, dtypes)]
        node_size = random.choice((0, 1, 2))
        train(process_command("survival"), tmp_path / str(number), ranks, job, restart=restart, node_size=node_size)


def test_there_is_a_training_of_each_kind() -> None:
    def kinds(strategies: Iterable[Any]) -> set[tuple[str, bool]]:
        found = set()
        with gf.init(transport="tcp") as comm:
            for each in strategies:
                bound = as_strategy(each).bind(comm, Layout.of([np.zeros(100, np.float32)]))
                found.add((bound.meets_in, bound.in_step))
                bound.close()
        return found

    trained = {TRAININGS[each.name].strategy for jobs in (DIE, COME_BACK) for _, job in jobs.values() for each in job}
    assert kinds(trained) == kinds(kind() for kind in _KINDS if kind not in (SSP, DSSP))  # which take arguments


# ---- errors ----------------------------------------------------------------------------------------------------------


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("name", "fate", "error"),
    [
        ("dense", Fate(0, -1), "rank 0 has died before its weights, with which all begin"),
        ("no copies", Fate(1, 6), "the weights of server 1 are lost with its rank"),
    ],
)
def test_weights_that_are_lost_are_the_same_error_on_all_ranks(
    process_command: Command, tmp_path: Path, name: str, fate: Fate, error: str
) -> None:
    with pytest.raises(AssertionError) as failure:
        train(process_command("survival"), tmp_path, 3, [Training(name, [fate])])
    assert times_raised(str(failure.value), f"CommunicationError: {error}") == 2


@pytest.mark.thorough
def test_one_with_other_settings_is_sent_away(process_command: Command, tmp_path: Path) -> None:
    is_sent_away = tmp_path / "is_sent_away"
    printed = run_ranks(process_command("survival_ends"), 3, "sent_away", is_sent_away, restart=True)
    assert printed.splitlines() == ["2 ranks go on"] * 2
    message = "the ranks have different strategies: strategy is csc on rank 2 and dense on rank 0"
    assert is_sent_away.read_text() == message


def test_what_needs_all_ranks_is_refused() -> None:
    def loop(strategy: str, dtypes: tuple[str, ...] = ("float32",), **options: Any) -> None:
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


# ---- odd moments -----------------------------------------------------------------------------------------------------


@pytest.mark.thorough
def test_what_ranks_have_sent_in_a_failed_iteration_is_kept_or_dropped(process_command: Command) -> None:
    """In all pools alike."""
    run_ranks(process_command("failed_iterations"), 2)


@pytest.mark.thorough
@pytest.mark.parametrize("node_size", [0, 1])
def test_a_rank_that_has_closed_its_communicator_is_not_waited_for(
    process_command: Command, tmp_path: Path, node_size: int
) -> None:
    program = process_command("survival_ends")
    printed = run_ranks(program, 3, "one_is_past_it", tmp_path / "has_ended", node_size=node_size, timeout=20)
    assert re.match(r"\(1,\) without \(\(0, 'has closed the communicator'\), \(2, 'has died: ", printed), printed


@pytest.mark.thorough
def test_nobody_is_told_of_an_exchange_that_nobody_needs(process_command: Command, tmp_path: Path) -> None:
    trainings = [Training("diloco", [Fate(1, 4)])]  # one is under way, and another begins
    arguments = (process_command("survival"), 4, *arguments_for(tmp_path, trainings))
    assert "has waited for its handle" not in run_ranks(*arguments, errors=True)


@pytest.mark.thorough
def test_what_was_bound_to_ranks_before_is_freed(process_command: Command) -> None:
    assert run_ranks(process_command("survival_ends"), 3, "freed").splitlines() == ["freed True"] * 2


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("what", "strategy", "ranks"),
    [
        ("loaded", "local_sgd(period=4)", 3),
        ("apart", "diloco(period=6, delay=4)", 3),
        ("past the end", "local_sgd(period=4)", 4),
        ("meanwhile", "diloco(period=6, fragments=2, delay=4)", 3),
        ("meanwhile", "local_sgd(period=40)", 3),
    ],
)
def test_all_end_with_the_same_weights(
    process_command: Command, tmp_path: Path, what: str, strategy: str, ranks: int
) -> None:
    """Also if others train on while one comes back, or a rank is past the end."""
    arguments = ("own_weights", what, strategy, tmp_path / "others have trained on")
    program = process_command("survival_ends")
    said = run_ranks(program, ranks, *arguments, restart=what in ("loaded", "meanwhile")).splitlines()
    assert len(said) == ranks
    assert len(set(said)) == 1
    assert said[0].endswith(str(what == "loaded"))


@pytest.mark.thorough
def test_steps_that_are_undone_at_the_end_are_made_again(process_command: Command) -> None:
    strategies = ("ssgd(replicas=1)", "ssd_sgd(k=5, warmup=5, replicas=1, local_update='none')")
    printed = run_ranks(process_command("survival_ends"), 4, "undone", *strategies).splitlines()
    assert printed == ["weights -6.0"] * 5


@pytest.mark.thorough
@pytest.mark.parametrize("what", ["loaded", "one_goes_ahead"])
def test_what_servers_had_before_is_not_gone_back_to(process_command: Command, tmp_path: Path, what: str) -> None:
    arguments = (what, tmp_path / "ahead") if what == "one_goes_ahead" else (what,)
    printed = run_ranks(process_command("survival_ends"), 3, *arguments).splitlines()
    assert len(printed) == 2
    assert all("are lost with its rank" in each for each in printed), printed


@pytest.mark.thorough
@pytest.mark.parametrize(("how", "node_size"), [("bsp", 0), ("bsp", 1), ("bsp behind", 1), ("bsp adam", 0), ("asp", 1)])
def test_a_parameter_server_is_recovered(process_command: Command, how: str, node_size: int) -> None:
    printed = run_ranks(process_command("recovered_servers"), 3, *how.split(), node_size=node_size)
    assert printed.splitlines() == ["recovered"] * 2


def test_too_few_ranks_while_newcomers_come_are_an_error() -> None:
    class Communicator:
        closed = False

    class Served:
        meets_in = "servers"

        def close(self, orderly: bool) -> None:
            pass

    class Loop:
        synchronizer = Served()

    class Recovered(Exception):  # noqa: N818
        pass

    class Failing(Survival):
        def __init__(self) -> None:
            self.comm: Any = Communicator()
            self.here = self.comm
            self.numbers = Steps()

        def _admit(self, synchronizer: Any) -> bool:
            raise PeerError("too few are left")

        def recover(self, synchronizer: Any) -> None:
            raise Recovered

    survival, loop = Failing(), cast("Any", Loop())
    with pytest.raises(Recovered):
        survival._rebind(loop, survival._admit_all)
    survival.comm.closed = True
    with pytest.raises(PeerError, match="too few"):
        survival._rebind(loop, survival._admit_all)


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
