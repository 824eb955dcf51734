"""Ranks forked from a process that has imported everything, in place of ranks that import it anew.

    python forked_ranks.py NUMBER mpi|plain MODULE ...          the server: imports the modules, forks when asked to
    python -I -S forked_ranks.py SOCKET mpi|plain PROGRAM ...   what a launcher starts in place of python PROGRAM ...

The socket's number is that of a file which the server has been given open: whoever comes before it is ready waits.

What the launcher starts passes its arguments, environment, folder, cores and streams to the server, which forks. It
passes on the signals that programs may handle, and ends as the fork has: with its status or by its signal. If it goes
first, it takes the fork with it. The fork is the rank: it calls MPI_Init under the environment of the job, runs the
program as __main__, and ends as any interpreter does. A `plain` one has nothing of MPI, as a `plain` server, which is
for where there is no MPI.

The server has begun neither MPI nor threads. It ends with the process that holds the other end of its input.
"""

from __future__ import annotations

import array
import contextlib
import os
import signal
import socket
import sys

FORKED_RANKS = __file__
TAG = "GRADIENTFLOW_TEST_JOB"  # a variable of the environment of every process of a job
UNTAGGED = "-" * 32  # what it is in the server's, as long as a tag
PASSED_ON = (signal.SIGHUP, signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)


def stand_in(path: str, arguments: list[str]) -> None:
    """Have a rank forked, and end as it does."""
    import marshal

    cores = list(os.sched_getaffinity(0))
    task = marshal.dumps((arguments, dict(os.environb), os.getcwd(), cores))
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(path)
        streams = array.array("i", [0, 1, 2])
        connection.sendmsg([len(task).to_bytes(8, "little")], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, streams)])
        connection.sendall(task)

        def pass_on(number: int, _: object) -> None:
            with contextlib.suppress(OSError):  # the rank has just ended
                connection.sendall(bytes([number]))

        for number in PASSED_ON:
            signal.signal(number, pass_on)
        ending = connection.recv(64)
    status = int(ending or b"1")
    if status < 0:
        if -status != signal.SIGKILL:  # of which there is no other handling
            signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    os._exit(status)


class Server:
    """Forks a rank for each connection, and tells it how the rank has ended.

    Parameters
    ----------
    listening : socket.socket
        Where they come.
    """

    def __init__(self, listening: socket.socket) -> None:
        self._listening = listening
        self._woken, self._waking = os.pipe()
        os.set_blocking(self._waking, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self._waking, warn_on_full_buffer=False)
        self._ranks: dict[int, socket.socket] = {}  # those that run, and who stands in for them

    def serve(self) -> tuple[list[str], dict[bytes, bytes], str, list[int]] | None:
        """Serve until the input is at its end; in a fork, return what the rank is to be."""
        import select

        while True:
            ready = select.select([0, self._listening, self._woken, *self._ranks.values()], [], [])[0]
            for pid in [pid for pid, connection in self._ranks.items() if connection in ready]:
                numbers = self._ranks[pid].recv(64)
                for number in numbers or [signal.SIGKILL]:
                    os.kill(pid, number)
                if not numbers:  # who stands in for it has gone
                    self._ranks.pop(pid).close()
            if self._woken in ready:
                os.read(self._woken, 4096)
                self._reap()
            if self._listening in ready and (task := self._fork()):
                return task
            if 0 in ready:
                for pid in self._ranks:
                    os.kill(pid, signal.SIGKILL)
                return None

    def _fork(self) -> tuple[list[str], dict[bytes, bytes], str, list[int]] | None:
        import marshal

        connection = self._listening.accept()[0]
        streams = array.array("i")
        head, passed, _, _ = connection.recvmsg(8, socket.CMSG_LEN(3 * streams.itemsize))
        if not passed:  # it was killed as it came
            connection.close()
            return None
        streams.frombytes(passed[0][2])
        task, size = b"", int.from_bytes(head, "little")
        while len(task) < size and (part := connection.recv(size - len(task))):  # no more: signals may follow
            task += part
        pid = os.fork()
        if pid:
            self._ranks[pid] = connection
            for stream in streams:
                os.close(stream)
            return None
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for each in (self._listening, connection, *self._ranks.values()):
            each.close()
        os.close(self._woken)
        os.close(self._waking)
        for wanted, stream in enumerate(streams):
            os.dup2(stream, wanted)
            os.close(stream)
        return marshal.loads(task)

    def _reap(self) -> None:
        """Tell how ranks have ended."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if connection := self._ranks.pop(pid, None):
                with contextlib.suppress(OSError), connection:  # whoever stood in for it may have gone
                    connection.sendall(b"%d" % os.waitstatus_to_exitcode(status))


def become_rank(arguments: list[str], environment: dict[bytes, bytes], folder: str, cores: list[int]) -> None:
    """Be what python would be that had been started with these arguments, under this environment."""
    import ctypes
    import types
    from importlib.machinery import SourceFileLoader  # which keeps what it has compiled
    from pathlib import Path

    from gradientflow import _location

    # /proc shows the environment that a process was started with, in its memory: there stands the tag.
    libc = ctypes.CDLL(None)
    libc.getenv.restype = ctypes.c_void_p
    ctypes.memmove(libc.getenv(TAG.encode()), environment.get(TAG.encode(), UNTAGGED.encode()), len(UNTAGGED))
    os.environb.clear()
    os.environb.update(environment)
    os.chdir(folder)
    _location.FOLDER = Path(folder)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # which pytest in the background of a shell ignores
    os.sched_setaffinity(0, cores)
    kind, *sys.argv = arguments
    sys.path[0] = os.path.dirname(sys.argv[0])

    if kind == "mpi":
        from mpi4py import MPI

        MPI.Init_thread(MPI.THREAD_MULTIPLE)
    else:
        for name in ("mpi4py.MPI", "mpi4py"):
            sys.modules.pop(name, None)
    main = types.ModuleType("__main__")
    main.__file__ = sys.argv[0]
    sys.modules["__main__"] = main
    exec(SourceFileLoader("__main__", sys.argv[0]).get_code("__main__"), main.__dict__)


def main() -> None:
    number, kind, *modules = sys.argv[1:]
    import gc
    import importlib

    if kind == "mpi":
        import mpi4py

        mpi4py.rc.initialize = False
        mpi4py.rc.finalize = True
    # At the end of each fork it would report that its types, which are frozen below, have not been freed.
    sys.modules["triton"] = None  # type: ignore[assignment]
    for name in modules:
        with contextlib.suppress(ImportError):  # a program that needs it says so itself
            importlib.import_module(name)
    import gradientflow
    from gradientflow._location import load_core

    for name in gradientflow.__all__:  # each of which is imported when it is first used
        getattr(gradientflow, name)
    if kind == "mpi":
        from gradientflow.mpi_library import load_mpi

        load_mpi()
    load_core()
    gc.collect()
    gc.freeze()  # their pages stay shared, and collections of the forks stay short
    if task := Server(socket.socket(fileno=int(number))).serve():
        become_rank(*task)


if __name__ == "__main__":
    stand_in(sys.argv[1], sys.argv[2:]) if sys.flags.isolated else main()
