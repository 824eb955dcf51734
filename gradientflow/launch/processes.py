"""The launcher of jobs over TCP: starts processes, and ends them together.

    python -I -S processes.py JOB...
    python -I -S processes.py -

JOB is what `gradientflow.launch.tcp` writes, in one or several words; for ``-`` it is the first line of the input, and
the job ends with the input. This is a program of its own, as ``mpirun`` is, and imports nothing of the package, so that
it starts at once. Its members are ranks, or launchers of the second kind, each for the ranks of a host. The first rank
here reads the input. Where modules are to be preloaded, ranks are forked from a process that has imported them. What
ranks write is passed on in whole lines, but to a terminal, to which they write themselves unless lines are labelled.
When so many have failed that fewer are left than the job needs, the others have a moment to say what they have to say;
the launcher of a host's ranks tells the first one what has failed, which decides. However this process ends, the ranks
end, too. What has failed may be started again, and counts as left; ranks then find how often. Where a job may go on
without some, a process of the launcher keeps the store where they meet, and says there who will not come. When that
process ends, another one tells all who come that they cannot meet.

A signal that is to end the launcher has it ask the ranks to end, and kill what is left after the time that the job
gives them, or when a second signal comes. Signals that programs have for themselves, and those that stop and continue
a job, are passed on to the ranks, also to those of other hosts.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Set
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

_FOLDER = os.path.dirname(os.path.abspath(__file__))
sys.path += [_FOLDER, os.path.dirname(_FOLDER)]

if TYPE_CHECKING:
    from gradientflow import waits

    from .output import Output, Stream
else:
    import waits
    from output import Output, Stream

_ENDING = frozenset({signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT})
if signal.getsignal(signal.SIGHUP) == signal.SIG_IGN:  # as nohup has it
    _ENDING -= {signal.SIGHUP}
_OF_PROGRAMS = frozenset({signal.SIGUSR1, signal.SIGUSR2})  # would end what a rank has started and does not know them
_PASSED_ON = _OF_PROGRAMS | {signal.SIGTSTP, signal.SIGCONT}
_WATCHED = _ENDING | _PASSED_ON | {signal.SIGCHLD}
_NURSERY_SECONDS = 0.1  # in which a nursery that has killed its ranks by its death is seen to have ended
_NOT_STARTED = 127  # as a shell says it
_SSH_FAILED = 255
_PR_SET_PDEATHSIG = 1
_PRELOADED = os.path.join(_FOLDER, "preloaded.py")
_TOKEN = "GRADIENTFLOW_TOKEN"
_RESTARTS = "GRADIENTFLOW_RESTARTS"
_PLACE = {"GRADIENTFLOW_RANK": "rank", "RANK": "rank", "LOCAL_RANK": "local", "LOCAL_WORLD_SIZE": "of"}
_LONG_LIFE = 30.0  # seconds; whoever has lived so long is started again at once
_LONGEST_ABSENCE = 3600.0  # seconds; attempts to come back to the job that cannot reach it count after them

_is_done = threading.Event()  # who is started again comes too late: a rank has done its work, or the store is gone
_is_deserted = threading.Event()  # the input has ended from which the job has come

_libc = ctypes.CDLL(None, use_errno=True)


@dataclass
class Member:
    """A process that this one has started: a rank, or the launcher of a host's ranks."""

    name: str
    ranks: list[int]
    process: subprocess.Popen[bytes]
    output: Stream
    has_group: bool  # of processes, with what it has started
    is_launcher: bool
    number: int  # among those that the job describes
    since: float = field(default_factory=time.monotonic)
    _taken: int = 0  # of the notes

    def signal(self, number: int) -> None:
        """Send a signal to it and to what it has started; to the ranks of a launcher."""
        if self.is_launcher:
            self._tell(str(int(number)))
            return
        with contextlib.suppress(ProcessLookupError):
            if self.has_group and number not in _OF_PROGRAMS:
                os.killpg(self.process.pid, number)
            else:
                self.process.send_signal(number)

    def end(self, *, soon: bool) -> None:
        """Ask it to end; the end of its input tells a launcher to do it soon."""
        if self.is_launcher and soon:
            self.close_input()
        else:
            self.signal(signal.SIGTERM)
            self.signal(signal.SIGCONT)  # it may have been stopped

    def kill(self) -> None:
        """Kill it; the end of its input first tells a launcher to kill its ranks."""
        if self.process.stdin is not None and not self.process.stdin.closed:
            self.close_input()
        elif self.has_group:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
        else:
            self.process.kill()

    def send_job(self, job: dict[str, Any]) -> None:
        """Tell a launcher what to start."""
        self._tell(json.dumps(job))

    def forbid_restarts(self) -> None:
        """Tell a launcher to start no rank again."""
        self._tell("")

    def _tell(self, line: str) -> None:
        if self.process.stdin is not None and not self.process.stdin.closed:
            with contextlib.suppress(OSError):  # it has ended already
                self.process.stdin.write(line.encode() + b"\n")
                self.process.stdin.flush()

    def close_input(self) -> None:
        """End the input of a launcher."""
        if self.process.stdin is not None:
            with contextlib.suppress(OSError):
                self.process.stdin.close()

    def take_notes(self) -> list[dict[str, Any]]:
        """Return what a launcher has told of its ranks."""
        notes, self._taken = self.output.notes[self._taken :], len(self.output.notes)
        return [json.loads(note) for note in notes if note]

    @property
    def has_begun(self) -> bool:
        """Whether it is a rank, or a launcher that has said that it runs."""
        return not self.is_launcher or bool(self.output.notes)


