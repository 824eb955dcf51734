"""Processes and hosts that die, stop or fork in the middle of messages over TCP."""

from __future__ import annotations

import os
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import IO

import pytest
from pace import scaled
from tcp_ranks import outcome

from gradientflow.netlab import Netlab

PROGRAM = Path(__file__).resolve().parents[1] / "programs" / "tcp_rank.py"
SHARED = Path(__file__).resolve().parents[1] / "shared"
FOR_EVER = 10**9  # rounds


class Rank:
    """A process that runs tests/programs/tcp_rank.py."""

    def __init__(self, rank: int, host: str, prefix: Sequence[str] = (), **options: float) -> None:
        words = [f"{name}={value}" for name, value in options.items()]
        command = [*prefix, sys.executable, str(PROGRAM), str(rank), host, *words]
        path = os.pathsep.join([str(SHARED), *([os.environ["PYTHONPATH"]] if "PYTHONPATH" in os.environ else [])])
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": path}
        )

    @property
    def _stdin(self) -> IO[str]:
        assert self.process.stdin is not None
        return self.process.stdin

    def tell(self, *words: object) -> None:
        """Give a command."""
        print(*words, file=self._stdin, flush=True)

    def answer(self) -> str:
        """Give the next line that it writes."""
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def end(self) -> None:
        """End it, and what is left of it."""
        outcome(self._stdin.close)
        self.process.kill()
        self.process.wait()


Start = Callable[..., list[Rank]]


@pytest.fixture
def start() -> Iterator[Start]:
    """Give ``start(size, prefixes=(), hosts=(), **options)``, which starts ranks that know each other."""
    started: list[Rank] = []

    def begin(
        size: int, prefixes: Sequence[Sequence[str]] = (), hosts: Sequence[str] = (), **options: float
    ) -> list[Rank]:
        for rank in range(size):
            host = hosts[rank] if hosts else "127.0.0.1"
            started.append(Rank(rank, host, prefixes[rank] if prefixes else (), **options))
        addresses = [each.answer() for each in started]
        for each in started:
            each.tell(*addresses)
        return started

    yield begin
    for each in started:
        each.end()


def errors_after(survivors: Sequence[Rank], moment: float, seconds: float) -> list[str]:
    """Give what each survivor says, and check that it has not taken longer than that."""
    answers = [each.answer().split(" ", 1) for each in survivors]
    late = [float(at) - moment for at, _ in answers]
    assert max(late) < scaled(seconds), (late, answers)
    return [error for _, error in answers]


@pytest.mark.usefixtures("native")
@pytest.mark.parametrize("seed", [*(pytest.param(seed, marks=pytest.mark.thorough) for seed in range(2)), 2])
def test_a_rank_that_is_killed_is_named(start: Start, seed: int) -> None:
    killed_at_random_moment(start, seed)


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.usefixtures("native")
@pytest.mark.parametrize("seed", range(3, 60))
def test_ranks_that_are_killed_at_many_moments_are_named(start: Start, seed: int) -> None:
    killed_at_random_moment(start, seed)


def killed_at_random_moment(start: Start, seed: int) -> None:
    chance = random.Random(seed)
    ranks = start(3)
    victim = ranks[chance.randrange(3)]
    for each in ranks:
        each.tell("rounds", FOR_EVER, [10, 5000, 3_000_000][seed % 3])
    time.sleep(chance.random() * 0.3)
    moment = time.time()
    victim.process.kill()
    name = f"rank {ranks.index(victim)} has died: "
    for error in errors_after([each for each in ranks if each is not victim], moment, 1.0):
        assert error.startswith(f"PeerError: {name}")
        assert "127.0.0.1:" in error


@pytest.mark.usefixtures("native")
def test_children_do_not_keep_a_dead_rank_alive(start: Start) -> None:
    ranks = start(2)
    for each in ranks:
        each.tell("rounds", 3, 1000)
    assert all(each.answer().endswith("done") for each in ranks)
    ranks[1].tell("fork", 20)
    assert ranks[1].answer() == "forked"
    ranks[0].tell("rounds", FOR_EVER, 1000)
    time.sleep(0.2)
    moment = time.time()
    ranks[1].process.kill()
    assert errors_after(ranks[:1], moment, 1.0)[0].startswith("PeerError: rank 1 has died: ")


