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
from jobs import ENDS_WITHOUT_MPI, Finished, outside_environment, python_command

from gradientflow._location import load_core


class Ranks:
    """Processes that run tests/programs/recover.py."""

    def __init__(self, size: int, seconds: float, min_ranks: int = 0, **settings: object) -> None:
        meet = load_core().TcpStore("127.0.0.1:0", serve=True).address  # a port that is free again: rank 0 serves there
        self.processes = []
        for rank in range(size):
            env = {
                "GRADIENTFLOW_MEET": meet,
                "GRADIENTFLOW_RANK": str(rank),
                "GRADIENTFLOW_SIZE": str(size),
                **{f"GRADIENTFLOW_{name.upper()}": str(value) for name, value in settings.items()},
            }
            command = [*python_command("recover"), str(seconds), str(min_ranks)]
            self.processes.append(
                subprocess.Popen(command, env={**outside_environment(), **env}, stdout=subprocess.PIPE, text=True)
            )

    def await_start(self) -> None:
        """Wait until all have met."""
        for each in self.processes:
            assert each.stdout is not None
            assert each.stdout.readline() == "ready\n"

    def kill(self, *victims: int) -> None:
        """Kill some at once."""
        for rank in victims:
            self.processes[rank].kill()

    def words(self, ranks: Sequence[int]) -> list[str]:
        """Give what these say in the end."""
        found = []
        for rank in ranks:
            out, _ = self.processes[rank].communicate(timeout=60)
            assert self.processes[rank].returncode == 0, out
            found.append(out.strip())
        return found


@pytest.fixture
def begin() -> Iterator[type[Ranks]]:
    """Give `Ranks`, and end what is left of them."""
    begun: list[Ranks] = []

    class Begun(Ranks):
        def __init__(self, *arguments: int, **settings: object) -> None:
            super().__init__(*arguments, **settings)  # type: ignore[arg-type]
            begun.append(self)
            self.await_start()

    yield Begun
    for ranks in begun:
        for process in ranks.processes:
            process.kill()
            process.wait()


@pytest.mark.checks("recoveries")
@pytest.mark.parametrize("ranks", [2, 3])
def test_where_nobody_dies(check: Callable[..., object], ranks: int) -> None:
    check(ranks)


@pytest.mark.parametrize(("size", "victims"), [(2, (1,)), (3, (0,)), (4, (1, 2)), (4, (0, 1, 3)), (5, (0, 4))], ids=str)
def test_survivors_go_on(begin: type[Ranks], size: int, victims: tuple[int, ...]) -> None:
    ranks = begin(size, 1.5)
    time.sleep(0.2 + random.random() * 0.3)
    ranks.kill(*victims)
    left = [r for r in range(size) if r not in victims]
    assert ranks.words(left) == ["members " + " ".join(map(str, left))] * len(left)


def test_several_die_one_after_another(begin: type[Ranks]) -> None:
    ranks = begin(5, 2)
    for victim in (3, 0, 1):
        time.sleep(random.random() * 0.1)
        ranks.kill(victim)
    assert ranks.words([2, 4]) == ["members 2 4"] * 2


def test_too_few_ranks_get_the_same_error(begin: type[Ranks]) -> None:
    ranks = begin(4, 30, 3)
    ranks.kill(0, 2)
    first, second = ranks.words([1, 3])
    assert first == second
    assert first.startswith("error only 2 ranks of 4 can go on, fewer than min_ranks=3: rank 0 ")


@pytest.mark.parametrize("victims", [(2,), (1, 2)], ids=str)
def test_ranks_that_were_taken_for_dead_are_told_so(begin: type[Ranks], victims: tuple[int, ...]) -> None:
    """Though the others have ended meanwhile, and though those that come back are enough for min_ranks, or most."""
    ranks = begin(3, 4.5, 1, timeout=1.5, host_timeout=1.5)
    for victim in victims:
        os.kill(ranks.processes[victim].pid, signal.SIGSTOP)
    left = [rank for rank in range(3) if rank not in victims]
    assert ranks.words(left) == ["members " + " ".join(map(str, left))] * len(left)
    for victim in victims:
        os.kill(ranks.processes[victim].pid, signal.SIGCONT)
    for word in ranks.words(victims):
        assert word.startswith("error the others have taken rank")


@pytest.mark.parametrize("ranks", [pytest.param(2, marks=pytest.mark.slow), 3])
def test_where_nobody_dies_over_mpi(mpirun: Callable[..., Finished], ranks: int) -> None:
    mpirun(ranks, "recoveries", "mpi", recover="ulfm", timeout=90)


@pytest.mark.parametrize(
    ("size", "node_size", "victims"),
    [
        *((3, 0, (0,)), (4, 2, (3, 0)), (5, 2, (1, 2, 0))),
        *(pytest.param(*each, marks=pytest.mark.slow) for each in ((2, 1, (1,)), (3, 1, (0,)), (5, 1, (0, 4, 2)))),
    ],
    ids=str,
)
def test_survivors_go_on_over_mpi(
    mpirun: Callable[..., Finished], size: int, node_size: int, victims: tuple[int, ...]
) -> None:
    """One dies after another, soon enough for some to die while the others recover."""
    times = itertools.accumulate([0.2, *(random.random() * random.choice([0.002, 0.02, 0.2]) for _ in victims)])
    fates = [f"{victim}:{after:.5f}" for victim, after in zip(victims, times, strict=False)]
    env = {**ENDS_WITHOUT_MPI, "GRADIENTFLOW_NODE_SIZE": str(node_size)}
    finished = mpirun(size, "recover", 1.5, 1, *fates, env=env, recover="ulfm", check=False)
    left = [r for r in range(size) if r not in victims]
    assert words(finished) == ["members " + " ".join(map(str, left))] * len(left), finished.output


def test_too_few_ranks_get_the_same_error_over_mpi(mpirun: Callable[..., Finished]) -> None:
    finished = mpirun(4, "recover", 30, 3, "0:0.2", "2:0.2", env=ENDS_WITHOUT_MPI, recover="ulfm", check=False)
    first, second = words(finished)
    assert first == second
    assert first.startswith("error only 2 ranks of 4 can go on, fewer than min_ranks=3: rank 0 has died: ")


def words(finished: Finished) -> list[str]:
    """Give what the ranks of a job have said in the end."""
    return [line for line in finished.stdout.splitlines() if line.startswith(("members", "error"))]
