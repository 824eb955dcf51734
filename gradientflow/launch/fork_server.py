"""Fork server: ranks are forked from a process that has imported modules, in place of importing them in each rank.

    python fork_server.py PROGRAM MODULE...            the server: imports the modules, forks on request
    python -I -S fork_server.py CONNECTION PROGRAM...  the proxy: started by a launcher in place of python PROGRAM...

The proxy sends its arguments, environment, folder, cores and streams to the server, which forks. The proxy relays the
signals that programs may handle, and ends as the fork does: with its status or by its signal. If the proxy ends first,
the server kills the fork. CONNECTION is the number of an open file descriptor, or the path of a socket.

The server's input is a socket, through which it gets its ends of these connections. The server ends when the socket
closes. This file is run by its path: it imports nothing of the package, so that the proxy starts at once.
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


def run_proxy(connection: socket.socket, arguments: list[str]) -> None:
    """Request a fork, relay signals to it, and end with its status or by its signal. Called by the proxy."""
    import marshal

    task = marshal.dumps((arguments, dict(os.environb), os.getcwd(), list(os.sched_getaffinity(0))))
    ending = b""
    with connection, contextlib.suppress(ConnectionError):  # the server has ended, and killed the fork
        streams = array.array("i", [0, 1, 2])
        connection.sendmsg([len(task).to_bytes(8, "little")], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, streams)])
        connection.sendall(task)

        def pass_on(number: int, _: object) -> None:
            with contextlib.suppress(OSError):  # the server has just ended
                connection.sendall(bytes([number]))

        for number in _PASSED_ON:
            signal.signal(number, pass_on)
        ending = connection.recv(64)
    status = int(ending or -signal.SIGKILL)
    if status < 0:
        if -status != signal.SIGKILL:  # SIGKILL has no other handler
            signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    os._exit(status)


class ForkServer:
    """Fork server: forks a process for each connection, and reports the end of that process through the connection.

    Parameters
    ----------
    source : socket.socket
        Source of connections.
    accept : callable
        Returns a connection from `source`; None once it has ended.
    """

    def __init__(self, source: socket.socket, accept: Callable[[socket.socket], socket.socket | None]) -> None:
        self._source = source
        self._accept = accept
        self._woken, self._waking = os.pipe()
        os.set_blocking(self._waking, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self._waking, warn_on_full_buffer=False)
        self._forks: dict[int, socket.socket] = {}  # running forks by process number, with connections to their proxies

    def serve(self) -> Task | None:
        """Serve until the input ends, and return None; in a fork, return its task."""
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
        """Relay signals from a proxy to its fork; kill the fork if the proxy has ended."""
        with contextlib.suppress(ConnectionError):
            if numbers := self._forks[pid].recv(64):
                for number in numbers:  # the fork's children get these, too, except for SIGUSR1 and 2
                    (os.kill if number in (signal.SIGUSR1, signal.SIGUSR2) else _signal_group)(pid, number)
                return
        _signal_group(pid, signal.SIGKILL)
        self._forks.pop(pid).close()

    def _fork(self, connection: socket.socket) -> Task | None:
        import marshal

        streams = array.array("i")
        head, passed, _, _ = connection.recvmsg(8, socket.CMSG_LEN(3 * streams.itemsize))
        if not passed:  # the proxy was killed at its start
            connection.close()
            return None
        streams.frombytes(passed[0][2])
        text, size = b"", int.from_bytes(head, "little")
        while len(text) < size and (part := connection.recv(size - len(text))):  # exactly `size`: signals may follow
            text += part
        own = os.getpid()
        pid = os.fork()
        if pid:
            with contextlib.suppress(OSError):  # the fork has set its group itself, or has ended
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
        """Report to proxies how their forks have ended."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if connection := self._forks.pop(pid, None):
                with contextlib.suppress(OSError), connection:  # the proxy may have ended
                    connection.sendall(b"%d" % os.waitstatus_to_exitcode(status))


def _signal_group(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):  # the process has another group now
        os.killpg(pid, number)


def _end_with(parent: int) -> None:
    import ctypes

    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


def become(arguments: list[str], environment: dict[bytes, bytes], folder: str, cores: list[int]) -> None:
    """Run this process like a new ``python ARGUMENTS...`` with this environment, folder and cores."""
    os.environb.clear()
    os.environb.update(environment)
    os.chdir(folder)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell ignores it in background processes
    os.sched_setaffinity(0, cores)
    if "numpy" in sys.modules:  # Python's own random numbers already differ between forks
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
    """Put a folder first in the import path, unless this is forbidden (python -P)."""
    if not getattr(sys.flags, "safe_path", False):  # flag since Python 3.11
        sys.path[0] = folder


def _received(source: socket.socket) -> socket.socket | None:
    """Return a connection that was sent through a socket; None once the socket has ended."""
    _, numbers, _, _ = socket.recv_fds(source, 1, 1)
    return socket.socket(fileno=numbers[0]) if numbers else None


def _preload(name: str) -> None:
    import importlib

    try:
        importlib.import_module(name)
    except (Exception, SystemExit) as error:  # a program that needs the module fails by itself
        print(f"gradientflow: {name} cannot be preloaded: {type(error).__name__}: {error}", file=sys.stderr)


def main() -> None:
    """Import the modules, and fork until the input ends."""
    program, *modules = sys.argv[1:]
    _look_first_in(os.path.dirname(os.path.realpath(program)) if program else "")
    for name in modules:
        _preload(name)
    if task := ForkServer(socket.socket(fileno=0), _received).serve():
        become(*task)


if __name__ == "__main__":
    if sys.flags.isolated:
        place, *rest = sys.argv[1:]
        if place.isdecimal():
            connection = socket.socket(fileno=int(place))
        else:
            connection = socket.socket(socket.AF_UNIX)
            connection.connect(place)
        run_proxy(connection, rest)
    else:
        main()
