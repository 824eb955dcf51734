"""Launcher of jobs over TCP: starts processes, and ends them together.

    python -I -S processes.py JOB...
    python -I -S processes.py -

JOB is the text of a job from `gradientflow.launch.tcp`, in one or more words. With ``-`` it is the first line of the
input, and the job ends with the input. This is a program of its own, like ``mpirun``, and imports nothing of the
package, so that it starts at once.

The members of a job are ranks, or launchers of the second form, one for the ranks of each host. The first rank here
reads the input. If modules are preloaded, ranks are forked from a process that has imported them. Output of ranks is
forwarded in whole lines; to a terminal they write directly unless lines are labeled.

A launcher of a host's ranks reports failures to the first launcher, which decides. A failed member may be restarted; it
then counts as a survivor, and its ranks find the number of restarts in their environment. If fewer ranks survive than
the job needs, the survivors get a grace period to report errors before they are ended. However this process ends, the
ranks end, too. If a job may continue without some ranks, a helper process of the launcher keeps the store where they
meet, and notes there which ranks are missing for good. When the helper ends, another process tells all later processes
that the ranks cannot meet.

A signal that ends the launcher makes it ask the ranks to end. It kills the remaining ranks after the job's grace
period, or on a second signal. SIGUSR1, SIGUSR2 and the signals that stop and continue a job are relayed to all ranks,
also on other hosts.
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
from typing import TYPE_CHECKING, NamedTuple

_FOLDER = os.path.dirname(os.path.abspath(__file__))
sys.path += [_FOLDER, os.path.dirname(_FOLDER)]

if TYPE_CHECKING:
    from gradientflow import waits
    from gradientflow.annotations import JsonObject

    from .output import Output, Stream
else:
    import waits
    from output import Output, Stream

_ENDING = frozenset({signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT})
if signal.getsignal(signal.SIGHUP) == signal.SIG_IGN:  # set by nohup
    _ENDING -= {signal.SIGHUP}
_OF_PROGRAMS = frozenset({signal.SIGUSR1, signal.SIGUSR2})  # sent to ranks only: without a handler, children would end
_PASSED_ON = _OF_PROGRAMS | {signal.SIGTSTP, signal.SIGCONT}
_WATCHED = _ENDING | _PASSED_ON | {signal.SIGCHLD}
_FORK_SERVER_SECONDS = 0.1  # time in which the death of a fork server, which kills its ranks, becomes visible
_NOT_STARTED = 127  # a shell's exit status for a missing program
_SSH_FAILED = 255
_PR_SET_PDEATHSIG = 1
_FORK_SERVER = os.path.join(_FOLDER, "fork_server.py")
_TOKEN = "GRADIENTFLOW_TOKEN"
_RESTARTS = "GRADIENTFLOW_RESTARTS"
_PLACE = {"GRADIENTFLOW_RANK": "rank", "RANK": "rank", "LOCAL_RANK": "local", "LOCAL_WORLD_SIZE": "of"}
_LONG_LIFE = 30.0  # seconds; a member that has lived so long is restarted at once
_LONGEST_ABSENCE = 3600.0  # seconds of failing to reach the job again; later failed starts count as restarts

_is_done = threading.Event()  # restarts are useless: a rank has done its work, or the store has ended
_is_deserted = threading.Event()  # the input that gave the job has ended

_libc = ctypes.CDLL(None, use_errno=True)


@dataclass
class Member:
    """A process started by this launcher: a rank, or the launcher of a host's ranks."""

    name: str
    ranks: list[int]
    process: subprocess.Popen[bytes]
    output: Stream
    has_group: bool  # the process and its children are a process group
    is_launcher: bool
    number: int  # index among the members that the job describes
    since: float = field(default_factory=time.monotonic)
    _taken: int = 0  # number of notes taken

    def signal(self, number: int) -> None:
        """Send a signal to a rank and its children, or to the ranks of a launcher."""
        if self.is_launcher:
            self._tell(str(int(number)))
            return
        with contextlib.suppress(ProcessLookupError):
            if self.has_group and number not in _OF_PROGRAMS:
                os.killpg(self.process.pid, number)
            else:
                self.process.send_signal(number)

    def end(self, *, soon: bool) -> None:
        """Ask the member to end; if `soon` and it is a launcher, ask by ending its input."""
        if self.is_launcher and soon:
            self.close_input()
        else:
            self.signal(signal.SIGTERM)
            self.signal(signal.SIGCONT)  # the rank may be stopped

    def kill(self) -> None:
        """Kill the member. For a launcher, the first call only ends its input, which makes it kill its ranks."""
        if self.process.stdin is not None and not self.process.stdin.closed:
            self.close_input()
        elif self.has_group:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
        else:
            self.process.kill()

    def send_job(self, job: dict[str, object]) -> None:
        """Send a launcher its job."""
        self._tell(json.dumps(job))

    def forbid_restarts(self) -> None:
        """Tell a launcher to restart no rank."""
        self._tell("")

    def _tell(self, line: str) -> None:
        if self.process.stdin is not None and not self.process.stdin.closed:
            with contextlib.suppress(OSError):  # the process has ended already
                self.process.stdin.write(line.encode() + b"\n")
                self.process.stdin.flush()

    def close_input(self) -> None:
        """End the input of a launcher."""
        if self.process.stdin is not None:
            with contextlib.suppress(OSError):
                self.process.stdin.close()

    def take_notes(self) -> list[JsonObject]:
        """Return a launcher's new notes about its ranks."""
        notes, self._taken = self.output.notes[self._taken :], len(self.output.notes)
        return [json.loads(note) for note in notes if note]

    @property
    def has_begun(self) -> bool:
        """True for a rank, and for a launcher that has reported its start."""
        return not self.is_launcher or bool(self.output.notes)