@pytest.mark.slow
@pytest.mark.usefixtures("native")
@pytest.mark.parametrize(("size", "seconds"), [(100, 4.0), (100, 20.0), (3_000_000, 4.0), (3_000_000, 20.0)])
def test_a_rank_that_is_stopped_is_not_dead(start: Start, seconds: float, size: int) -> None:
    ranks = start(3, host_timeout=1.0 if seconds < 10 else 3.0)
    for each in ranks:
        each.tell("rounds", 20_000 if size < 1000 else 100, size)
    time.sleep(0.3)
    ranks[1].process.send_signal(signal.SIGSTOP)
    time.sleep(seconds)
    ranks[1].process.send_signal(signal.SIGCONT)
    assert [each.answer().split(" ", 1)[1] for each in ranks] == ["done"] * 3


@pytest.mark.usefixtures("native")
def test_a_rank_that_was_stopped_finds_what_has_come_meanwhile(start: Start) -> None:
    """Though its time is up."""
    ranks = start(2, timeout=scaled(1.0))
    ranks[0].tell("gather")
    time.sleep(scaled(0.3))
    ranks[0].process.send_signal(signal.SIGSTOP)
    ranks[1].tell("gather")
    time.sleep(scaled(1.2))
    ranks[0].process.send_signal(signal.SIGCONT)
    assert [each.answer() for each in ranks] == ["[b'0', b'1']"] * 2


# ---- hosts -----------------------------------------------------------------------------------------------------------


def on_hosts(lab: Netlab, count: int) -> dict[str, list[list[str]]]:
    """Give what starts ranks on the hosts of a lab, one on each."""
    prefixes = [lab.command([*lab.agent, f"host{number}"]) for number in range(count)]
    return {"prefixes": prefixes, "hosts": [f"10.0.0.{number + 1}" for number in range(count)]}


@pytest.mark.slow
@pytest.mark.usefixtures("_hosts_can_be_made", "native")
@pytest.mark.parametrize("size", [100, 3_000_000])
def test_a_host_that_is_gone_is_named(start: Start, size: int) -> None:
    with Netlab(3) as lab:
        ranks = start(3, **on_hosts(lab, 3), host_timeout=3.0)
        for each in ranks:
            each.tell("rounds", FOR_EVER, size)
        time.sleep(0.5)
        moment = time.time()
        lab.take_link_down(1, 0)
        for error in errors_after([ranks[0], ranks[2]], moment, 4.5):
            assert error.startswith("PeerError: rank 1 has died: ")
            assert "10.0.0.2:" in error
        assert "PeerError: rank" in errors_after([ranks[1]], moment, 4.5)[0]


@pytest.mark.slow
@pytest.mark.usefixtures("_hosts_can_be_made", "native")
def test_a_host_that_is_gone_while_nothing_is_sent_is_named(start: Start) -> None:
    with Netlab(2) as lab:
        ranks = start(2, **on_hosts(lab, 2), host_timeout=3.0)
        for each in ranks:
            each.tell("rounds", 3, 100)
        assert all(each.answer().endswith("done") for each in ranks)
        lab.take_link_down(1, 0)
        moment = time.time()
        ranks[0].tell("await", 1)
        assert errors_after(ranks[:1], moment, 5.0)[0].startswith("PeerError: rank 1 has died: ")


@pytest.mark.slow
@pytest.mark.usefixtures("_hosts_can_be_made", "native")
def test_a_network_that_splits_is_noticed_on_both_sides(start: Start) -> None:
    with Netlab(4) as lab:
        ranks = start(4, **on_hosts(lab, 4), host_timeout=3.0)
        for each in ranks:
            each.tell("rounds", FOR_EVER, 100_000)
        time.sleep(0.5)
        subprocess.run(lab.command(["ip", "link", "add", "other", "up", "type", "bridge"]), check=True)
        moment = time.time()
        for port in ("data2", "data3"):
            subprocess.run(lab.command(["ip", "link", "set", port, "master", "other"]), check=True)
        for rank, error in enumerate(errors_after(ranks, moment, 5.0)):
            assert re.match(r"PeerError: rank \d has died: ", error)
            other_side = int(error.split()[2]) // 2 != rank // 2
            assert other_side or "has ended" in error or "was closed" in error


@pytest.mark.slow
@pytest.mark.usefixtures("_hosts_can_be_made", "native")
def test_a_network_that_is_away_for_a_second_is_forgiven(start: Start) -> None:
    with Netlab(2) as lab:
        ranks = start(2, **on_hosts(lab, 2), host_timeout=3.0)
        for each in ranks:
            each.tell("rounds", 3000, 10_000)
        time.sleep(0.3)
        subprocess.run(lab.command(["ip", "link", "set", "data1", "nomaster"]), check=True)
        time.sleep(1.0)
        subprocess.run(lab.command(["ip", "link", "set", "data1", "master", "data"]), check=True)
        assert [each.answer().split(" ", 1)[1] for each in ranks] == ["done"] * 2
