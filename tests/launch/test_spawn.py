"""gf.spawn: a function on new ranks, what it returns and raises, and that nothing of it is left."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import cloudpickle
import numpy as np
import pytest
from jobs import Job, write
from pace import scaled, wait_until

import gradientflow as gf

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # pytest imports it where ranks cannot find it


class NoDataError(Exception):
    """What a program has of its own."""


class Unloadable:
    """What can be sent, but not received."""

    def __reduce__(self) -> tuple[type[int], tuple[str]]:
        return int, ("no number",)


def add_up(start: int) -> tuple[int, float]:
    with gf.init() as comm:
        x = np.full(1000, comm.rank + start, np.float32)
        comm.allreduce(x)
        assert comm.describe()["transport"] == "tcp"
        return comm.rank, float(x[999])


def fail_on_one(how: Callable[[], None]) -> None:
    with gf.init() as comm:
        comm.barrier()
        if comm.rank == 1:
            how()
        comm.barrier()


def raise_no_data() -> None:
    raise NoDataError("none here")


def test_results_come_by_rank() -> None:
    assert gf.spawn(add_up, 3, 1) == [(0, 6.0), (1, 6.0), (2, 6.0)]


@pytest.mark.thorough
def test_ranks_that_serve_an_outer_job_are_not_of_this_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRADIENTFLOW_SERVERS", "1")
    assert gf.spawn(add_up, 2, 1) == [(0, 3.0), (1, 3.0)]


def test_what_a_rank_raises_is_raised_and_names_it() -> None:
    with pytest.raises(NoDataError, match="none here") as caught:
        gf.spawn(fail_on_one, 2, raise_no_data)
    assert str(caught.value.__cause__).startswith("rank 1 raised it:")
    assert "in raise_no_data" in str(caught.value.__cause__)


@pytest.mark.parametrize(
    ("how", "words"),
    [
        (lambda: os.kill(os.getpid(), signal.SIGKILL), "rank 1 was ended by SIGKILL before"),
        pytest.param(lambda: os._exit(3), "rank 1 ended with exit status 3 before", marks=pytest.mark.thorough),
    ],
    ids=["killed", "ended"],
)
def test_a_rank_that_dies_is_named(how: Callable[[], None], words: str) -> None:
    with pytest.raises(gf.errors.PeerError, match=words):
        gf.spawn(fail_on_one, 2, how)


def test_what_cannot_be_sent() -> None:
    with pytest.raises(gf.errors.ArgumentError, match=r"^the function or its arguments cannot be sent .*lock"):
        gf.spawn(print, 1, threading.Lock())
    with pytest.raises(gf.errors.ArgumentError, match=r"^what rank 0 returns, a lock, cannot be sent"):
        gf.spawn(threading.Lock, 1)
    with pytest.raises(gf.errors.ArgumentError, match=r"^what rank 0 has returned cannot be loaded here: ValueError: "):
        gf.spawn(Unloadable, 1)
    with pytest.raises(gf.errors.ArgumentTypeError, match="calls a function"):
        gf.spawn(3, 1)  # type: ignore[arg-type]
    with pytest.raises(gf.errors.ArgumentError, match="at least one rank"):
        gf.spawn(print, 0)


def test_from_another_thread_and_without_a_file() -> None:
    """As in a notebook, whose ``__main__`` no other process can import."""
    program = (
        "import threading, gradientflow as gf\n"
        "base = 10\n"
        "class Answer:\n"
        "    def __init__(self, value): self.value = value\n"
        "def function(factor):\n"
        "    with gf.init() as comm: return Answer(base + factor * comm.rank)\n"
        "def call():\n"
        "    answers = gf.spawn(function, 2, 5)\n"
        "    print([each.value for each in answers if isinstance(each, Answer)])\n"
        "thread = threading.Thread(target=call)\n"
        "thread.start()\n"
        "thread.join()\n"
    )
    ended = subprocess.run([sys.executable], input=program, capture_output=True, text=True, timeout=scaled(60))
    assert (ended.stdout, ended.stderr) == ("[10, 15]\n", "")


@pytest.fixture
def waiting(start_command: Callable[..., Job], tmp_path: Path, request: pytest.FixtureRequest) -> Job:
    """Give a program whose ranks wait for something that does not come, and take note of being asked to end."""
    program = write(
        tmp_path / "program.py",
        "import os, pathlib, signal, time, gradientflow as gf\n"
        "def wait():\n"
        f"    asked = pathlib.Path({str(tmp_path)!r}, 'asked')\n"
        "    if 'STAYS' in os.environ: signal.signal(signal.SIGTERM, lambda *_: asked.touch())\n"
        "    comm = gf.init()\n"
        "    comm.barrier()\n"
        f"    pathlib.Path({str(tmp_path)!r}, f'there{{comm.rank}}').touch()\n"
        "    time.sleep(1000)\n"
        "gf.spawn(wait, 2)\n",
    )
    job = start_command([sys.executable, str(program)], {"TMPDIR": str(tmp_path), **getattr(request, "param", {})})
    wait_until(lambda: len(list(tmp_path.glob("there*"))) == 2)
    assert len(job.processes()) == 4
    return job


@pytest.mark.parametrize(
    "number",
    [*(pytest.param(each, marks=pytest.mark.thorough) for each in (signal.SIGINT, signal.SIGTERM)), signal.SIGKILL],
)
def test_no_process_and_no_folder_is_left(number: signal.Signals, waiting: Job, tmp_path: Path) -> None:
    waiting.process.send_signal(number)
    ended = waiting.finish()  # which fails if one is
    wait_until(lambda: not list(tmp_path.glob("gradientflow-spawn-*")))
    assert ended.returncode == -number, ended.output
    assert ("KeyboardInterrupt" in ended.stderr) == (number == signal.SIGINT)


@pytest.mark.parametrize("waiting", [{"STAYS": "1"}], indirect=True)
def test_a_second_ctrl_c_does_not_wait_for_ranks(waiting: Job, tmp_path: Path) -> None:
    begun = time.monotonic()
    waiting.process.send_signal(signal.SIGINT)
    wait_until((tmp_path / "asked").exists)
    waiting.process.send_signal(signal.SIGINT)
    ended = waiting.finish()
    assert ended.returncode == -signal.SIGINT, ended.output
    assert time.monotonic() < begun + 30  # which the ranks would have
