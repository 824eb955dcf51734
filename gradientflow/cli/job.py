"""Running one MPI job to its end, and leaving no process behind however it ends.

The launcher is a child of this process and the ranks are children of the launcher. Three things can cut a job short,
and each has its answer here:

- a signal to this process (Ctrl-C, a time limit): it is passed on to the launcher, which ends its ranks; what has not
  ended after a few seconds is killed;
- the launcher is killed: its ranks become children of this process ("child subreaper") and are killed;
- this process is killed outright: the kernel sends the launcher a SIGTERM ("parent death signal"), and it ends its
  ranks.

The files of MPI's launcher are in a folder made for this job, which is removed even if the launcher or this process was
killed.
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

from gradientflow.launch import SESSION_FOLDER, Scratch, scratch_folder

TIMED_OUT = 124

_ENDING = frozenset({signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT})
_WATCHED = _ENDING | {signal.SIGCHLD}
_SENT_BY_TERMINAL = 0x80  # SI_KERNEL: Ctrl-C went to the whole foreground group, the launcher included
_GRACE_SECONDS = 5.0
_DYING_SECONDS = 60.0  # what the kernel may take to end a killed process that has much memory
_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36

_libc = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True)
class Job:
    """What to run.

    Attributes
    ----------
    command : sequence of str
        The launcher's command line.
    environment : mapping of str to str
        Variables to add to this process's own.
    output : binary file, optional
        Where standard output and standard error go; by default where this process's own go.
    timeout : float, optional
        Seconds after which the job is ended.
    by_mpi : bool
        Whether the launcher is MPI's, which needs a folder for its files.
    reads_input : bool
        Whether rank 0 reads this process's standard input; a job that does not can run in a shell's background.
    """

    command: Sequence[str]
    environment: Mapping[str, str]
    output: IO[bytes] | None = None
    timeout: float | None = None
    by_mpi: bool = False
    reads_input: bool = False


def run_job(job: Job) -> int:
    """Run a job and wait for it. Only the main thread may call this.

    Parameters
    ----------
    job : Job
        What to run.

    Returns
    -------
    int
        The launcher's exit status; 128 + the number of a signal that ended the job, with a sentence about it on
        standard error; ``TIMED_OUT`` after the time limit.
    """
    with contextlib.ExitStack() as stack:
        scratch = stack.enter_context(scratch_folder()) if job.by_mpi else None
        return _run(job, scratch)


def _run(job: Job, scratch: Scratch | None) -> int:
    children_before = _children()
    mask_before = signal.pthread_sigmask(signal.SIG_BLOCK, _WATCHED)
    _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)

    def prepare_launcher() -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask_before)
        die_with_parent(signal.SIGTERM)

    folder = {} if scratch is None else {SESSION_FOLDER: scratch.path}
    try:
        launcher = subprocess.Popen(
            job.command,
            env={**folder, **os.environ, **job.environment},
            pass_fds=[] if scratch is None else [scratch.holder],
            stdin=None if job.reads_input else subprocess.DEVNULL,
            stdout=job.output,
            stderr=job.output,
            preexec_fn=prepare_launcher,
        )
        try:
            cause = _wait(launcher, job.timeout)
        finally:
            if launcher.poll() is None:
                launcher.kill()
                launcher.wait()
            _kill_orphans(children_before)
    finally:
        _libc.prctl(_PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask_before)
    if cause is not None:
        if cause != TIMED_OUT:
            report_end(signal.Signals(cause - 128), "with all ranks")
        return cause
    return launcher.returncode if launcher.returncode >= 0 else 128 - launcher.returncode


def report_end(number: signal.Signals, more: str = "") -> None:
    """Say on standard error, if it still has a reader, which signal has ended this command."""
    what = "Ctrl-C" if number == signal.SIGINT else number.name
    with contextlib.suppress(OSError):
        # A terminal has echoed ^C after the last output.
        begin = "\n" if sys.stderr.isatty() else ""
        print(f"{begin}gradientflow: ended by {what}{more and f', {more}'}", file=sys.stderr, flush=True)


def die_with_parent(number: signal.Signals) -> None:
    """Have the kernel send this process a signal when the process that started it ends."""
    _libc.prctl(_PR_SET_PDEATHSIG, int(number), 0, 0, 0)


def _wait(launcher: subprocess.Popen[bytes], timeout: float | None) -> int | None:
    """Wait until the launcher has ended or is given up; return the exit status if a signal or the limit ended it."""
    cause = None
    deadline = None if timeout is None else time.monotonic() + timeout
    while launcher.poll() is None:
        received = _next_signal(deadline)
        if received is None and cause is not None:
            return cause  # told to end, and did not
        if received is None:
            cause, deadline = TIMED_OUT, time.monotonic() + _GRACE_SECONDS
            launcher.terminate()
        elif received.si_signo in _ENDING and cause is None:
            cause, deadline = 128 + received.si_signo, time.monotonic() + _GRACE_SECONDS
            # A second signal within five seconds makes Open MPI's launcher leave at once, without its ranks.
            if received.si_code != _SENT_BY_TERMINAL:
                launcher.send_signal(received.si_signo)
    return cause


def _next_signal(deadline: float | None) -> signal.struct_siginfo | None:
    if deadline is None:
        return signal.sigwaitinfo(_WATCHED)
    return signal.sigtimedwait(_WATCHED, max(0.0, deadline - time.monotonic()))


def _kill_orphans(spare: frozenset[int]) -> None:
    """Kill what the launcher left behind, and wait for its end.

    The children of a killed process become ours in turn, so look again.
    """
    deadline = time.monotonic() + _DYING_SECONDS
    time_to_end_alone = time.monotonic() + 0.2
    while time.monotonic() < deadline and (orphans := _children() - spare):
        for orphan in orphans:
            with contextlib.suppress(ProcessLookupError, ChildProcessError):
                if time.monotonic() >= time_to_end_alone:
                    os.kill(orphan, signal.SIGKILL)
                os.waitpid(orphan, os.WNOHANG)
        time.sleep(0.01)


def _children() -> frozenset[int]:
    """List this process's children, zombies included."""
    own = str(os.getpid())
    found = set()
    for folder in Path("/proc").iterdir():
        if folder.name.isdecimal():
            with contextlib.suppress(OSError, IndexError):
                # pid (name) state parent ...; the name may hold spaces and parentheses
                if (folder / "stat").read_text(errors="replace").rpartition(")")[2].split()[1] == own:
                    found.add(int(folder.name))
    return frozenset(found)