@dataclass
class Absence:
    """How a member that has been in the job fails to come back."""

    starts: int = 0  # that could not reach the job
    since: float | None = None  # when the first of those failed that followed each other


class Failure(NamedTuple):
    """What has failed: ranks, who that is for people, how, and with which exit status."""

    ranks: list[int]
    who: str
    how: str
    status: int


class Helper:
    """A process of the launcher's own that ranks need.

    Parameters
    ----------
    what : str
        What it is, for people.
    """

    _process: subprocess.Popen[bytes] | None

    def __init__(self, what: str) -> None:
        self._what = what

    def take_end(self, seconds: float = 0.0) -> tuple[int, str]:
        """Return the status with which it ends in so many seconds, and a sentence's beginning about that.

        They are 0 and empty while it runs, and once they were returned. It has to run for as long as the job does.
        """
        if self._process is None:
            return 0, ""
        with contextlib.suppress(subprocess.TimeoutExpired):
            status = self._process.wait(seconds)
            pid, self._process = self._process.pid, None
            return status, f"the process {self._what} (process {pid}) {_ending(status)}"
        return 0, ""


class Keeper(Helper):
    """The process that keeps the store where ranks meet."""

    def __init__(self, job: dict[str, Any]) -> None:
        super().__init__("that keeps the store of the job")
        self._command, self._environment = job["keeper"], {**os.environ, _TOKEN: job["environment"][_TOKEN]}
        self._process = self._start()

    def tell(self, ranks: list[int], what: str) -> None:
        """Say at the store that ranks have ended for good."""
        if self._process is not None and self._process.stdin is not None:
            with contextlib.suppress(OSError):  # it has ended
                self._process.stdin.write(json.dumps({"ranks": ranks, "what": what}).encode() + b"\n")
                self._process.stdin.flush()

    def replace(self, why: str) -> None:
        """Start a process in the place of the one that has ended, to tell all who come why the ranks cannot meet."""
        self._successor = self._start(why)

    def _start(self, *more: str) -> subprocess.Popen[bytes]:
        command = [*self._command, *more]
        return subprocess.Popen(command, env=self._environment, stdin=subprocess.PIPE, preexec_fn=_end_with_this)


