"""The launcher of jobs over TCP: starts processes, and ends them together.

    python -I -S processes.py JOB...
    python -I -S processes.py -

JOB is what `gradientflow.launch.tcp` writes, in one or several words; for ``-`` it is the first line of the input, and
the job ends with the input. This is a program of its own, as ``mpirun`` is, and imports nothing of the package, so that
it starts at once. Its members are ranks, or launchers of the second kind, each for the ranks of a host. The first rank
here reads the input. What ranks write is passed on in whole lines, but to a terminal, to which they write themselves
unless lines are labelled. When one fails, the others have a moment to say what they have to say. However this process
ends, the ranks end, too.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import json
import os
import runpy
import select
import selectors
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Set
from dataclasses import dataclass, field
from typing import Any

_ENDING = frozenset({signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT})
_WATCHED = _ENDING | {signal.SIGCHLD}
_REPORT_SECONDS = 3.0  # in which ranks notice that another has gone
_GRACE_SECONDS = 3.0  # between asking a rank to end and killing it
_PROMPT_SECONDS = 0.1  # after which the beginning of a line is passed on
_NOT_STARTED = 127  # as a shell says it
_SSH_FAILED = 255
_PR_SET_PDEATHSIG = 1
_TOKEN = "GRADIENTFLOW_TOKEN"

_libc = ctypes.CDLL(None, use_errno=True)


@dataclass
class Stream:
    """What one process writes to one of its outputs."""

    target: int  # where it goes
    label: bytes  # begins each line
    mark: bytes  # a line that is not passed on: the process says that it has started, and again that a rank has failed
    begun: bytes = b""  # the last line, which has not ended
    in_line: bool = False  # whether the beginning of a line has been passed on
    marks: int = 0  # that have come
    ended: threading.Event = field(default_factory=threading.Event)

    def take(self, data: bytes) -> bytes:
        """Take what has come, or nothing in the end; return what is to be passed on, in whole lines."""
        lines, newline, rest = (self.begun + data).rpartition(b"\n")
        self.begun = rest if data else b""
        return self._labelled(lines + newline if data else rest)

    def take_begun(self) -> bytes:
        """Return the beginning of a line, which has no end yet."""
        data, self.begun = self.begun, b""
        return self._labelled(data)

    def _labelled(self, data: bytes) -> bytes:
        if self.mark and (count := data.count(self.mark + b"\n")):
            self.marks, data = self.marks + count, data.replace(self.mark + b"\n", b"")
            os.kill(os.getpid(), signal.SIGCHLD)  # as if a process had ended: there is something to take note of
        if not self.label or not data:
            return data
        labelled = data[:-1].replace(b"\n", b"\n" + self.label) + data[-1:]
        was_in_line, self.in_line = self.in_line, not data.endswith(b"\n")
        return labelled if was_in_line else self.label + labelled


class Output:
    """Passes on what several processes write, whole lines at a time: else lines of ranks could mix."""

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()
        self._streams: dict[int, Stream] = {}  # by the pipe that they come from
        self._turns = 0  # in which something came
        self._writing = False  # for as long as its reader takes
        self._thread = threading.Thread(target=self._pass_on, daemon=True)

    def pipe_to(self, stream: Stream) -> int | None:
        """Return a new pipe to one of this process's own outputs; None for a terminal that needs none."""
        if os.isatty(stream.target) and not (stream.label or stream.mark):
            return None
        read, write = os.pipe()
        self._selector.register(read, selectors.EVENT_READ)
        self._streams[read] = stream
        return write

    def start(self) -> None:
        """Begin, once all processes have been started."""
        self._thread.start()

    def finish(self) -> None:
        """Pass on what is left of processes that have ended; what they have started may still hold their pipes."""
        before = -1
        while self._thread.is_alive() and (self._writing or self._turns != before):
            before = self._turns
            self._thread.join(2 * _PROMPT_SECONDS)

    def _pass_on(self) -> None:
        while self._streams:
            ready = self._selector.select(
                _PROMPT_SECONDS if any(each.begun for each in self._streams.values()) else None
            )
            self._turns += bool(ready)
            for key, _ in ready:
                data = os.read(key.fd, 1 << 16)
                self._write(key.fd, self._streams[key.fd].take(data))
                if not data:
                    self._forget(key.fd)
            for pipe in [] if ready else list(self._streams):
                self._write(pipe, self._streams[pipe].take_begun())

    def _write(self, pipe: int, data: bytes) -> None:
        self._writing = True
        try:
            while data:
                data = data[_write_some(self._streams[pipe].target, data) :]
        except OSError:  # nobody reads: the ranks are to notice
            self._forget(pipe)
        self._writing = False

    def _forget(self, pipe: int) -> None:
        if stream := self._streams.pop(pipe, None):
            self._selector.unregister(pipe)
            os.close(pipe)
            stream.ended.set()


