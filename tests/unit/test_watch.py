"""Sockets of ranks: discovery, rights, stale files, forks; and what is concluded from the answers of a job's ranks."""

from __future__ import annotations

import io
import json
import os
import signal
import socket
import stat
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pace import scaled
from rich.console import Console

from gradientflow._location import core
from gradientflow.cli.top_view import picture, sparkline, stack_lines
from gradientflow.recorder.job_name import job_name
from gradientflow.watch import folder as folders
from gradientflow.watch import server as servers
from gradientflow.watch.at_store import AnswersAtStore, Asker
from gradientflow.watch.client import Rank, ask
from gradientflow.watch.folder import SocketName, own_folder, sockets
from gradientflow.watch.job import JobState, JobWatch
from gradientflow.watch.server import Server
from gradientflow.watch.watching import Watching


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Have all sockets in a folder of the test, whose path is too long for a socket."""
    runtime = tmp_path / ("x" * 100)
    runtime.mkdir()
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(runtime))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return runtime / "gradientflow"


@pytest.fixture
def serve() -> Iterator[Callable[..., Server]]:
    made: list[Server] = []

    def begin(rank: int = 0, answer: bytes = b'{"rank": 0}', pid: int = os.getpid()) -> Server:
        folder = own_folder()
        assert folder is not None
        made.append(Server(folder / str(SocketName("ab12", rank, 2, pid)), lambda _: answer, lambda: None))
        return made[-1]

    yield begin
    for server in made:
        server.close()


class Ranks:
    """A communicator, as far as its process tells about it."""

    def __init__(self, rank: int, size: int) -> None:
        self.rank, self.size, self.closed, self.bytes_sent = rank, size, False, 7


# ---- sockets ---------------------------------------------------------------------------------------------------------


def test_names_are_read_as_they_are_written() -> None:
    name = SocketName("ab12", 3, 64, 1234)
    assert SocketName.read(str(name)) == name
    assert [SocketName.read(text) for text in ("ab12-3-64.sock", "ab12-3-64-x.sock", "ab12-3-64-1234")] == [None] * 3


def test_only_their_user_reaches_sockets(serve: Callable[..., Server], monkeypatch: pytest.MonkeyPatch) -> None:
    path = serve().path
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert [each.said for each in ask("status")] == [{"rank": 0}]
    monkeypatch.setattr(servers, "user_of", lambda _: os.geteuid() + 1)
    assert not any(each.said for each in ask("status"))


def test_a_folder_that_others_can_enter_is_not_used(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.mkdir(mode=0o755)
    other = own_folder()
    assert other == tmp_path / f"gradientflow-watch-{os.geteuid()}"
    other.chmod(0o711)
    assert own_folder() is None
    assert list(sockets()) == []


def test_files_of_killed_processes_are_removed(place: Path, serve: Callable[..., Server]) -> None:
    serve(0)
    left = place / str(SocketName("ab12", 1, 2, 1))
    with socket.socket(socket.AF_UNIX) as killed, folders._reachable(left) as address:
        killed.bind(address)
    os.utime(left, (0, 0))
    new = place / str(SocketName("ab12", 2, 2, 1))
    with socket.socket(socket.AF_UNIX) as not_yet, folders._reachable(new) as address:
        not_yet.bind(address)
        assert [each.name.rank for each in ask("status")] == [0]
    assert (left.exists(), new.exists()) == (False, True)


def test_a_stopped_process_is_told_from_a_busy_one(serve: Callable[..., Server]) -> None:
    child = os.fork()
    if not child:
        signal.pause()
    try:
        os.kill(child, signal.SIGSTOP)
        os.waitpid(child, os.WUNTRACED)
        serve(0, b"", child)
        serve(1, b"no JSON")
        stopped, busy = ask("status", seconds=scaled(1))
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    assert (stopped.said, stopped.silence) == (None, "is stopped")
    assert busy.silence.startswith("does not answer")


def test_a_fork_does_not_serve_its_parents_socket() -> None:
    process = Watching()
    whole, part = Ranks(1, 3), Ranks(0, 2)
    process.show(whole)
    process.show(part)
    (found,) = (name for _, name in sockets())
    assert found[1:] == (1, 3, os.getpid())
    assert process._server is not None
    read, write = os.pipe()
    child = os.fork()
    if not child:
        process.show(Ranks(5, 6))
        os.write(write, " ".join(str(name) for _, name in sockets()).encode())
        signal.pause()
    names = os.read(read, 1000).decode().split()
    assert sorted(SocketName.read(name)[1:] for name in names) == [(1, 3, os.getpid()), (5, 6, child)]  # type: ignore[index]
    process.close()  # as at exit; the listener itself ends with the process
    process._server._socket.shutdown(socket.SHUT_RDWR)
    assert [each.name.pid for each in ask("status")] == [child]
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)


def test_the_socket_is_named_after_the_widest_open_communicator() -> None:
    process = Watching()
    first = Ranks(0, 2)
    process.show(first)
    first.closed = True
    process.show(Ranks(2, 3))
    assert [name[1:3] for _, name in sockets()] == [(2, 3)]
    process.close()


def test_ranks_of_a_job_have_a_name_in_common() -> None:
    ours = {"GRADIENTFLOW_TOKEN": "secret", "GRADIENTFLOW_RANK": "0", "MASTER_PORT": "1"}
    assert job_name(ours) == job_name({**ours, "GRADIENTFLOW_RANK": "1", "MASTER_PORT": "2"})
    torchrun = {"TORCHELASTIC_RUN_ID": "none", "MASTER_ADDR": "localhost", "MASTER_PORT": "29500"}
    assert job_name({**torchrun, "RANK": "0"}) == job_name({**torchrun, "RANK": "1"})
    assert job_name(torchrun) != job_name({**torchrun, "MASTER_PORT": "29501"})
    assert job_name({}, "a:1") == job_name({"RANK": "1"}, "a:1") != job_name({}, "a:2")
    assert job_name({}) == job_name({"RANK": "1"})


# ---- conclusions -----------------------------------------------------------------------------------------------------


def call(sequence: int, seconds: float | None, **more: Any) -> dict[str, Any]:
    told = {"on": "all", "sequence": sequence, "seconds": seconds, "members": [], "peer": None, "line": "train.py:12"}
    return {**told, "text": "allreduce of 10 float32", **more}


def answered(rank: int, *calls: dict[str, Any], size: int = 3, **figures: float) -> Rank:
    said = {"host": "a", "program": "train.py", "age": 1.0, "at": figures.pop("at", 0.0), "memory": 2**20}
    return Rank(SocketName("ab12", rank, size, 100 + rank), {**said, "calls": list(calls), "figures": figures})


def shown(job: JobState, height: int = 24, below: tuple[str, ...] = ()) -> list[str]:
    file = io.StringIO()
    console = Console(file=file, width=80, height=height, force_terminal=True, color_system=None)
    console.print(picture(job, console, below, "q quit"))
    return [line.rstrip() for line in file.getvalue().splitlines()]


def test_the_rank_that_others_wait_for_is_named() -> None:
    watch = JobWatch()
    found = [answered(0, call(5, 42.0)), answered(1, call(4, None)), answered(2, call(5, 40.0))]
    job = [watch.look(found) for _ in range(3)][-1]
    assert [each.waits_for for each in job.ranks] == [[1], [], [1]]
    assert [each.is_slow for each in job.ranks] == [False, True, False]
    lines = shown(job)
    assert "ranks 0, 2 wait for rank 1 in allreduce of 10 float32 at train.py:12, for 42 s" in lines
    assert max(map(len, lines)) <= 80


def test_a_rank_that_waits_in_a_chain_is_not_blamed() -> None:
    watch = JobWatch()
    found = [answered(0, call(0, 20.0, peer=1)), answered(1, call(3, 20.0, on="pair", members=[1, 2])), answered(2)]
    for _ in range(3):
        job = watch.look(found)
    assert [each.waits_for for each in job.ranks] == [[1], [2], []]
    assert [each.is_slow for each in job.ranks] == [False, False, True]
    assert list(job.late) == [2]


def test_a_rank_without_an_answer_is_waited_for() -> None:
    silent = Rank(SocketName("ab12", 1, 2, 101), None, "is stopped")
    job = JobWatch().look([answered(0, call(1, 11.0), size=2), silent])
    assert job.ranks[0].waits_for == [1]
    assert "rank 1 (process 101) is stopped" in shown(job)


def test_rates_and_step_times() -> None:
    watch = JobWatch()
    for steps in range(4):
        figures = {"steps": 10.0 * steps, "bytes": 4e6 * steps, "step_seconds": 0.1 * steps, "mean_step_seconds": 0.2}
        job = watch.look([answered(0, at=2.0 * steps, mean_exposed_seconds=0.05, residual=1.5, **figures)])
    (rank,) = job.ranks
    assert (rank.steps_per_second, rank.bytes_per_second, rank.exposed) == (5.0, 2e6, 0.25)
    assert rank.history == pytest.approx([0, 0.1, 0.2, 0.3])
    assert sparkline(rank.history) == "▁▃▆█"
    job = watch.look([answered(0, at=9.0, steps=1.0)])  # begins again
    assert job.ranks[0].steps_per_second is None


def test_a_low_terminal_shows_slow_ranks_first() -> None:
    watch = JobWatch()
    found = [answered(rank, call(5 - (rank == 40), 0.5), size=64) for rank in range(64)]
    for _ in range(3):
        job = watch.look(found)
    lines = shown(job)
    assert len(lines) <= 24
    assert any(line.startswith("40* ") for line in lines)
    rows = [line for line in lines if line[:1].isdigit()]
    assert f"and {64 - len(rows)} more ranks, which neither wait longer nor are slower" in lines


def test_equal_stacks_are_shown_once() -> None:
    def stack(line: int) -> dict[str, Any]:
        frame = {"file": "/home/train.py", "line": line, "function": "step", "code": "comm.allreduce(x)"}
        frames = [{**frame, "is_ours": False}, {**frame, "is_ours": True}]
        return {"stacks": [{"thread": "MainThread", "frames": frames}, {"thread": "loader", "frames": []}]}

    lines = stack_lines([(0, stack(3)), (1, stack(4)), (2, stack(3)), (3, None)], whole=False)
    code = "in step: comm.allreduce(x)"
    assert lines == ["ranks 0, 2:", f"  train.py:3 {code}", "rank 1:", f"  train.py:4 {code}"]
    assert stack_lines([(0, stack(3))], whole=True)[1:] == [
        "  thread MainThread",
        *[f"    /home/train.py:3 {code}"] * 2,
        "  thread loader",
    ]


def test_a_rank_that_answers_where_the_ranks_met_though_rank_0_does_not() -> None:
    served = core.TcpStore("127.0.0.1:0", serve=True, timeout=scaled(5), token="secret")
    rank = AnswersAtStore(core.TcpStore(served.address, timeout=scaled(5), token="secret"), "job")
    asker, ended, asked = Asker(served.address, "secret", "job"), threading.Event(), []

    def answer(question: str) -> bytes:
        asked.append(question)
        return json.dumps({"job": "ab12", "size": 3, "pid": 7, "number": len(asked)}).encode()

    def answering() -> None:
        while not ended.wait(0.01):
            rank.look(1, answer)

    thread = threading.Thread(target=answering)
    thread.start()
    try:
        for number in (1, 2):  # an answer to an earlier question does not count
            found = asker.ask("status", seconds=scaled(1))
            assert [(each.name.rank, each.said and each.said["number"]) for each in found] == [(1, number)]
    finally:
        ended.set()
        thread.join()
    assert asker.ask("status", seconds=0.2) == []
