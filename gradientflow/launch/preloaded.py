"""Processes forked from one that has imported modules, in place of processes that import them anew.

    python preloaded.py PROGRAM MODULE...              the nursery: imports the modules, forks when asked to
    python -I -S preloaded.py CONNECTION PROGRAM...    what a launcher starts in place of python PROGRAM...

What the launcher starts stands in for the process: it passes its arguments, environment, folder, cores and streams to
the nursery, which forks, passes on the signals that programs may handle, and ends as the fork has: with its status or
by its signal. If it goes first, the nursery kills the fork. Its connection is a file that it was given open, by its
number, or the path of a socket.

The nursery finds the other ends of such connections in its input, which is a socket, and ends with it. This file is
run by its path: it imports nothing of the package, so that what stands in starts at once.
"""

from __future__ import annotations

import array
import contextlib
import os
import signal
import socket
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import types

Task = tuple[list[str], dict[bytes, bytes], str, list[int]]  # arguments, environment, folder, and cores

_PASSED_ON = (
    *(signal.SIGHUP, signal.SIGINT, signal.SIGTERM),
    *(signal.SIGUSR1, signal.SIGUSR2, signal.SIGTSTP, signal.SIGCONT),
)
_PR_SET_PDEATHSIG = 1


def stand_in(connection: socket.socket, arguments: list[str]) -> None:
    """Have a process forked, and end as it does."""
    import marshal

    task = marshal.dumps((arguments, dict(os.environb), os.getcwd(), list(os.sched_getaffinity(0))))
    ending = b""
    with connection, contextlib.suppress(ConnectionError):  # the nursery has ended, and killed the fork
        streams = array.array("i", [0, 1, 2])
        connection.sendmsg([len(task).to_bytes(8, "little")], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, streams)])
        connection.sendall(task)

        def pass_on(number: int, _: object) -> None:
            with contextlib.suppress(OSError):  # it has just ended
                connection.sendall(bytes([number]))

        for number in _PASSED_ON:
            signal.signal(number, pass_on)
        ending = connection.recv(64)
    status = int(ending or -signal.SIGKILL)
    if status < 0:
        if -status != signal.SIGKILL:  # of which there is no other handling
            signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    os._exit(status)