@dataclass
class Absence:
    """Failed attempts of a former member to reach the job again."""

    starts: int = 0  # number of starts that could not reach the job
    since: float | None = None  # time of the first failure in the current series


class Failure(NamedTuple):
    """A failure: the ranks, their name for messages, the way in which they ended, and the exit status."""

    ranks: list[int]
    who: str
    how: str
    status: int


class Helper:
    """A helper process of the launcher that ranks need.

    Parameters
    ----------
    what : str
        Its purpose, for messages.
    """

    _process: subprocess.Popen[bytes] | None

    def __init__(self, what: str) -> None:
        self._what = what

    def take_end(self, seconds: float = 0.0) -> tuple[int, str]:
        """Return its exit status if it ends within `seconds`, and the beginning of a sentence about it.

        Return 0 and an empty text while it runs, and after the first report. A helper should run as long as the job.
        """
        if self._process is None:
            return 0, ""
        with contextlib.suppress(subprocess.TimeoutExpired):
            status = self._process.wait(seconds)
            pid, self._process = self._process.pid, None
            return status, f"the process {self._what} (process {pid}) {_ending(status)}"
        return 0, ""


class StoreServer(Helper):
    """The helper process that keeps the store where ranks meet."""

    def __init__(self, job: JsonObject) -> None:
        super().__init__("that keeps the store of the job")
        self._command, self._environment = job["store_server"], {**os.environ, _TOKEN: job["environment"][_TOKEN]}
        self._process = self._start()

    def tell(self, ranks: list[int], what: str) -> None:
        """Note in the store that ranks have ended for good."""
        if self._process is not None and self._process.stdin is not None:
            with contextlib.suppress(OSError):  # the process has ended
                self._process.stdin.write(json.dumps({"ranks": ranks, "what": what}).encode() + b"\n")
                self._process.stdin.flush()

    def replace(self, why: str) -> None:
        """Start a process in place of an ended one, to tell all later processes why the ranks cannot meet."""
        self._successor = self._start(why)

    def _start(self, *more: str) -> subprocess.Popen[bytes]:
        command = [*self._command, *more]
        return subprocess.Popen(command, env=self._environment, stdin=subprocess.PIPE, preexec_fn=_end_with_this)


class ForkServer(Helper):
    """The fork server: the helper process that has imported a job's modules and forks its ranks."""

    def __init__(self, job: JsonObject) -> None:
        super().__init__(f"that ranks{job.get('where', '')} are forked from")
        _, *arguments = job["command"]
        program = "" if arguments[0].startswith("-") else arguments[0]
        first = job["members"][0]
        environment = {name: value for name, value in _environment(job, first).items() if name not in _PLACE}
        own, self._input = socket.socketpair()
        with own:
            self._process = subprocess.Popen(
                [sys.executable, _FORK_SERVER, program, *job["preload"]],
                env=environment,
                stdin=own.fileno(),
                preexec_fn=_end_with_this,
            )

    def proxy_command(self, command: list[str]) -> tuple[list[str], socket.socket | None]:
        """Return the command of a rank's proxy, and the connection that it must inherit.

        If the fork server has ended, return the rank's own command and None.
        """
        here, there = socket.socketpair()
        with there, contextlib.suppress(OSError):
            socket.send_fds(self._input, [b"."], [there.fileno()])
            return [sys.executable, "-I", "-S", _FORK_SERVER, str(here.fileno()), *command[1:]], here
        here.close()
        return command, None


