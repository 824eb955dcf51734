"""``gradientflow top`` as a user sees it: beside jobs that are slow, hang, or are on other hosts, and in a terminal."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import pty
import re
import select
import struct
import subprocess
import sys
import tempfile
import termios
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from jobs import Job, begin, free_port, outside_environment, write
from pace import scaled, wait_until

from gradientflow.launch import module_command
from gradientflow.watch.folder import SocketName, own_folder, sockets
from gradientflow.watch.server import Server

JOB = "feed0123"
TOP = module_command("gradientflow.cli", ["top"])
KEYS_SHOWN = "q quit"


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Have all sockets in a folder of the test."""
    folders = {"XDG_RUNTIME_DIR": str(tmp_path), "TMPDIR": str(tmp_path)}
    for name, value in folders.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return folders


def top(*arguments: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    environment = {**outside_environment(), **(env or {})}
    return subprocess.run(
        [*TOP, *arguments], env=environment, capture_output=True, text=True, check=False, timeout=scaled(30)
    )


@pytest.fixture
def ranks() -> Iterator[Callable[..., list[str]]]:
    """Give a function that serves ranks of a job, and returns the questions that they get."""
    made: list[Server] = []
    asked: list[str] = []

    def serve(job: str = JOB, size: int = 2, program: str = "train.py") -> list[str]:
        folder = own_folder()
        assert folder is not None
        for rank in range(size):
            frame = {
                "file": "train.py",
                "line": 10 + rank,
                "function": "step",
                "code": "comm.allreduce(x)",
                "is_ours": False,
            }
            call = {"on": "all", "sequence": 7 - (rank == 1), "seconds": None if rank == 1 else 30.0, "members": []}
            said = {
                **{"job": job, "rank": rank, "size": size, "host": "a", "pid": os.getpid(), "program": program},
                **{"age": 60.0, "at": 0.0, "memory": 2**20, "figures": {}},
                "calls": [{**call, "peer": None, "text": "allreduce of 10 float32", "line": "train.py:12"}],
                "stacks": [{"thread": "MainThread", "frames": [frame]}],
                "file": "dump",
            }

            def answer(question: str, said: dict[str, Any] = said) -> bytes:
                asked.append(question)
                return json.dumps(said).encode()

            name = str(SocketName(job, rank, size, os.getpid()))
            made.append(Server(folder / name, answer, lambda: None))
        return asked

    yield serve
    for server in made:
        server.close()


class Terminal:
    """The command in a pseudo-terminal of 80 columns."""

    def __init__(self, command: Sequence[str], rows: int = 24) -> None:
        self.pid, self.end = pty.fork()
        if not self.pid:
            os.execve(command[0], list(command), {**outside_environment(), "TERM": "xterm"})
        fcntl.ioctl(self.end, termios.TIOCSWINSZ, struct.pack("HHHH", rows, 80, 0, 0))
        self.written = ""

    def await_text(self, text: str) -> str:
        """Wait for a text; return what was written up to it, and leave it out of later searches."""
        deadline = time.monotonic() + scaled(30)
        while text not in self.written:
            assert select.select([self.end], [], [], max(0, deadline - time.monotonic()))[0], self.written
            piece = b""
            with contextlib.suppress(OSError):  # the end of the command
                piece = os.read(self.end, 1 << 16)
            assert piece, self.written
            self.written += re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", piece.decode(errors="replace"))
        found, _, self.written = self.written.partition(text)
        return found

    def press(self, key: str) -> None:
        os.write(self.end, key.encode())

    def finish(self) -> int:
        """Wait for the end of the command; return its exit status."""
        with contextlib.suppress(OSError):
            while os.read(self.end, 1 << 16):
                pass
        os.close(self.end)
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


def test_without_a_job_a_sentence_says_what_to_do() -> None:
    done = top()
    assert done.returncode == 2
    assert "start one, such as gradientflow run" in done.stderr
    assert "GRADIENTFLOW_WATCH=off" in done.stderr


def test_several_jobs_are_listed_and_named(ranks: Callable[..., list[str]]) -> None:
    ranks("ab120000", 1, "one.py")
    ranks("ab340000", 2, "two.py")
    rows = [line.split() for line in top().stdout.splitlines()]
    assert rows[1:] == [["ab120000", "one.py", "1", "60"], ["ab340000", "two.py", "2", "60"]]
    assert "ab means several jobs: name one of ab120000 (one.py), ab340000 (two.py)" in top("ab").stderr
    assert "no job is three.py: name one of" in top("three.py").stderr
    assert "job ab340000: two.py" in top("two.py", "--interval", "0.1").stdout


def test_keys_of_the_live_view(
    ranks: Callable[..., list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = ranks()
    monkeypatch.chdir(tmp_path)
    terminal = Terminal([*TOP, "--interval", "0.1"])
    first = terminal.await_text(KEYS_SHOWN)
    assert f"job {JOB}: train.py, 2 ranks on a, for 1 min 0 s" in first
    assert "rank 0 waits for rank 1 in allreduce of 10 float32 at train.py:12, for 30 s" in first
    terminal.press("s")
    stacks = terminal.await_text("train.py:10 in step: comm.allreduce(x)")
    assert "train.py:11 in step" in stacks  # the rank that holds up the job comes first
    terminal.press("d")
    terminal.await_text(f"2 ranks have written their last calls to gradientflow-{JOB}")
    assert f"dump {tmp_path / f'gradientflow-{JOB}'}" in asked
    terminal.press("q")
    assert terminal.finish() == 0


def test_the_live_view_ends_with_the_job(ranks: Callable[..., list[str]]) -> None:
    ranks()
    terminal = Terminal([*TOP, "--interval", "0.1"])
    terminal.await_text(KEYS_SHOWN)
    for path, _ in sockets():
        path.unlink()
    terminal.await_text("the job has ended")
    assert terminal.finish() == 0


# ---- jobs ------------------------------------------------------------------------------------------------------------

PROGRAM = """
import sys
import time

import numpy as np

import gradientflow as gf

with gf.init() as comm:
    for step in range(10**9):
        if comm.rank == 1 and sys.argv[1] == "hangs" and step == 3:
            while True:  # the line of rank 1
                pass
        if comm.rank == 1 and sys.argv[1] == "is slow":
            time.sleep(0.1)
        comm.allreduce(np.ones(1000, np.float32))
"""


@pytest.fixture
def start(tmp_path: Path, place: dict[str, str]) -> Iterator[Callable[..., None]]:
    """Give a function that starts ranks of the program, by a launcher or alone."""
    program = write(tmp_path / "program.py", PROGRAM)
    running: list[Job] = []

    def begin_program(how: str, *launcher: str, env: dict[str, str] | None = None) -> None:
        command = [sys.executable, str(program), how]
        if launcher:
            command = module_command("gradientflow.cli", [*launcher, "--", *command])
        log = {"GRADIENTFLOW_DUMP": str(tmp_path / "calls")}  # tests keep no calls otherwise
        running.append(begin(command, {**place, **log, **(env or {})}, 120))

    yield begin_program
    for each in running:
        each.close()


def await_figures(is_wanted: Callable[[Any], bool], *arguments: str, env: dict[str, str] | None = None) -> Any:
    """Look until the figures of the job are as wanted; return them."""
    figures: list[Any] = []

    def look() -> bool:
        done = top("--interval", "0.5", "--json", *arguments, env=env)
        figures[:] = [json.loads(done.stdout)] if done.returncode == 0 else []
        return bool(figures) and len(figures[0]["ranks"]) == figures[0]["size"] and is_wanted(figures[0])

    wait_until(look, 60)
    return figures[0]


def test_a_rank_in_an_endless_loop_is_named(start: Callable[..., None]) -> None:
    start("hangs", "run", "--transport", "tcp", "-n", "3")
    found = await_figures(lambda job: bool(job["late"]), "--stacks")
    assert found["late"] == {"1": [0, 2]}
    assert found["ranks"][0]["call"].startswith("allreduce of 1000 float32")
    assert [each["waits_for"] for each in found["ranks"]] == [[1], [], [1]]
    stack = found["ranks"][1]["stacks"][0]
    assert stack["thread"] == "MainThread"
    assert stack["frames"][-1]["code"] in ("while True:  # the line of rank 1", "pass")


def test_a_slow_rank_is_marked(start: Callable[..., None]) -> None:
    start("is slow", "run", "--transport", "tcp", "-n", "3")
    await_figures(lambda job: [each["is_slow"] for each in job["ranks"]] == [False, True, False])


def test_ranks_of_other_hosts_are_asked_where_they_met(start: Callable[..., None], tmp_path: Path) -> None:
    """Ranks here stand for them, whose sockets the command does not see."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    meet, token = f"127.0.0.1:{free_port()}", {"GRADIENTFLOW_TOKEN": "of the job"}
    for rank in range(2):
        place = {"GRADIENTFLOW_MEET": meet, "GRADIENTFLOW_RANK": str(rank), "GRADIENTFLOW_SIZE": "2"}
        start("goes on", env={**place, **token, "XDG_RUNTIME_DIR": str(elsewhere)})
    found = await_figures(lambda _: True, "--meet", meet, "--stacks", env=token)
    assert [each["program"] for each in found["ranks"]] == ["program.py"] * 2
    assert found["ranks"][1]["stacks"][0]["thread"] == "MainThread"
    assert "refused the token" in top("--meet", meet).stderr
    assert "run gradientflow top on each host" in top("--meet", f"127.0.0.1:{free_port()}").stderr