class Nursery(Helper):
    """The process from which ranks are forked that have a job's modules imported."""

    def __init__(self, job: dict[str, Any]) -> None:
        super().__init__(f"that ranks{job.get('where', '')} are forked from")
        _, *arguments = job["command"]
        program = "" if arguments[0].startswith("-") else arguments[0]
        first = job["members"][0]
        environment = {name: value for name, value in _environment(job, first).items() if name not in _PLACE}
        own, self._input = socket.socketpair()
        with own:
            self._process = subprocess.Popen(
                [sys.executable, _PRELOADED, program, *job["preload"]],
                env=environment,
                stdin=own.fileno(),
                preexec_fn=_end_with_this,
            )

    def stand_in(self, command: list[str]) -> tuple[list[str], socket.socket | None]:
        """Return the command that stands in for a rank, and a connection that it has to be given open.

        If there is no nursery any more, that is the command itself.
        """
        here, there = socket.socketpair()
        with there, contextlib.suppress(OSError):
            socket.send_fds(self._input, [b"."], [there.fileno()])
            return [sys.executable, "-I", "-S", _PRELOADED, str(here.fileno()), *command[1:]], here
        here.close()
        return command, None


class Members:
    """The processes of a job."""

    def __init__(self, job: dict[str, Any]) -> None:
        self._job = job
        self._output = Output()
        self._parent = job.get("parent", os.getppid())
        self.status = 0  # of the rank since whose end there are too few
        self._running: list[Member] = []
        self._failed: set[int] = set()  # ranks
        self._gone: set[int] = set()  # those of them that are not started again
        self._quick_ends = [0] * len(job["members"])  # one after the other
        self._absences: dict[int, Absence] = {}  # of members that have been in the job, by number
        self._waiting: dict[int, tuple[float, Failure]] = {}  # members that are to be started again, when, and why
        self.are_to_end = False
        self._has_begun = True  # on all hosts, as far as is known
        self._keeper = Keeper(job) if job.get("keeper") else None
        self._nursery = Nursery(job) if job.get("preload") else None
        for number, member in enumerate(job["members"]):
            self._start(number, member)
        self._output.start()

    def __len__(self) -> int:
        """Return how many still run, or are to run again."""
        return len(self._running) + len(self._waiting)

    @property
    def next_start(self) -> float | None:
        """When the next one is to be started again."""
        return min((moment for moment, _ in self._waiting.values()), default=None)

    @property
    def patience(self) -> float:
        """How many seconds the others have to report, once there are too few: none if there has been no job."""
        return waits.REPORT.seconds if self._has_begun else 0.0

    @property
    def are_deserted(self) -> bool:
        """Whether who has started this launcher has ended, or cannot reach it any more."""
        return _is_deserted.is_set() or os.getppid() != self._parent

    @property
    def _starts_no_more(self) -> bool:
        """Whether what fails stays so: a rank is done, or the job ends."""
        return _is_done.is_set() or self.are_to_end or self.status != 0

    def reap(self) -> None:
        """Take note of those that have ended."""
        self._check_nursery()
        self._check_keeper()
        for member in self._running[:]:
            status = member.process.poll()
            if status is not None:
                member.close_input()
                if member.is_launcher and not member.output.ended.is_set():  # what it has told may not have been read
                    self._output.end(member.output)
                    status = None
                else:
                    self._running.remove(member)
            for note in member.take_notes():
                self._take(note)
            if status and not self._gone.issuperset(member.ranks):
                self._has_begun &= member.has_begun
                number = status if status > 0 else 128 - status  # as a shell says it
                failure = Failure(member.ranks, self._who(member), _how(member, status), number)
                self._fail(failure, again=self._plan_restart(member, failure, status))
            elif status == 0 and not member.is_launcher:
                self._take({"done": member.ranks})

    def start_again(self) -> None:
        """Start those again whose time has come."""
        for number, (moment, failure) in list(self._waiting.items()):
            if self._starts_no_more:
                del self._waiting[number]
                self._lose(failure)
            elif moment <= time.monotonic():
                del self._waiting[number]
                described = self._job["members"][number]
                for each in (described, described.get("job", {})):
                    each["started"] = each.get("started", 0) + 1
                self._take({"again": _ranks(described)})
                self._start(number, described)

    def signal(self, number: int) -> None:
        """Send a signal to all that still run; one that stops a job stops this process, too."""
        for member in self._running:
            member.signal(number)
        if number == signal.SIGTSTP and "where" not in self._job:  # there the signal to continue comes by the input
            os.kill(os.getpid(), signal.SIGSTOP)

    def end(self, *, after_signal: bool) -> float:
        """Ask all that still run to end; return how many seconds they have."""
        self.are_to_end = True
        is_urgent = self.are_deserted or not after_signal
        for member in self._running:
            member.end(soon=is_urgent)
        grace = waits.ASKED_TO_END.seconds
        for_launchers = grace if any(member.is_launcher for member in self._running) else 0.0
        return for_launchers + (grace if is_urgent or not self._running else float(self._job["grace"]))

    def kill(self) -> None:
        """Kill all that still run; what has ended is not heard any more."""
        self._running = [member for member in self._running if member.process.poll() is None]
        for member in self._running:
            member.kill()

    def finish(self) -> bool:
        """Pass on what ranks that have ended have written; return whether all of it has been."""
        if self.status != 0:
            self._check_nursery(_NURSERY_SECONDS)  # ranks that are killed with it may be faster
        self._output.finish()
        return self._output.has_ended

    @property
    def output_is_lost(self) -> bool:
        """Whether something that ranks of this host have written could not be passed on."""
        return self._output.is_lost and "where" not in self._job

    def _take(self, note: dict[str, Any]) -> None:
        """Take note of what has become of ranks."""
        if "failed" in note:
            self._fail(Failure(*note["failed"]), again=note["again"])
            return
        if "lost" in note:
            self._lose(Failure(*note["lost"]))
            return
        self._failed.difference_update(note.get("again", ()))
        self._gone.difference_update(note.get("again", ()))  # those of a host that is started again as a whole
        self._tell(note)
        for rank in note.get("done", ()):
            if self._keeper is not None:
                self._keeper.tell([rank], f"rank {rank} has ended")
        if "done" in note:
            self._forbid_restarts()

    def _check_nursery(self, seconds: float = 0.0) -> None:
        if self._nursery is not None and (end := self._nursery.take_end(seconds)[1]):
            _say(f"{end}, and the ranks with it")

    def _check_keeper(self) -> None:
        """Act on the end of the store: no rank can join any more. Ranks that have met do not need it."""
        if (keeper := self._keeper) is None:
            return
        status, end = keeper.take_end()
        if status == os.EX_UNAVAILABLE:  # as it has said: it has never served, so there is no job
            self.status, self._has_begun = self.status or status, False
        elif end and not self.are_to_end:
            _say(f"{end}: no process can join the job any more, or be started again")
            self._forbid_restarts()
            keeper.replace(f"{end}, and the ranks cannot meet without it")

    def _forbid_restarts(self) -> None:
        """Start nothing again, here and on other hosts."""
        if not _is_done.is_set():
            _is_done.set()
            for member in self._running:
                member.forbid_restarts()

    def _tell(self, note: dict[str, Any]) -> bool:
        """Tell the launcher that has started this one, if that is so; return whether it is."""
        if mark := self._job.get("mark"):
            with contextlib.suppress(OSError):
                os.write(1, f"{mark}{json.dumps(note)}\n".encode())
        return mark is not None

    def _plan_restart(self, member: Member, failure: Failure, status: int) -> bool:
        """Note when a member that has failed is to be started again; return whether it is.

        A start that could not reach the job does not count where an earlier one could: a host is away.
        """
        number, now = member.number, time.monotonic()
        if self._starts_no_more:
            return False
        if not _is_unreached(member, status):
            self._absences.setdefault(number, Absence()).since = None
        elif absence := self._absences.get(number):
            absence.since = absence.since or now
            absence.starts += now - absence.since < _LONGEST_ABSENCE
        counted = self._job["members"][number].get("started", 0) - self._absences.get(number, Absence()).starts
        if counted >= (self._job.get("restarts") or 0):
            return False
        is_quick = now - member.since < _LONG_LIFE
        self._quick_ends[number] = self._quick_ends[number] + 1 if is_quick else 0
        quick = min(self._quick_ends[number], 9)
        pause = waits.RESTART.seconds * 2 ** (quick - 2) if quick > 1 else 0.0
        self._waiting[number] = now + min(pause, waits.LONGEST_RESTART.seconds), failure
        return True

    def _fail(self, failure: Failure, *, again: bool = False) -> None:
        """Take note that ranks have failed, and tell whoever decides, or decide what that means for the others."""
        if self.are_to_end:
            return
        self._failed.update(failure.ranks)
        self._gone.update(() if again else failure.ranks)
        if self._tell({"failed": failure, "again": again}):
            return
        if report := self._job.get("report"):
            with open(report, "a", encoding="utf-8") as file:
                file.write(json.dumps({"ranks": failure.ranks, "how": failure.how}) + "\n")
        elif self.status == 0:
            _say(f"{failure.who} {failure.how}{self._consequence()}")
        if not again:
            self._count_out(failure)

    def _lose(self, failure: Failure) -> None:
        """Take note that ranks that have failed are not started again after all."""
        if self.are_to_end:
            return
        self._gone.update(failure.ranks)
        if not self._tell({"lost": failure}):
            self._count_out(failure)

    def _count_out(self, failure: Failure) -> None:
        """Go on without ranks, or end the job if too few are left."""
        several = f"rank {', '.join(map(str, failure.ranks))}: " if len(failure.ranks) > 1 else ""
        if self._keeper is not None:
            self._keeper.tell(failure.ranks, f"{several}{failure.who} {failure.how}")
        if self.status == 0 and self._left(self._gone) < self._job["needed"]:
            self.status = failure.status

    def _left(self, without: Set[int]) -> int:
        return sum(len(_ranks(member)) for member in self._job["members"]) - len(without)

    def _consequence(self) -> str:
        """Say what the failure of a rank means for the others."""
        left, needed = self._left(self._failed), self._job["needed"]
        if left >= needed:
            return f": going on with {left} rank{'s'[: left != 1]}"
        if self._left(self._gone) >= needed:
            return ": waiting for those that are started again"
        return ": ending the others" if self._running else ""

    def _who(self, member: Member) -> str:
        if member.is_launcher:
            return member.name
        return f"{member.name} (process {member.process.pid}{self._job.get('where', '')})"

    def _start(self, number: int, described: dict[str, Any]) -> None:
        launcher, own_job, processors = os.getpid(), described.get("job"), _processors(self._job, described)
        name = f"host {described['host']}" if own_job else f"rank {described['rank']}"
        if self.status != 0:
            return
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
        command, connection = described.get("command") or self._job["command"], None
        # A fork has a group of its own, which a terminal does not let read.
        if self._nursery is not None and "command" not in described and has_group:
            command, connection = self._nursery.stand_in(command)
        try:
            process = subprocess.Popen(
                command,
                env=_environment(self._job, described),
                pass_fds=[] if connection is None else [connection.fileno()],
                stdin=subprocess.PIPE if own_job else None if reads_input else subprocess.DEVNULL,
                stdout=outputs[0],
                stderr=outputs[1],
                preexec_fn=prepare,
            )
        except OSError as error:
            self._has_begun = False
            self._fail(Failure(_ranks(described), name, f"cannot be started: {error}", _NOT_STARTED))
            return
        finally:
            for pipe in outputs:
                if pipe is not None:
                    os.close(pipe)
            if connection is not None:
                connection.close()
        self._running.append(Member(name, _ranks(described), process, streams[0], has_group, bool(own_job), number))
        if own_job:
            self._running[-1].send_job(own_job)