def _write_some(target: int, data: bytes) -> int:
    """Write what fits, and return how much; wait for a pipe that does not do so by itself."""
    try:
        return os.write(target, data)
    except BlockingIOError:
        select.select([], [target], [])
        return 0


@dataclass
class Member:
    """A process that this one has started: a rank, or the launcher of a host's ranks."""

    name: str
    process: subprocess.Popen[bytes]
    output: Stream
    has_group: bool  # of processes, with what it has started
    is_launcher: bool

    def signal(self, number: int) -> None:
        """Send a signal to it and to what it has started; a launcher is first told by the end of its input."""
        if self.is_launcher and number == signal.SIGTERM:
            self.close_input()
            return
        with contextlib.suppress(ProcessLookupError):
            if self.has_group:
                os.killpg(self.process.pid, number)
            else:
                self.process.send_signal(number)

    def send_job(self, job: dict[str, Any]) -> None:
        """Tell a launcher what to start."""
        assert self.process.stdin is not None
        with contextlib.suppress(OSError):  # it has ended already
            self.process.stdin.write(json.dumps(job).encode() + b"\n")
            self.process.stdin.flush()

    def close_input(self) -> None:
        """End the input of a launcher."""
        if self.process.stdin is not None:
            with contextlib.suppress(OSError):
                self.process.stdin.close()

    def has_reported(self) -> bool:
        """Tell whether this was a launcher that had started: it has said by itself what was wrong."""
        return self.is_launcher and self.output.ended.wait(_GRACE_SECONDS) and self.output.marks > 0


class Members:
    """The processes of a job."""

    def __init__(self, job: dict[str, Any]) -> None:
        self._job = job
        self._output = Output()
        self.status = 0  # of the first that failed
        self._running: list[Member] = []
        self.are_to_end = False
        self._has_begun = True  # on all hosts, as far as is known
        for number, member in enumerate(job["members"]):
            self._start(number, member)
        self._output.start()

    def __len__(self) -> int:
        """Return how many still run."""
        return len(self._running)

    @property
    def have_failed(self) -> bool:
        """Whether a rank has failed, here or on another host."""
        return self.status != 0 or any(member.output.marks > 1 for member in self._running)

    @property
    def patience(self) -> float:
        """How many seconds the others have to report, once some have failed: none if there has been no job."""
        return _REPORT_SECONDS if self._has_begun else 0.0

    @property
    def grace(self) -> float:
        """How many seconds pass between asking them to end and killing them; launchers give that to their ranks."""
        return _GRACE_SECONDS * (2 if any(member.is_launcher for member in self._running) else 1)

    def reap(self) -> None:
        """Take note of those that have ended."""
        for member in self._running[:]:
            status = member.process.poll()
            if status is None:
                continue
            self._running.remove(member)
            member.close_input()
            if status != 0 and (not self.are_to_end or member.output.marks > 1):
                self._report(member, status)
                self._has_begun &= not member.is_launcher or member.output.marks > 0
                self.status = self.status or (status if status > 0 else 128 - status)

    def signal(self, number: int) -> None:
        """Send a signal to all that still run."""
        self.are_to_end = True
        for member in self._running:
            member.signal(number)

    def finish(self) -> None:
        """Pass on what ranks that have ended have written."""
        self._output.finish()

    def _report(self, member: Member, status: int) -> None:
        how = f"ended with exit status {status}" if status > 0 else f"was ended by {_name(-status)}"
        if mark := self._job.get("mark"):
            with contextlib.suppress(OSError):
                os.write(1, mark.encode() + b"\n")
        if report := self._job.get("report"):
            with open(report, "a", encoding="utf-8") as file:
                file.write(json.dumps({"name": member.name, "how": how}) + "\n")
        elif self.status == 0 and not member.has_reported():
            if member.is_launcher and status == _SSH_FAILED:
                how = f"cannot be reached: ssh {member.name.removeprefix('host ')} has to work without a question"
            elif member.is_launcher:
                how = f"has started no ranks: ssh {how}"
            process = "" if member.is_launcher else f" (process {member.process.pid}{self._job.get('where', '')})"
            others = ": ending the others" if self._running or self._job.get("where") else ""
            _say(f"{member.name}{process} {how}{others}")

    def _start(self, number: int, described: dict[str, Any]) -> None:
        launcher, own_job, processors = os.getpid(), described.get("job"), _processors(self._job, described)
        name = f"host {described['host']}" if own_job else f"rank {described['rank']}"
        reads_input = number == 0 and own_job is None and "where" not in self._job
        # A terminal lets only its foreground group read.
        has_group = not (reads_input and sys.stdin is not None and sys.stdin.isatty())

        def prepare() -> None:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, _WATCHED)
            if has_group:
                os.setpgid(0, 0)
            _libc.prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
            if os.getppid() != launcher:  # which has ended meanwhile
                os._exit(1)
            if processors is not None:
                os.sched_setaffinity(0, processors)

        label = f"[{described['rank']}] ".encode() if self._job.get("label") else b""
        mark = own_job["mark"].encode() if own_job else b""
        streams = [Stream(target, label, mark if target == 1 else b"") for target in (1, 2)]
        outputs = [self._output.pipe_to(stream) for stream in streams]
        try:
            process = subprocess.Popen(
                described.get("command") or self._job["command"],
                env=_environment(self._job, described),
                stdin=subprocess.PIPE if own_job else None if reads_input else subprocess.DEVNULL,
                stdout=outputs[0],
                stderr=outputs[1],
                preexec_fn=prepare,
            )
        except OSError as error:
            _say(f"{name} cannot be started: {error}")
            sys.exit(_NOT_STARTED)
        for pipe in outputs:
            if pipe is not None:
                os.close(pipe)
        self._running.append(Member(name, process, streams[0], has_group, is_launcher=bool(own_job)))
        if own_job:
            self._running[-1].send_job(own_job)


