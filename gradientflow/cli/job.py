"""Supervision of a job: run it to its end, and leave no process behind, however it ends.

The launcher is a child of this process, and the ranks are children of the launcher. Three events can cut a job short:

- A signal or time limit ends this process (Ctrl-C, for example): the signal is relayed to the launcher, which ends its
  ranks. Processes that remain after the grace period of the ranks, or at a second signal, are killed.
- The launcher is killed: its ranks become children of this process ("child subreaper"), which kills them.
- This process is killed: the kernel sends the launcher a SIGTERM ("parent death signal"), and it ends its ranks.

MPI's launchers kill ranks a quarter of a second after asking them to end. If all ranks are on this machine and handle
SIGTERM, this process asks the ranks itself, and tells the launcher only after the grace period.

MPI's launchers silently drop output that they cannot write, for example to a full disk, and mix lines of ranks. Their
output therefore goes through this process, as the output of ranks goes through our own launcher. If all ranks are on
this machine, their standard error comes here directly, so that equal tracebacks are shown once.

SIGUSR1, SIGUSR2 and the signals that stop and continue a job are relayed. The files of MPI's launcher are in a folder
made for this job, which is removed even if the launcher or this process is killed.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from gradientflow import launcher_variables, waits
from gradientflow.launch import GRACE_SECONDS, SESSION_FOLDER, Scratch, scratch_folder
from gradientflow.launch.output import Output, Stream
from gradientflow.process_stat import stat_of

TIMED_OUT = 124

_ENDING = frozenset({signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT})
_OF_TERMINAL = _ENDING - {signal.SIGTERM}
if signal.getsignal(signal.SIGHUP) == signal.SIG_IGN:  # set by nohup
    _ENDING -= {signal.SIGHUP}
_PASSED_ON = frozenset({signal.SIGUSR1, signal.SIGUSR2, signal.SIGTSTP, signal.SIGCONT})
_WATCHED = _ENDING | _PASSED_ON | {signal.SIGCHLD}
_SENT_BY_TERMINAL = 0x80  # SI_KERNEL: Ctrl-C went to the whole foreground group, the launcher included
_DYING_SECONDS = 60.0  # time that the kernel may take to end a killed process with much memory
_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36

_libc = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True)
class Job:
    """Description of a job to run.

    Attributes
    ----------
    command : sequence of str
        Command line of the launcher.
    environment : mapping of str to str
        Variables to add to this process's own.
    output : binary file, optional
        File for standard output and standard error; by default the streams of this process.
    timeout : float, optional
        Seconds after which the job is ended.
    reads_input : bool
        True if rank 0 reads this process's standard input; otherwise the job can run in a shell's background.
    is_mpi : bool
        True if the launcher belongs to an MPI library: it needs a folder for its files.
    ranks_here : int
        Ranks of MPI's launcher if all are on this machine: their standard error comes here directly, in whole lines.
    label : bool
        True to begin each line of it with the rank, as MPI's launcher begins the lines of standard output.
    starts_mpi : bool
        True if the command is no MPI launcher, but may start such a launcher.
    grace : float
        Seconds that ranks have to end after a signal to this process. Our own launcher gets the same number.
    """

    command: Sequence[str]
    environment: Mapping[str, str]
    output: IO[bytes] | None = None
    timeout: float | None = None
    reads_input: bool = False
    is_mpi: bool = False
    ranks_here: int = 0
    label: bool = False
    starts_mpi: bool = False
    grace: float = GRACE_SECONDS


def run_job(job: Job) -> int:
    """Run a job and wait for it. Only the main thread may call this.

    Parameters
    ----------
    job : Job
        The job.

    Returns
    -------
    int
        Exit status of the launcher; 128 + the number of the signal that ended the job, with a message on standard
        error; ``TIMED_OUT`` after the time limit.
    """
    with contextlib.ExitStack() as stack:
        scratch = stack.enter_context(scratch_folder()) if job.is_mpi or job.starts_mpi else None
        return _run(job, scratch)


def _run(job: Job, scratch: Scratch | None) -> int:
    children_before = _children(os.getpid())
    mask_before = signal.pthread_sigmask(signal.SIG_BLOCK, _WATCHED)
    _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)

    def prepare_launcher() -> None:
        # MPI's launcher would end its ranks at once if a terminal sent it the same signal. Our own launcher handles
        # signals that came before it was ready.
        blocked = _OF_TERMINAL if job.is_mpi else set() if job.starts_mpi else _WATCHED
        signal.pthread_sigmask(signal.SIG_SETMASK, mask_before | blocked)
        die_with_parent(signal.SIGTERM)

    folder = {} if scratch is None else {SESSION_FOLDER: scratch.path}
    output = Output() if job.is_mpi and job.output is None else None
    pipes = [] if output is None else [output.pipe_to(Stream(target)) for target in (1, 2)]
    pipes_of_ranks = _pipes_of_ranks(output, job, scratch.path) if output is not None and scratch is not None else {}
    try:
        launcher = subprocess.Popen(
            job.command,
            env={**folder, **os.environ, **job.environment, **pipes_of_ranks},
            pass_fds=[] if scratch is None else [scratch.holder],
            stdin=None if job.reads_input else subprocess.DEVNULL,
            stdout=pipes[0] if pipes else job.output,
            stderr=pipes[1] if pipes else job.output,
            preexec_fn=prepare_launcher,
        )
        if output is not None:
            for pipe in pipes:
                if pipe is not None:
                    os.close(pipe)
            output.start()
        try:
            cause = _wait(launcher, job)
        finally:
            if launcher.poll() is None:
                launcher.kill()
                launcher.wait()
            _kill_orphans(children_before)
        if output is not None:
            cause = _finish(output, None if cause is None else time.monotonic() + waits.LAUNCHER_ENDS.seconds) or cause
    finally:
        _libc.prctl(_PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask_before)
    if cause is not None:
        if cause != TIMED_OUT:
            report_end(signal.Signals(cause - 128), "with all ranks")
        return cause
    if launcher.returncode != 0:
        return launcher.returncode if launcher.returncode > 0 else 128 - launcher.returncode
    return int(output is not None and output.is_lost)


def _pipes_of_ranks(output: Output, job: Job, folder: str) -> dict[str, str]:
    """Make a named pipe for the standard error of each rank; return the variable by which the ranks find them."""
    begin = os.path.join(folder, "stderr")
    for rank in range(job.ranks_here):
        os.mkfifo(f"{begin}{rank}", 0o600)
        label = f"[{rank}]<stderr>: ".encode() if job.label else b""
        output.follow(os.open(f"{begin}{rank}", os.O_RDONLY | os.O_NONBLOCK), Stream(2, label, rank=rank))
    return {launcher_variables.PIPES: begin} if job.ranks_here else {}


def report_end(number: signal.Signals, more: str = "") -> None:
    """Report the signal that has ended this command on standard error, if that stream still has a reader."""
    what = "Ctrl-C" if number == signal.SIGINT else number.name
    with contextlib.suppress(OSError):
        # The terminal has echoed ^C after the last output.
        begin = "\n" if sys.stderr.isatty() else ""
        print(f"{begin}gradientflow: ended by {what}{more and f', {more}'}", file=sys.stderr, flush=True)


def die_with_parent(number: signal.Signals) -> None:
    """Ask the kernel to send this process a signal when its parent ends."""
    _libc.prctl(_PR_SET_PDEATHSIG, int(number), 0, 0, 0)


def _wait(launcher: subprocess.Popen[bytes], job: Job) -> int | None:
    """Wait until the launcher has ended or is given up; return the exit status if a signal or the limit ended it."""
    cause: int | None = None
    asked, asked_ranks = 0.0, False  # time of the request to end; True if this process sent the request to the ranks
    deadline = None if job.timeout is None else time.monotonic() + job.timeout
    while launcher.poll() is None:
        received, now = _next_signal(deadline), time.monotonic()
        if received is None:
            if cause is not None and not asked_ranks:
                return cause  # the launcher was told to end, and did not
            cause = cause or TIMED_OUT
            launcher.terminate()
            asked_ranks, deadline = False, now + waits.LAUNCHER_ENDS.seconds
        elif received.si_signo in _PASSED_ON:
            _pass_on(launcher, received, job)
            if received.si_signo == signal.SIGTSTP:
                os.kill(os.getpid(), signal.SIGSTOP)
        elif received.si_signo in _ENDING and cause is None:
            cause, asked = 128 + received.si_signo, now
            asked_ranks = job.is_mpi and _ask_ranks(launcher.pid)
            if not asked_ranks:
                _pass_on(launcher, received, job)
            seconds = 0.0 if job.is_mpi and not asked_ranks else job.grace
            deadline = now + seconds + (0.0 if asked_ranks else waits.LAUNCHER_ENDS.seconds)
        elif received.si_signo in _ENDING and now > asked + waits.SAME_SIGNAL.seconds:
            _pass_on(launcher, received, job)
            asked_ranks, deadline = False, now + waits.LAUNCHER_ENDS.seconds
    return cause


def _finish(output: Output, deadline: float | None) -> int | None:
    """Forward the remaining output, even to a slow reader; return the exit status if a signal ends the forwarding."""
    output.finish()
    while not output.has_ended and (received := _next_signal(deadline)):
        if received.si_signo in _ENDING:
            return 128 + received.si_signo
    return None


def _pass_on(launcher: subprocess.Popen[bytes], received: signal.struct_siginfo, job: Job) -> None:
    """Relay a signal to the launcher; MPI's launcher gets SIGTERM in place of any signal that ends it."""
    if job.is_mpi and received.si_signo in _ENDING:
        launcher.terminate()
    elif received.si_code != _SENT_BY_TERMINAL:
        launcher.send_signal(received.si_signo)