def main() -> int:
    """Run a job to its end; return the status of the rank since whose failure there were too few, or 0."""
    signal.pthread_sigmask(signal.SIG_BLOCK, _WATCHED)
    job = _read_job() if sys.argv[1] == "-" else json.loads("".join(sys.argv[1:]))
    if parent := job.get("parent"):  # whose end is to be the end of this
        _libc.prctl(_PR_SET_PDEATHSIG, int(signal.SIGTERM), 0, 0, 0)
        if os.getppid() != parent:
            return _NOT_STARTED
    _draw_token(job)
    members = Members(job)
    asked: float | None = None  # when they were asked to end
    deadline: float | None = None  # for asking them, and then for killing them
    cause = 0
    while True:
        members.reap()
        members.start_again()
        if not members and members.finish():
            return members.status or cause or int(members.output_is_lost)
        if deadline is None and members.status != 0:
            deadline = time.monotonic() + members.patience
        received = _next_signal(min(filter(None, (deadline, members.next_start)), default=None))
        now = time.monotonic()
        if received in _PASSED_ON:
            members.signal(received)
        elif received in _ENDING:
            cause = cause or 128 + received
            if asked is None or now > asked + waits.SAME_SIGNAL.seconds or members.are_deserted:
                deadline = now
        if deadline is None or deadline > now:
            continue
        if asked is None:
            asked, deadline = now, now + members.end(after_signal=received in _ENDING)
        elif cause and not members:  # whoever reads the output has had time for it
            return members.status or cause
        else:
            members.kill()
            deadline = now + waits.ASKED_TO_END.seconds