def main() -> int:
    """Run a job to its end; return the exit status of the first rank that failed, or 0."""
    signal.pthread_sigmask(signal.SIG_BLOCK, _WATCHED)
    job = _read_job() if sys.argv[1] == "-" else json.loads("".join(sys.argv[1:]))
    if parent := job.get("parent"):  # whose end is to be the end of this
        _libc.prctl(_PR_SET_PDEATHSIG, int(signal.SIGTERM), 0, 0, 0)
        if os.getppid() != parent:
            return _NOT_STARTED
    _draw_token(job)
    members = Members(job)
    steps = iter([signal.SIGTERM, signal.SIGKILL])  # how those that are left are ended
    deadline: float | None = None
    cause = 0
    while True:
        members.reap()
        if not members:
            members.finish()
            return members.status or cause
        if deadline is None and members.have_failed:
            deadline = time.monotonic() + members.patience
        received = _next_signal(deadline)
        if received in _ENDING and not cause:
            cause, deadline, members.are_to_end = 128 + received, time.monotonic(), True
        elif received is None:
            members.signal(next(steps, signal.SIGKILL))
            deadline = time.monotonic() + members.grace


def _read_job() -> dict[str, Any]:
    """Read the job from the input, whose end then ends this process; whoever has sent it learns that it has come."""
    text = b""
    while not text.endswith(b"\n"):
        read = os.read(0, 1 << 16)
        if not read:
            sys.exit(_NOT_STARTED)
        text += read
    job: dict[str, Any] = json.loads(text)
    os.write(1, job["mark"].encode() + b"\n")

    def wait_for_the_end() -> None:
        with contextlib.suppress(OSError):
            while os.read(0, 1 << 16):
                pass
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=wait_for_the_end, daemon=True).start()
    return job


def _draw_token(job: dict[str, Any]) -> None:
    """Give the ranks of a job a token in common, unless they have one: in a command line others could read it."""
    token = os.urandom(32).hex()
    for each in [job, *(member["job"] for member in job["members"] if "job" in member)]:
        each.setdefault("environment", {}).setdefault(_TOKEN, token)


def _environment(job: dict[str, Any], member: dict[str, Any]) -> dict[str, str]:
    """Give a member's environment, without what says that ``torchrun`` started its processes: it is another job's."""
    outer = {name: value for name, value in os.environ.items() if not name.startswith("TORCHELASTIC_")}
    if "rank" not in member:
        return outer
    place = {"GRADIENTFLOW_RANK": "rank", "RANK": "rank", "LOCAL_RANK": "local", "LOCAL_WORLD_SIZE": "of"}
    environment = {**outer, **job["environment"], **{name: str(member[key]) for name, key in place.items()}}
    if member["of"] > 1 and not environment.get("OMP_NUM_THREADS"):  # else each would start a thread for every core
        environment["OMP_NUM_THREADS"] = str(max(1, len(os.sched_getaffinity(0)) // member["of"]))
    return environment


def _processors(job: dict[str, Any], member: dict[str, Any]) -> Set[int] | None:
    """Return the processors that a member gets; None if it is not bound."""
    if "rank" not in member or job.get("bind", "none") == "none":
        return None
    found: Set[int] = _machine()["share"](job["bind"], member["local"], member["of"])
    return None if found == os.sched_getaffinity(0) else found


@functools.cache
def _machine() -> dict[str, Any]:
    return runpy.run_path(os.path.join(os.path.dirname(__file__), "machine.py"))


def _next_signal(deadline: float | None) -> int | None:
    if deadline is None:
        return signal.sigwaitinfo(_WATCHED).si_signo
    received = signal.sigtimedwait(_WATCHED, max(0.0, deadline - time.monotonic()))
    return None if received is None else received.si_signo


def _name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # one of the real-time signals
        return f"signal {number}"


def _say(sentence: str) -> None:
    with contextlib.suppress(OSError):
        os.write(2, f"gradientflow: {sentence}\n".encode())


if __name__ == "__main__":
    sys.exit(main())