class Members:
    """The processes of a job."""

    def __init__(self, job: JsonObject) -> None:
        self._job = job
        self._output = Output()
        self._parent = job.get("parent", os.getppid())
        self.status = 0  # exit status of the rank whose failure left too few ranks
        self._running: list[Member] = []
        self._failed: set[int] = set()  # failed ranks
        self._given_up: set[int] = set()  # failed ranks that are not restarted
        self._quick_ends = [0] * len(job["members"])  # consecutive quick failures of each member
        self._absences: dict[int, Absence] = {}  # absences of former members, by number
        self._waiting: dict[int, tuple[float, Failure]] = {}  # members to restart: the time, and their failure
        self.are_to_end = False
        self._has_begun = True  # the job has begun on all hosts, as far as is known
        self._store_server = StoreServer(job) if job.get("store_server") else None
        self._fork_server = ForkServer(job) if job.get("preload") else None
        for number, member in enumerate(job["members"]):
            self._start(number, member)
        self._output.start()

    def __len__(self) -> int:
        """Return the number of members that run or will be restarted."""
        return len(self._running) + len(self._waiting)

    @property
    def next_start(self) -> float | None:
        """Time of the next restart; None if none is planned."""
        return min((moment for moment, _ in self._waiting.values()), default=None)

    @property
    def patience(self) -> float:
        """Grace period in seconds for survivors to report errors once they are too few; 0 if the job never began."""
        return waits.REPORT.seconds if self._has_begun else 0.0

    @property
    def are_deserted(self) -> bool:
        """True if the process that started this launcher has ended, or can no longer reach it."""
        return _is_deserted.is_set() or os.getppid() != self._parent

    @property
    def _starts_no_more(self) -> bool:
        """True if failed members are not restarted: a rank is done, or the job ends."""
        return _is_done.is_set() or self.are_to_end or self.status != 0

    def reap(self) -> None:
        """Handle members that have ended, and notes of launchers."""
        self._check_fork_server()
        self._check_store_server()
        for member in self._running[:]:
            status = member.process.poll()
            if status is not None:
                member.close_input()
                if member.is_launcher and not member.output.ended.is_set():  # its last notes may be unread
                    self._output.end(member.output)
                    status = None
                else:
                    self._running.remove(member)
            for note in member.take_notes():
                self._take(note)
            if status and not self._given_up.issuperset(member.ranks):
                self._has_begun &= member.has_begun
                number = status if status > 0 else 128 - status  # a shell's status for a signal
                failure = Failure(member.ranks, self._who(member), _how(member, status), number)
                self._fail(failure, again=self._plan_restart(member, failure, status))
            elif status == 0 and not member.is_launcher:
                self._take({"done": member.ranks})

    def start_again(self) -> None:
        """Restart the members that are due."""
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
        """Send a signal to all running members; SIGTSTP stops this process, too."""
        for member in self._running:
            member.signal(number)
        if number == signal.SIGTSTP and "where" not in self._job:  # on other hosts SIGCONT comes by the input
            os.kill(os.getpid(), signal.SIGSTOP)

    def end(self, *, after_signal: bool) -> float:
        """Ask all running members to end; return their grace period in seconds."""
        self.are_to_end = True
        is_urgent = self.are_deserted or not after_signal
        for member in self._running:
            member.end(soon=is_urgent)
        grace = waits.ASKED_TO_END.seconds
        for_launchers = grace if any(member.is_launcher for member in self._running) else 0.0
        return for_launchers + (grace if is_urgent or not self._running else float(self._job["grace"]))

    def kill(self) -> None:
        """Kill all running members; drop members that have ended meanwhile."""
        self._running = [member for member in self._running if member.process.poll() is None]
        for member in self._running:
            member.kill()

    def finish(self) -> bool:
        """Forward the remaining output of ended ranks; return True once all of it is forwarded."""
        if self.status != 0:
            self._check_fork_server(_FORK_SERVER_SECONDS)  # ranks killed with the fork server may end before it
        self._output.finish()
        return self._output.has_ended

    @property
    def output_is_lost(self) -> bool:
        """True if output of this host's ranks could not be forwarded."""
        return self._output.is_lost and "where" not in self._job

    def _take(self, note: JsonObject) -> None:
        """Handle a note about ranks."""
        if "failed" in note:
            self._fail(Failure(*note["failed"]), again=note["again"])
            return
        if "lost" in note:
            self._lose(Failure(*note["lost"]))
            return
        self._failed.difference_update(note.get("again", ()))
        self._given_up.difference_update(note.get("again", ()))  # ranks of a host that is restarted as a whole
        self._tell(note)
        for rank in note.get("done", ()):
            if self._store_server is not None:
                self._store_server.tell([rank], f"rank {rank} has ended")
        if "done" in note:
            self._forbid_restarts()

    def _check_fork_server(self, seconds: float = 0.0) -> None:
        if self._fork_server is not None and (end := self._fork_server.take_end(seconds)[1]):
            self._output.say(f"{end}, and the ranks with it")

    def _check_store_server(self) -> None:
        """Handle the end of the store, without which no rank can join any more. Ranks that have met do not need it."""
        if (store_server := self._store_server) is None:
            return
        status, end = store_server.take_end()
        if status == os.EX_UNAVAILABLE:  # the store was never served, as reported: there is no job
            self.status, self._has_begun = self.status or status, False
        elif end and not self.are_to_end:
            self._output.say(f"{end}: no process can join the job any more, or be started again")
            self._forbid_restarts()
            store_server.replace(f"{end}, and the ranks cannot meet without it")

    def _forbid_restarts(self) -> None:
        """Forbid all later restarts, here and on other hosts."""
        if not _is_done.is_set():
            _is_done.set()
            for member in self._running:
                member.forbid_restarts()

    def _tell(self, note: dict[str, object]) -> bool:
        """Send a note to the launcher that started this one; return False if this is the first launcher."""
        if mark := self._job.get("mark"):
            with contextlib.suppress(OSError):
                os.write(1, f"{mark}{json.dumps(note)}\n".encode())
        return mark is not None

    def _plan_restart(self, member: Member, failure: Failure, status: int) -> bool:
        """Plan the restart of a failed member; return False if it is not restarted.

        A start that cannot reach the job is no restart if an earlier start could: the host is cut off for a while.
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
        """Record a failure; report it to the first launcher, or decide its consequences here."""
        if self.are_to_end:
            return
        self._failed.update(failure.ranks)
        self._given_up.update(() if again else failure.ranks)
        if self._tell({"failed": failure, "again": again}):
            return
        if report := self._job.get("report"):
            with open(report, "a", encoding="utf-8") as file:
                file.write(json.dumps({"ranks": failure.ranks, "how": failure.how}) + "\n")
        elif self.status == 0:
            self._output.say(f"{failure.who} {failure.how}{self._consequence()}")
        if not again:
            self._count_out(failure)

    def _lose(self, failure: Failure) -> None:
        """Record that failed ranks are not restarted after all."""
        if self.are_to_end:
            return
        self._given_up.update(failure.ranks)
        if not self._tell({"lost": failure}):
            self._count_out(failure)

    def _count_out(self, failure: Failure) -> None:
        """Continue without ranks that are lost for good, or end the job if too few survive."""
        several = f"rank {', '.join(map(str, failure.ranks))}: " if len(failure.ranks) > 1 else ""
        if self._store_server is not None:
            self._store_server.tell(failure.ranks, f"{several}{failure.who} {failure.how}")
        if self.status == 0 and self._left(self._given_up) < self._job["needed"]:
            self.status = failure.status

    def _left(self, without: Set[int]) -> int:
        return sum(len(_ranks(member)) for member in self._job["members"]) - len(without)

    def _consequence(self) -> str:
        """Return the end of a message: the consequence of a failure for the survivors."""
        left, needed = self._left(self._failed), self._job["needed"]
        if left >= needed:
            return f": going on with {left} rank{'s'[: left != 1]}"
        if self._left(self._given_up) >= needed:
            return ": waiting for those that are started again"
        return ": ending the others" if self._running else ""

    def _who(self, member: Member) -> str:
        if member.is_launcher:
            return member.name
        return f"{member.name} (process {member.process.pid}{self._job.get('where', '')})"

    def _start(self, number: int, described: JsonObject) -> None:
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
            if os.getppid() != launcher:  # the launcher has ended meanwhile
                os._exit(1)
            if processors is not None:
                os.sched_setaffinity(0, processors)

        label = f"[{described['rank']}] ".encode() if self._job.get("label") else b""
        mark = own_job["mark"].encode() if own_job else b""
        is_compared = own_job is None and len(self._job["members"]) > 1
        streams = [Stream(1, label, mark), Stream(2, label, rank=described["rank"] if is_compared else None)]
        outputs = [self._output.pipe_to(stream) for stream in streams]
        command, connection = described.get("command") or self._job["command"], None
        # A fork has a group of its own, which a terminal does not let read.
        if self._fork_server is not None and "command" not in described and has_group:
            command, connection = self._fork_server.proxy_command(command)
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
    """Run a job to its end; return the exit status of the rank whose failure left too few ranks, or 0."""
    signal.pthread_sigmask(signal.SIG_BLOCK, _WATCHED)
    job = _read_job() if sys.argv[1] == "-" else json.loads("".join(sys.argv[1:]))
    if parent := job.get("parent"):  # this process must end with its parent
        _libc.prctl(_PR_SET_PDEATHSIG, int(signal.SIGTERM), 0, 0, 0)
        if os.getppid() != parent:
            return _NOT_STARTED
    _draw_token(job)
    members = Members(job)
    asked: float | None = None  # time when the members were asked to end
    deadline: float | None = None  # time to ask them, and later to kill them
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
        elif cause and not members:  # a slow reader of the output has had its time
            return members.status or cause
        else:
            members.kill()
            deadline = now + waits.ASKED_TO_END.seconds


def _read_job() -> JsonObject:
    """Read the job from the input, and report its arrival to the sender. Later the end of the input ends this process.

    A thread reads further lines: numbers of signals to raise, or an empty line, which forbids restarts.
    """
    lines = _lines_of_input()
    if not (text := next(lines, b"")):
        sys.exit(_NOT_STARTED)
    job: JsonObject = json.loads(text)
    os.write(1, job["mark"].encode() + b"\n")

    def follow() -> None:
        for line in lines:
            if not line:  # a rank on another host has done its work, or the store has ended
                _is_done.set()
            os.kill(os.getpid(), int(line or signal.SIGCHLD))
        _is_deserted.set()
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=follow, daemon=True).start()
    return job


def _lines_of_input() -> Iterator[bytes]:
    """Yield lines as they come, without a lock that a thread could hold at the end of this process."""
    begun = b""
    with contextlib.suppress(OSError):
        while data := os.read(0, 1 << 16):
            *lines, begun = (begun + data).split(b"\n")
            yield from lines


def _end_with_this() -> None:
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _WATCHED)
    os.setpgid(0, 0)
    _libc.prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)


def _draw_token(job: JsonObject) -> None:
    """Give the ranks of a job a common token, unless they have one. In a command line, other users could read it."""
    token = os.urandom(32).hex()
    for each in [job, *(member["job"] for member in job["members"] if "job" in member)]:
        each.setdefault("environment", {}).setdefault(_TOKEN, token)


def _environment(job: JsonObject, member: JsonObject) -> dict[str, str]:
    """Return a member's environment, without ``torchrun``'s own variables, which describe another job."""
    outer = {name: value for name, value in os.environ.items() if not name.startswith("TORCHELASTIC_")}
    if "rank" not in member:
        return outer
    environment = {**outer, **job["environment"], **{name: str(member[key]) for name, key in _PLACE.items()}}
    if job.get("restarts") is not None:
        environment[_RESTARTS] = str(job.get("started", 0) + member.get("started", 0))
    if member["of"] > 1 and not environment.get("OMP_NUM_THREADS"):  # otherwise each rank starts a thread per core
        environment["OMP_NUM_THREADS"] = str(max(1, len(os.sched_getaffinity(0)) // member["of"]))
    return environment


def _ranks(described: JsonObject) -> list[int]:
    """Return the ranks of a member: its own rank, or the ranks of its host."""
    return [each["rank"] for each in described["job"]["members"]] if "job" in described else [described["rank"]]


def _how(member: Member, status: int) -> str:
    """Return words for the way in which a failed member has ended."""
    how = _ending(status)
    if not member.is_launcher:
        return f"could not reach the job (exit status {status})" if _is_unreached(member, status) else how
    if member.has_begun:
        return f"is lost: ssh {how}"
    if _is_unreached(member, status):
        return f"cannot be reached: ssh {member.name.removeprefix('host ')} has to work without a question"
    return f"has started no ranks: ssh {how}"


def _is_unreached(member: Member, status: int) -> bool:
    """Return True if, by the exit status, a rank could not reach the job, or ssh could not reach its host."""
    return (status == _SSH_FAILED and not member.has_begun) if member.is_launcher else status == os.EX_TEMPFAIL


def _ending(status: int) -> str:
    return f"ended with exit status {status}" if status >= 0 else f"was ended by {_name(-status)}"


def _processors(job: dict[str, object], member: dict[str, object]) -> Set[int] | None:
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
    except ValueError:  # a real-time signal
        return f"signal {number}"


if __name__ == "__main__":
    sys.exit(main())
