"""Ranks that die, and the others, which go on with comm.recover(), killed at any moment.

They are plain processes over TCP, and ranks of Open MPI's, started with ULFM.
"""

from __future__ import annotations

import itertools
import os
import random
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence

import pytest
from jobs import ENDS_WITHOUT_MPI, Finished, outside_environment
from pace import scaled

from gradientflow._location import core

Start = Callable[..., "Ranks"]


class Ranks:
    """Processes that run tests/programs/recover.py with `left` and `min_ranks`."""

    def __init__(self, program: Sequence[str], size: int, left: int, min_ranks: int = 0, **settings: object) -> None:
        meet = core.TcpStore("127.0.0.1:0", serve=True).address  # a port that is free again: rank 0 serves there
        environment = outside_environment() | {
            f"GRADIENTFLOW_{name.upper()}": str(value) for name, value in settings.items()
        }
        environment |= {"GRADIENTFLOW_MEET": meet, "GRADIENTFLOW_SIZE": str(size)}
        self._processes = [
            subprocess.Popen(
                [*program, str(left), str(min_ranks)],
                env=environment | {"GRADIENTFLOW_RANK": str(rank)},
                stdout=subprocess.PIPE,
                text=True,
            )
            for rank in range(size)
        ]
        self._ids = list[int]()

    def await_start(self) -> None:
        """Wait until all have met."""
        for each in self._processes:
            assert each.stdout is not None
            ready, own = each.stdout.readline().split()
            assert ready == "ready"
            self._ids.append(int(own))

    def send(self, number: signal.Signals, *victims: int) -> None:
        """Send a signal to some at once."""
        for rank in victims:
            os.kill(self._ids[rank], number)

    def words(self, ranks: Sequence[int]) -> list[str]:
        """Give what these say in the end."""
        found = []
        for rank in ranks:
            out, _ = self._processes[rank].communicate(timeout=scaled(60))
            assert self._processes[rank].returncode == 0, out
            found.append(out.strip())
        return found

    def end(self) -> None:
        """End what is left of them."""
        for process in self._processes:
            process.kill()
            process.wait()


@pytest.fixture
def start(process_command: Callable[[str], list[str]]) -> Iterator[Callable[..., Ranks]]:
    """Give ``start(size, left, min_ranks=0, **settings)``: ranks that have met."""
    begun: list[Ranks] = []

    def starting(*arguments: int, **settings: object) -> Ranks:
        begun.append(Ranks(process_command("recover"), *arguments, **settings))
        begun[-1].await_start()
        return begun[-1]

    yield starting
    for ranks in begun:
        ranks.end()


def members(size: int, victims: Sequence[int]) -> list[str]:
    """Give what those that are left say."""
    left = [rank for rank in range(size) if rank not in victims]
    return ["members " + " ".join(map(str, left))] * len(left)


def others(size: int, victims: Sequence[int]) -> list[int]:
    return [rank for rank in range(size) if rank not in victims]


@pytest.mark.checks("recoveries")
@pytest.mark.parametrize("ranks", [pytest.param(2, marks=pytest.mark.thorough), 3])
def test_where_nobody_dies(check: Callable[..., object], ranks: int) -> None:
    check(ranks)


@pytest.mark.parametrize(
    ("size", "victims"),
    [(5, (0, 4)), *(pytest.param(*each, marks=pytest.mark.thorough) for each in ((2, (1,)), (4, (0, 1, 3))))],
    ids=str,
)
def test_survivors_go_on(start: Start, size: int, victims: tuple[int, ...]) -> None:
    ranks = start(size, size - len(victims))
    time.sleep(random.random() * 0.1)
    ranks.send(signal.SIGKILL, *victims)
    assert ranks.words(others(size, victims)) == members(size, victims)


@pytest.mark.thorough
def test_several_die_one_after_another(start: Start) -> None:
    ranks = start(5, 2)
    for victim in (3, 0, 1):
        time.sleep(random.random() * 0.1)
        ranks.send(signal.SIGKILL, victim)
    assert ranks.words([2, 4]) == members(5, (3, 0, 1))


def test_too_few_ranks_get_the_same_error(start: Start) -> None:
    ranks = start(4, 0, 3)
    ranks.send(signal.SIGKILL, 0, 2)
    first, second = ranks.words([1, 3])
    assert first == second
    assert first.startswith("error only 2 ranks of 4 can go on, fewer than min_ranks=3: rank 0 ")


@pytest.mark.thorough
def test_ranks_that_were_taken_for_dead_are_told_so(start: Start) -> None:
    """Though the others have ended meanwhile, and though those that come back are enough for min_ranks, and most."""
    timeout = scaled(1.5)
    ranks = start(3, 1, 1, timeout=timeout, host_timeout=timeout)
    ranks.send(signal.SIGSTOP, 1, 2)
    assert ranks.words([0]) == ["members 0"]
    ranks.send(signal.SIGCONT, 1, 2)
    for word in ranks.words([1, 2]):
        assert word.startswith("error the others have taken rank")


@pytest.mark.thorough
@pytest.mark.parametrize("ranks", [pytest.param(2, marks=pytest.mark.slow), 3])
def test_where_nobody_dies_over_mpi(mpirun: Callable[..., Finished], ranks: int) -> None:
    mpirun(ranks, "recoveries", "mpi", recover="ulfm", timeout=90)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("size", "node_size", "victims"),
    [
        *((3, 0, (0,)), (5, 2, (1, 2, 0))),
        *(pytest.param(*each, marks=pytest.mark.slow) for each in ((2, 1, (1,)), (3, 1, (0,)), (5, 1, (0, 4, 2)))),
    ],
    ids=str,
)
def test_survivors_go_on_over_mpi(
    mpirun: Callable[..., Finished], size: int, node_size: int, victims: tuple[int, ...]
) -> None:
    """One dies after another, soon enough for some to die while the others recover."""
    times = itertools.accumulate([0.1, *(random.random() * random.choice([0.002, 0.02, 0.2]) for _ in victims)])
    fates = [f"{victim}:{after:.5f}" for victim, after in zip(victims, times, strict=False)]
    env = {**ENDS_WITHOUT_MPI, "GRADIENTFLOW_NODE_SIZE": str(node_size)}
    finished = mpirun(size, "recover", size - len(victims), 1, *fates, env=env, recover="ulfm", check=False)
    assert words(finished) == members(size, victims), finished.output


@pytest.mark.thorough
def test_too_few_ranks_get_the_same_error_over_mpi(mpirun: Callable[..., Finished]) -> None:
    finished = mpirun(4, "recover", 0, 3, "0:0.1", "2:0.1", env=ENDS_WITHOUT_MPI, recover="ulfm", check=False)
    first, second = words(finished)
    assert first == second
    assert first.startswith("error only 2 ranks of 4 can go on, fewer than min_ranks=3: rank 0 has died: ")


def words(finished: Finished) -> list[str]:
    """Give what the ranks of a job have said in the end."""
    return [line for line in finished.stdout.splitlines() if line.startswith(("members", "error"))]