def _ask_ranks(launcher: int) -> bool:
    """Ask the ranks of MPI's launcher to end; return False if not all are on this machine and handle SIGTERM."""
    ranks = _children(launcher)
    if not ranks or not all(_is_one_of(len(ranks), rank) and _handles_end(rank) for rank in ranks):
        return False
    for rank in ranks:
        with contextlib.suppress(ProcessLookupError):
            send = os.killpg if os.getpgid(rank) == rank else os.kill
            send(rank, signal.SIGTERM)
            send(rank, signal.SIGCONT)  # the rank may be stopped
    return True


def _is_one_of(ranks: int, process: int) -> bool:
    with contextlib.suppress(OSError):
        variables = Path(f"/proc/{process}/environ").read_bytes().split(b"\0")
        return any(b"%s=%d" % (each["WORLD_SIZE"].encode(), ranks) in variables for each in launcher_variables.MPI)
    return False


def _handles_end(process: int) -> bool:
    with contextlib.suppress(OSError):
        lines = Path(f"/proc/{process}/status").read_text(errors="replace").splitlines()
        caught = next(line.split()[1] for line in lines if line.startswith("SigCgt:"))
        return bool(int(caught, 16) >> (signal.SIGTERM - 1) & 1)
    return False


def _next_signal(deadline: float | None) -> signal.struct_siginfo | None:
    if deadline is None:
        return signal.sigwaitinfo(_WATCHED)
    return signal.sigtimedwait(_WATCHED, max(0.0, deadline - time.monotonic()))


def _kill_orphans(spare: frozenset[int]) -> None:
    """Kill the processes that the launcher left behind, and wait for their end.

    The children of a killed process become children of this process, so the search is repeated.
    """
    deadline = time.monotonic() + _DYING_SECONDS
    time_to_end_alone = time.monotonic() + 0.2
    while time.monotonic() < deadline and (orphans := _children(os.getpid()) - spare):
        for orphan in orphans:
            with contextlib.suppress(ProcessLookupError, ChildProcessError):
                if time.monotonic() >= time_to_end_alone:
                    os.kill(orphan, signal.SIGKILL)
                os.waitpid(orphan, os.WNOHANG)
        time.sleep(0.01)


def _children(parent: int) -> frozenset[int]:
    """Return a process's children, including zombies."""
    own = str(parent)
    found = set()
    for folder in Path("/proc").iterdir():
        if folder.name.isdecimal():
            with contextlib.suppress(OSError, IndexError):
                if stat_of(folder.name)[1] == own:
                    found.add(int(folder.name))
    return frozenset(found)