class Nursery:
    """Forks a process for each connection, and tells it how the process has ended.

    Parameters
    ----------
    source : socket.socket
        Where connections come from.
    accept : callable
        Takes one from it; None once it has ended.
    """

    def __init__(self, source: socket.socket, accept: Callable[[socket.socket], socket.socket | None]) -> None:
        self._source = source
        self._accept = accept
        self._woken, self._waking = os.pipe()
        os.set_blocking(self._waking, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self._waking, warn_on_full_buffer=False)
        self._forks: dict[int, socket.socket] = {}  # those that run, and what stands in for them

    def serve(self) -> Task | None:
        """Serve until the input is at its end; in a fork, return what it is to be."""
        import select

        is_input = self._source.fileno() == 0
        while True:
            inputs: list[int | socket.socket] = [self._source, self._woken, *self._forks.values()]
            ready = select.select(inputs if is_input else [0, *inputs], [], [])[0]
            for pid in [pid for pid, connection in self._forks.items() if connection in ready]:
                self._pass_on(pid)
            if self._woken in ready:
                os.read(self._woken, 4096)
                self._reap()
            has_ended = 0 in ready
            if self._source in ready:
                connection = self._accept(self._source)
                has_ended |= connection is None
                if connection is not None and (task := self._fork(connection)):
                    return task
            if has_ended:
                for pid in self._forks:
                    _signal_group(pid, signal.SIGKILL)
                return None

    def _pass_on(self, pid: int) -> None:
        """Pass on signals; or the end of what stands in for a fork."""
        with contextlib.suppress(ConnectionError):
            if numbers := self._forks[pid].recv(64):
                for number in numbers:  # the others the launcher sends to what a rank has started, too
                    (os.kill if number in (signal.SIGUSR1, signal.SIGUSR2) else _signal_group)(pid, number)
                return
        _signal_group(pid, signal.SIGKILL)
        self._forks.pop(pid).close()

    def _fork(self, connection: socket.socket) -> Task | None:
        import marshal

        streams = array.array("i")
        head, passed, _, _ = connection.recvmsg(8, socket.CMSG_LEN(3 * streams.itemsize))
        if not passed:  # it was killed as it came
            connection.close()
            return None
        streams.frombytes(passed[0][2])
        text, size = b"", int.from_bytes(head, "little")
        while len(text) < size and (part := connection.recv(size - len(text))):  # no more: signals may follow
            text += part
        own = os.getpid()
        pid = os.fork()
        if pid:
            with contextlib.suppress(OSError):  # it has done so itself, or has ended
                os.setpgid(pid, pid)
            self._forks[pid] = connection
            for stream in streams:
                os.close(stream)
            return None
        os.setpgid(0, 0)
        _end_with(own)
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for each in (connection, *self._forks.values()):
            each.close()
        if self._source.fileno() == 0:
            self._source.detach()
        self._source.close()
        os.close(self._woken)
        os.close(self._waking)
        for wanted, stream in enumerate(streams):
            os.dup2(stream, wanted)
            os.close(stream)
        task: Task = marshal.loads(text)
        return task

    def _reap(self) -> None:
        """Tell how forks have ended."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if connection := self._forks.pop(pid, None):
                with contextlib.suppress(OSError), connection:  # what stood in for it may have gone
                    connection.sendall(b"%d" % os.waitstatus_to_exitcode(status))


def _signal_group(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):  # it has another one now
        os.killpg(pid, number)


def _end_with(parent: int) -> None:
    import ctypes

    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


def become(arguments: list[str], environment: dict[bytes, bytes], folder: str, cores: list[int]) -> None:
    """Be what python would be that had been started with these arguments, under this environment."""
    os.environb.clear()
    os.environb.update(environment)
    os.chdir(folder)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # which is ignored in the background of a shell
    os.sched_setaffinity(0, cores)
    if "numpy" in sys.modules:  # Python's own random numbers are others in each fork already
        sys.modules["numpy"].random.seed()
    hook = sys.excepthook

    def without_this_file(
        kind: type[BaseException], error: BaseException, traceback: types.TracebackType | None
    ) -> None:
        while traceback and traceback.tb_frame.f_code.co_filename.startswith((__file__, "<frozen ")):
            traceback = traceback.tb_next
        hook(kind, error.with_traceback(traceback), traceback)

    sys.excepthook = without_this_file
    exec(_code(arguments), sys.modules["__main__"].__dict__)


def _code(arguments: list[str]) -> types.CodeType:
    """Compile a program, and make a module ``__main__`` for it."""
    import types
    from importlib.machinery import SourceFileLoader

    code: types.CodeType
    main = types.ModuleType("__main__")
    kind, *rest = arguments
    if kind == "-m":
        import runpy

        _look_first_in(os.getcwd())
        _, main.__spec__, code = runpy._get_module_details(rest[0])  # type: ignore[attr-defined]
        main.__file__ = main.__spec__.origin
        main.__package__ = main.__spec__.parent
        sys.argv = [str(main.__file__), *rest[1:]]
    elif kind == "-c":
        _look_first_in("")
        sys.argv = ["-c", *rest[1:]]
        code = compile(rest[0], "<string>", "exec")
    else:
        _look_first_in(os.path.dirname(os.path.realpath(kind)))
        sys.argv, main.__file__ = arguments, os.path.abspath(kind)
        main.__loader__ = loader = SourceFileLoader("__main__", main.__file__)
        try:
            text = loader.get_data(main.__file__)
        except OSError as error:
            print(f"{sys.executable}: can't open file {main.__file__!r}: {error}", file=sys.stderr)
            sys.exit(2)
        code = loader.source_to_code(text, main.__file__)
    sys.modules["__main__"] = main
    return code


def _look_first_in(folder: str) -> None:
    """Look for modules in a folder first, unless that is forbidden (python -P)."""
    if not getattr(sys.flags, "safe_path", False):  # since Python 3.11
        sys.path[0] = folder


def _received(source: socket.socket) -> socket.socket | None:
    """Take a connection that was sent through a socket."""
    _, numbers, _, _ = socket.recv_fds(source, 1, 1)
    return socket.socket(fileno=numbers[0]) if numbers else None


def _preload(name: str) -> None:
    import importlib

    try:
        importlib.import_module(name)
    except (Exception, SystemExit) as error:  # the program says so itself, if it needs it
        print(f"gradientflow: {name} cannot be preloaded: {type(error).__name__}: {error}", file=sys.stderr)


def main() -> None:
    """Import the modules, and fork until the input ends."""
    program, *modules = sys.argv[1:]
    _look_first_in(os.path.dirname(os.path.realpath(program)) if program else "")
    for name in modules:
        _preload(name)
    if task := Nursery(socket.socket(fileno=0), _received).serve():
        become(*task)


if __name__ == "__main__":
    if sys.flags.isolated:
        place, *rest = sys.argv[1:]
        if place.isdecimal():
            connection = socket.socket(fileno=int(place))
        else:
            connection = socket.socket(socket.AF_UNIX)
            connection.connect(place)
        stand_in(connection, rest)
    else:
        main()
