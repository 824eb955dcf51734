"""The launcher of jobs over TCP: starts all ranks as processes, and ends them together.

    python -I -S processes.py JOB

JOB is what `gradientflow.launch.tcp` writes. This is a program of its own, as ``mpirun`` is, and imports nothing of the
package, so that it starts at once. Rank 0 reads its input. What ranks write is passed on in whole lines, but to a
terminal, to which they write themselves. When one fails, the others have a moment to say what they have to say. However
this process ends, the ranks end, too.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import select
import selectors
import shlex
import signal
import subprocess
import sys
import threading
import time
from typing import Any

_ENDING = frozenset({signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT})
_WATCHED = _ENDING | {signal.SIGCHLD}
_REPORT_SECONDS = 3.0  # in which ranks notice that another has gone
_GRACE_SECONDS = 3.0  # between asking a rank to end and killing it
_PROMPT_SECONDS = 0.1  # after which the beginning of a line is passed on
_NOT_STARTED = 127  # as a shell says it
_PR_SET_PDEATHSIG = 1

_libc = ctypes.CDLL(None, use_errno=True)


class Output:
    """Passes on what several processes write, whole lines at a time: else lines of ranks could mix."""

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()
        self._begun: dict[int, bytes] = {}  # lines, by the pipe that they come from
        self._turns = 0  # in which something came
        self._writing = False  # for as long as its reader takes
        self._thread = threading.Thread(target=self._pass_on, daemon=True)

    def pipe_to(self, target: int) -> int | None:
        """Return a new pipe to one of this process's own outputs; None for a terminal."""
        if os.isatty(target):
            return None
        read, write = os.pipe()
        self._selector.register(read, selectors.EVENT_READ, target)
        self._begun[read] = b""
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
        while self._selector.get_map():
            ready = self._selector.select(_PROMPT_SECONDS if any(self._begun.values()) else None)
            self._turns += bool(ready)
            for key, _ in ready:
                data = os.read(key.fd, 1 << 16)
                lines, newline, rest = (self._begun[key.fd] + data).rpartition(b"\n")
                self._begun[key.fd] = rest if data else b""
                self._write(key, lines + newline if data else rest)
                if not data:
                    self._forget(key)
            for key in [] if ready else list(self._selector.get_map().values()):
                begun, self._begun[key.fd] = self._begun[key.fd], b""
                self._write(key, begun)

    def _write(self, key: selectors.SelectorKey, data: bytes) -> None:
        self._writing = True
        try:
            while data:
                data = data[_write_some(key.data, data) :]
        except OSError:  # nobody reads: the ranks are to notice
            self._forget(key)
        self._writing = False

    def _forget(self, key: selectors.SelectorKey) -> None:
        if key.fd in self._begun:
            del self._begun[key.fd]
            self._selector.unregister(key.fd)
            os.close(key.fd)


def _write_some(target: int, data: bytes) -> int:
    """Write what fits, and return how much; wait for a pipe that does not do so by itself."""
    try:
        return os.write(target, data)
    except BlockingIOError:
        select.select([], [target], [])
        return 0


def _environment() -> dict[str, str]:
    """Give the environment without what says that ``torchrun`` started its processes: the ranks are another job."""
    return {name: value for name, value in os.environ.items() if not name.startswith("TORCHELASTIC_")}


class Ranks:
    """The processes of a job, by their rank."""

    def __init__(self, job: dict[str, Any]) -> None:
        self._output = Output()
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
        self._output.start()

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

    def finish(self) -> None:
        """Pass on what ranks that have ended have written."""
        self._output.finish()

    def _start(self, rank: int, host: str, job: dict[str, Any], variables: dict[str, str]) -> None:
        launcher = os.getpid()

        def prepare() -> None:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, _WATCHED)
            if rank in self._grouped:
                os.setpgid(0, 0)
            _libc.prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
            if os.getppid() != launcher:  # which has ended meanwhile
                os._exit(1)

        outputs = [self._output.pipe_to(target) for target in (1, 2)]
        try:
            self._running[rank] = subprocess.Popen(
                [*job["agent"], host, shlex.join(job["program"])] if job["agent"] else job["program"],
                env={**_environment(), **variables},
                stdin=None if rank == 0 else subprocess.DEVNULL,
                stdout=outputs[0],
                stderr=outputs[1],
                preexec_fn=prepare,
            )
        except OSError as error:
            _say(f"rank {rank} cannot be started: {error}")
            sys.exit(_NOT_STARTED)
        for pipe in outputs:
            if pipe is not None:
                os.close(pipe)


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
            ranks.finish()
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