def _read_job() -> dict[str, Any]:
    """Read the job from the input, whose end then ends this process; whoever has sent it learns that it has come."""
    lines = _lines_of_input()
    if not (text := next(lines, b"")):
        sys.exit(_NOT_STARTED)
    job: dict[str, Any] = json.loads(text)
    os.write(1, job["mark"].encode() + b"\n")

    def follow() -> None:
        for line in lines:
            if not line:  # a rank elsewhere has done what it was to do
                _is_done.set()
            os.kill(os.getpid(), int(line or signal.SIGCHLD))
        _is_deserted.set()
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=follow, daemon=True).start()
    return job


def _lines_of_input() -> Iterator[bytes]:
    """Read lines as they come, without a lock that a thread could hold at the end of this process."""
    begun = b""
    with contextlib.suppress(OSError):
        while data := os.read(0, 1 << 16):
            *lines, begun = (begun + data).split(b"\n")
            yield from lines


def _end_with_this() -> None:
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _WATCHED)
    os.setpgid(0, 0)
    _libc.prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)


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
    environment = {**outer, **job["environment"], **{name: str(member[key]) for name, key in _PLACE.items()}}
    if job.get("restarts") is not None:
        environment[_RESTARTS] = str(job.get("started", 0) + member.get("started", 0))
    if member["of"] > 1 and not environment.get("OMP_NUM_THREADS"):  # else each would start a thread for every core
        environment["OMP_NUM_THREADS"] = str(max(1, len(os.sched_getaffinity(0)) // member["of"]))
    return environment


def _ranks(described: dict[str, Any]) -> list[int]:
    """Return the ranks of a member: its own, or those of its host."""
    return [each["rank"] for each in described["job"]["members"]] if "job" in described else [described["rank"]]


def _how(member: Member, status: int) -> str:
    """Say how a member has ended that has failed."""
    how = _ending(status)
    if not member.is_launcher:
        return f"could not reach the job (exit status {status})" if _is_unreached(member, status) else how
    if member.has_begun:
        return f"is lost: ssh {how}"
    if _is_unreached(member, status):
        return f"cannot be reached: ssh {member.name.removeprefix('host ')} has to work without a question"
    return f"has started no ranks: ssh {how}"


def _is_unreached(member: Member, status: int) -> bool:
    """Tell whether a rank has said, by its exit status, that it could not reach the job, or ssh its host."""
    return (status == _SSH_FAILED and not member.has_begun) if member.is_launcher else status == os.EX_TEMPFAIL


def _ending(status: int) -> str:
    return f"ended with exit status {status}" if status >= 0 else f"was ended by {_name(-status)}"


def _processors(job: dict[str, Any], member: dict[str, Any]) -> Set[int] | None:
    """Return the processors that a member gets; None if it is not bound."""
    if "rank" not in member or job.get("bind", "none") == "none":
        return None
    import machine  # type: ignore[import-not-found]

    found: Set[int] = machine.share(job["bind"], member["local"], member["of"])
    return None if found == os.sched_getaffinity(0) else found


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
