"""The launcher of jobs over TCP: starts all ranks as processes, and ends them together.

    python -I -S processes.py JOB

JOB is what `gradientflow.launch.tcp` writes. This is a program of its own, as ``mpirun`` is, and imports nothing of the
package, so that it starts at once. Ranks write to its output themselves; rank 0 reads its input. When one fails,
the others have a moment to say what they have to say. However this process ends, the ranks end, too.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import shlex
import signal
import subprocess
import sys
import time
from typing import Any

_ENDING = frozenset({signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT})
_WATCHED = _ENDING | {signal.SIGCHLD}
_REPORT_SECONDS = 3.0  # in which ranks notice that another has gone
_GRACE_SECONDS = 3.0  # between asking a rank to end and killing it
_NOT_STARTED = 127  # as a shell says it
_PR_SET_PDEATHSIG = 1

_libc = ctypes.CDLL(None, use_errno=True)


class Ranks:
    """The processes of a job, by their rank."""

    def __init__(self, job: dict[str, Any]) -> None:
        self.status = 0  # of the first that failed
        self._running: dict[int, subprocess.Popen[bytes]] = {}
        self._grouped = set(range(len(job["hosts"])))
        if sys.stdin is not None and sys.stdin.isatty():
            self._grouped.discard(0)  # the terminal lets only its foreground group read
        started: dict[str, int] = {}
        for rank, host in enumerate(job["hosts"]):
            place = {
                "GRADIENTFLOW_RANK": str(rank),
                "RANK": str(rank),
                "LOCAL_RANK": str(started.get(host, 0)),
                "LOCAL_WORLD_SIZE": str(job["hosts"].count(host)),
            }
            started[host] = started.get(host, 0) + 1
            self._start(rank, host, job, {**job["environment"], **place, **job["of_hosts"].get(host, {})})

    def __len__(self) -> int:
        """Return how many still run."""
        return len(self._running)

    def reap(self) -> None:
        """Take note of the ranks that have ended."""
        for rank, process in list(self._running.items()):
            status = process.poll()
            if status is None:
                continue
            del self._running[rank]
            if status != 0 and self.status == 0:
                self.status = status if status > 0 else 128 - status
                how = f"ended with exit status {status}" if status > 0 else f"was ended by {_name(-status)}"
                _say(f"rank {rank} (process {process.pid}) {how}{': ending the others' if self._running else ''}")

    def signal(self, number: int) -> None:
        """Send a signal to the ranks that still run, and to what they have started."""
        for rank, process in self._running.items():
            with contextlib.suppress(ProcessLookupError):
                if rank in self._grouped:
                    os.killpg(process.pid, number)
                else:
                    process.send_signal(number)

    def _start(self, rank: int, host: str, job: dict[str, Any], variables: dict[str, str]) -> None:
        launcher = os.getpid()

        def prepare() -> None:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, _WATCHED)
            if rank in self._grouped:
                os.setpgid(0, 0)
            _libc.prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
            if os.getppid() != launcher:  # which has ended meanwhile
                os._exit(1)

        try:
            self._running[rank] = subprocess.Popen(
                [*job["agent"], host, shlex.join(job["program"])] if job["agent"] else job["program"],
                env={**os.environ, **variables},
                stdin=None if rank == 0 else subprocess.DEVNULL,
                preexec_fn=prepare,
            )
        except OSError as error:
            _say(f"rank {rank} cannot be started: {error}")
            sys.exit(_NOT_STARTED)


def main() -> int:
    """Run a job to its end; return the exit status of the first rank that failed, or 0."""
    signal.pthread_sigmask(signal.SIG_BLOCK, _WATCHED)
    ranks = Ranks(json.loads(sys.argv[1]))
    steps = iter([signal.SIGTERM, signal.SIGKILL])  # how those that are left are ended
    deadline: float | None = None
    cause = 0
    while True:
        ranks.reap()
        if not ranks:
            return cause or ranks.status
        if deadline is None and ranks.status:
            deadline = time.monotonic() + _REPORT_SECONDS
        received = _next_signal(deadline)
        if received in _ENDING and not cause:
            cause, deadline = 128 + received, time.monotonic()
        elif received is None:
            ranks.signal(next(steps, signal.SIGKILL))
            deadline = time.monotonic() + _GRACE_SECONDS


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
