"""Where ranks meet: what stores keep and whom they let in, what all hear who come, and at which address they are."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import resource
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from native import meeting
from pace import PATIENCE, scaled

from gradientflow import _core
from gradientflow.errors import (
    ArgumentError,
    ArgumentTypeError,
    CommunicationTimeoutError,
    MismatchError,
    PeerError,
    SystemCallError,
)

SECONDS = 20.0  # of a wait that is expected to end long before


@pytest.fixture(params=["tcp", "file"])
def make_store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[[], Any]]:
    """Give a function that makes one more store of the same values."""
    if request.param == "file":
        yield lambda: _core.FileStore(str(tmp_path / "store"), timeout=SECONDS)
    else:
        served = _core.TcpStore("127.0.0.1:0", serve=True, timeout=SECONDS, token="secret")
        yield lambda: _core.TcpStore(served.address, timeout=SECONDS, token="secret")


class StoreOfProgram:
    """A store as a program may have one, with values and calls as PyTorch's stores have them."""

    def __init__(self) -> None:
        self.values: dict[str, bytes] = {}
        self.lock = threading.Lock()

    def set(self, key: str, value: bytes) -> None:
        with self.lock:
            self.values[key] = value

    def add(self, key: str, amount: int) -> int:
        with self.lock:
            sum_ = int(self.values.get(key, b"0")) + amount
            self.values[key] = str(sum_).encode()
            return sum_

    def compare_set(self, key: str, expected: bytes, desired: bytes) -> bytes:
        with self.lock:
            if self.values.get(key, b"") == expected:
                self.values[key] = desired
            return self.values.get(key, expected)

    def delete_key(self, key: str) -> bool:
        with self.lock:
            return self.values.pop(key, None) is not None


def python_store(store: Any) -> Any:
    return _core.PythonStore(store, "the store of a test", timeout=SECONDS)


@pytest.fixture
def served() -> Any:
    return _core.TcpStore("127.0.0.1:0", serve=True, timeout=SECONDS)


@pytest.fixture(params=["tcp", "file"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """Give a place where ranks can meet."""
    if request.param == "file":
        yield str(tmp_path / "store")
    else:
        store = _core.TcpStore("127.0.0.1:0", serve=True, timeout=SECONDS)
        yield store.address
        del store


@pytest.fixture(params=["tcp", "file", "python"])
def anywhere(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[], Any]:
    """Give a function that makes one more store of the same values, where ranks can meet."""
    if request.param == "python":
        given = StoreOfProgram()
        return lambda: python_store(given)
    if request.param == "file":
        return lambda: _core.FileStore(str(tmp_path / "store"), timeout=SECONDS)
    served = _core.TcpStore("127.0.0.1:0", serve=True, timeout=SECONDS)
    return lambda address=served.address, kept=served: _core.TcpStore(address, timeout=SECONDS)


SERVING = """
from gradientflow import _core
store = _core.TcpStore("127.0.0.1:0", serve=True)
print(store.address, flush=True)
store.get("never")
"""


def python(program: str, *arguments: object, **env: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", program, *map(str, arguments)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **env},
    )


# ---- what stores keep ------------------------------------------------------------------------------------------------


def test_a_value_is_there_for_all(make_store: Callable[[], Any]) -> None:
    one, other = make_store(), make_store()
    one.set("key", b"\0value\xff")
    assert other.get("key") == b"\0value\xff"
    other.set(b"key", b"")
    assert one.get("key") == b""
    with pytest.raises(TypeError):
        one.set("key", "text")


def test_get_waits_for_a_value(make_store: Callable[[], Any]) -> None:
    one, other = make_store(), make_store()
    with ThreadPoolExecutor() as pool:
        waiting = [pool.submit(make_store().get, "late") for _ in range(3)]
        with pytest.raises(CommunicationTimeoutError, match="has no value of 'late'"):
            other.get("late", timeout=0.2)
        assert not any(each.done() for each in waiting)
        one.set("late", b"here")
        assert [each.result() for each in waiting] == [b"here"] * 3
    assert other.get("late", timeout=0) == b"here"  # also after a call that was given up


def test_compare_set(make_store: Callable[[], Any]) -> None:
    one, other = make_store(), make_store()
    assert one.compare_set("key", b"", b"no") is None
    assert one.compare_set("key", None, b"first") == b"first"
    assert other.compare_set("key", None, b"second") == b"first"
    assert other.compare_set("key", b"first", b"third") == b"third"
    assert one.get("key") == b"third"


def test_add(make_store: Callable[[], Any]) -> None:
    one, other = make_store(), make_store()
    assert [one.add("n", 5), other.add("n", -7)] == [5, -2]
    assert one.get("n") == b"-2"
    one.set("n", b"41")
    assert other.add("n", 1) == 42
    one.set("text", b"4 and more")
    with pytest.raises(ArgumentError, match="a whole number"):
        other.add("text", 1)
    one.set("n", str(2**63 - 1).encode())
    with pytest.raises(ArgumentError, match="too large"):
        other.add("n", 1)
    assert other.add("m", 1) == 1


ADDING = """
import sys
from gradientflow import _core
kind, place = sys.argv[1:]
store = _core.FileStore(place) if kind == "FileStore" else _core.TcpStore(place, token="secret")
for i in range(200):
    store.add("sum", 1)
    store.compare_set(f"winner {i}", None, str(store.add("numbers", 1)).encode())
"""


def test_processes_at_the_same_time(make_store: Callable[[], Any]) -> None:
    store = make_store()
    where = store.address if hasattr(store, "address") else repr(store).removesuffix(">").split()[-1]
    processes = [python(ADDING, type(store).__name__, where) for _ in range(3)]
    for process in processes:
        _, errors = process.communicate(timeout=60)
        assert process.returncode == 0, errors
    assert store.get("sum") == b"600"
    assert len({store.get(f"winner {i}", timeout=0) for i in range(200)}) == 200


def test_remove(make_store: Callable[[], Any]) -> None:
    one, other = make_store(), make_store()
    one.set("key", b"value")
    assert [other.remove("key"), one.remove("key"), other.remove("n")] == [True, False, False]
    assert make_store().compare_set("key", b"value", b"more") is None
    assert [one.add("n", 4), other.remove("n"), one.add("n", 5)] == [4, True, 5]
    assert make_store().get("n") == b"5"


def test_lengths_are_limited(make_store: Callable[[], Any]) -> None:
    store = make_store()
    longest = bytes(meeting.longest_value)
    store.set("k" * meeting.longest_key, longest)
    assert store.get("k" * meeting.longest_key) == longest
    for key in ("", "k" * (meeting.longest_key + 1)):
        with pytest.raises(ArgumentError, match="a key of a store has 1 to"):
            store.set(key, b"")
        with pytest.raises(ArgumentError, match="a key of a store has 1 to"):
            store.get(key)
    with pytest.raises(ArgumentError, match="a value of a store has at most"):
        store.set("key", longest + b"1")
    assert store.add("n", 1) == 1


# ---- a store over TCP ------------------------------------------------------------------------------------------------


def test_a_wrong_token_is_refused(served: Any) -> None:
    guarded = _core.TcpStore("127.0.0.1:0", serve=True, token="secret")
    for token in ("", "secre", "secret ", "Secret", "x" * 1024):
        with pytest.raises(MismatchError, match="refused the token: this process and the store belong to different"):
            _core.TcpStore(guarded.address, timeout=SECONDS, token=token)
    with pytest.raises(MismatchError, match="GRADIENTFLOW_TOKEN differs"):
        _core.TcpStore(served.address, timeout=SECONDS, token="secret")
    with pytest.raises(ArgumentError, match="at most 1024 bytes"):
        _core.TcpStore(guarded.address, timeout=SECONDS, token="x" * 1025)
    assert _core.TcpStore(guarded.address, timeout=SECONDS, token="secret").add("n", 1) == 1


def test_where_nobody_serves() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        with pytest.raises(CommunicationTimeoutError, match=rf"the store at 127.0.0.1:{port} .* has not answered"):
            _core.TcpStore(f"127.0.0.1:{port}", timeout=0.3)
    with pytest.raises(CommunicationTimeoutError, match=rf"127.0.0.1:{port} within 0.3 s: Connection refused"):
        _core.TcpStore(f"127.0.0.1:{port}", timeout=0.3)
    places = "nowhere.invalid:4000,nowhere.invalid:4001"
    with pytest.raises(SystemCallError, match=rf"meet at {places}: the name nowhere.invalid is unknown here: [^;]*$"):
        _core.TcpStore(places, timeout=9)


def test_a_port_in_use(served: Any) -> None:
    """Only a process that serves there already may do so again."""
    program = "import sys; from gradientflow import _core; _core.TcpStore(sys.argv[1], serve=True)"
    _, errors = python(program, served.address).communicate(timeout=30)
    said = f"cannot listen at {served.address}: Address already in use; another rank 0, another job or another program"
    assert errors.strip().endswith(f"SystemCallError: {said} serves there")
    with pytest.raises(SystemCallError, match="Address already in use"):
        _core.TcpStore(served.address, serve=True, token="another")


def free_place() -> str:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return f"127.0.0.1:{free.getsockname()[1]}"


def test_a_taken_port_leads_to_the_next() -> None:
    """Who comes early looks for the store of the job until it is there, and leaves those of other jobs."""
    of_another_job = _core.TcpStore("127.0.0.1:0", serve=True, token="another")
    with socket.create_server(("127.0.0.1", 0)) as silent, ThreadPoolExecutor() as pool:
        places = [of_another_job.address, f"127.0.0.1:{silent.getsockname()[1]}", free_place(), free_place()]
        early = pool.submit(_core.TcpStore, ",".join(places), timeout=SECONDS, token="this")
        serving = _core.TcpStore(",".join(places), serve=True, timeout=SECONDS, token="this")
        serving.set("key", b"value")
        assert early.result().get("key") == b"value"
    assert _core.TcpStore(places[2], timeout=SECONDS, token="this").get("key") == b"value"
    assert of_another_job.compare_set("key", None, b"none") == b"none"


def test_a_taken_port_of_the_same_job_does_not() -> None:
    """Two stores would be two jobs."""
    process = python(SERVING)
    assert process.stdout is not None
    address = process.stdout.readline().strip()
    with pytest.raises(SystemCallError, match=f"cannot listen at {address}: .* another rank 0"):
        _core.TcpStore(f"{address},{free_place()}", serve=True, timeout=SECONDS)
    process.kill()
    process.communicate(timeout=30)


def test_all_ports_are_taken(served: Any) -> None:
    second = _core.TcpStore("127.0.0.1:0", serve=True)
    places = f"{served.address},{second.address}"
    with pytest.raises(SystemCallError, match=f"cannot listen at {places}: other jobs or other programs serve there"):
        _core.TcpStore(places, serve=True, timeout=SECONDS, token="another")
    causes = f"within 0.3 s: the store at {served.address} refused the token: .*; the store at .* refused the token: "
    with pytest.raises(CommunicationTimeoutError, match=causes):
        _core.TcpStore(places, timeout=0.3, token="another")


def test_two_that_begin_to_serve_at_the_same_moment(tmp_path: Path) -> None:
    """Linux may refuse both, where both are bound to the address before one listens: they try again."""
    (tmp_path / "listen.c").write_text(
        "#define _GNU_SOURCE\n"
        "#include <dlfcn.h>\n"
        "#include <errno.h>\n"
        "int listen(int socket, int length) {\n"
        "  static int calls;\n"
        "  if (++calls == 1) {\n"
        "    errno = EADDRINUSE;\n"
        "    return -1;\n"
        "  }\n"
        '  return ((int (*)(int, int))dlsym(RTLD_NEXT, "listen"))(socket, length);\n'
        "}\n"
    )
    library = str(tmp_path / "listen.so")
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, str(tmp_path / "listen.c"), "-ldl"], check=True)
    program = "from gradientflow import _core; print(_core.TcpStore('127.0.0.1:0', serve=True).add('n', 1))"
    said, errors = python(program, LD_PRELOAD=library).communicate(timeout=30)
    assert said == "1\n", errors


def test_what_is_no_store() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other, ThreadPoolExecutor() as pool:

        def answer() -> None:
            with other.accept()[0] as connection:
                connection.recv(100)
                connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

        answering = pool.submit(answer)
        with pytest.raises(MismatchError, match="is none of GradientFlow: something else answers there"):
            _core.TcpStore(f"127.0.0.1:{other.getsockname()[1]}", timeout=SECONDS)
        answering.result()


def test_a_store_of_another_version() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other, ThreadPoolExecutor() as pool:

        def answer() -> None:
            with other.accept()[0] as connection:
                connection.recv(100)
                connection.sendall(meeting.encode_welcome(meeting.store_version + 6, 2))

        answering = pool.submit(answer)
        with pytest.raises(MismatchError, match=r"speaks version 7 .* different versions of GradientFlow"):
            _core.TcpStore(f"127.0.0.1:{other.getsockname()[1]}", timeout=SECONDS)
        answering.result()


def test_a_process_of_another_version(served: Any) -> None:
    """It is told which version the store speaks, whatever it says further."""
    with connected(served.address) as connection:
        connection.sendall(meeting.encode_hello(7, "more of it") + bytes(500))
        said = received(connection)
    assert meeting.parse_welcome(said) == ("complete", len(said), (meeting.store_version, 2))


def test_a_name_that_nobody_knows() -> None:
    """No rank waits for its whole time: not one that looks for the store, and not the one that serves it."""
    place = free_place().replace("127.0.0.1", "nowhere.invalid")
    said = f"^the ranks cannot meet at {place}: the name nowhere.invalid is unknown here: [A-Z][^\n]*$"
    with ThreadPoolExecutor() as pool:
        ranks = [pool.submit(_core.TcpStore, place, serve, timeout=60) for serve in (False, True)]
        for rank in ranks:
            with pytest.raises(SystemCallError, match=said):
                rank.result(timeout=scaled(20))


@pytest.mark.usefixtures("patience")
def test_a_name_that_is_known_later(tmp_path: Path) -> None:
    """A container that is started at the same moment gets its name within seconds; in Kubernetes a pod, when placed."""
    (tmp_path / "names.c").write_text(
        "#define _GNU_SOURCE\n"
        "#include <dlfcn.h>\n"
        "#include <netdb.h>\n"
        "#include <stdlib.h>\n"
        "#include <string.h>\n"
        "#include <time.h>\n"
        "typedef int Call(const char *, const char *, const struct addrinfo *, struct addrinfo **);\n"
        "int getaddrinfo(const char *host, const char *port, const struct addrinfo *hints, struct addrinfo **found) {\n"
        "  static double first = 0;\n"
        '  Call *call = (Call *)dlsym(RTLD_NEXT, "getaddrinfo");\n'
        "  struct timespec now;\n"
        "  clock_gettime(CLOCK_MONOTONIC, &now);\n"
        "  double seconds = now.tv_sec + now.tv_nsec * 1e-9;\n"
        '  if (strcmp(host, "later.invalid") != 0 || (hints->ai_flags & AI_NUMERICHOST)) {\n'
        "    return call(host, port, hints, found);\n"
        "  }\n"
        "  first = first ? first : seconds;\n"
        '  return seconds - first < atof(getenv("LATER")) ? EAI_NONAME : call("127.0.0.1", port, hints, found);\n'
        "}\n"
    )
    library = str(tmp_path / "names.so")
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, str(tmp_path / "names.c"), "-ldl"], check=True)
    store = _core.TcpStore("127.0.0.1:0", serve=True, timeout=SECONDS)
    address = store.address.replace("127.0.0.1", "later.invalid")
    program = "import sys; from gradientflow import _core; print(_core.TcpStore(sys.argv[1], timeout=60).add('n', 1))"
    late = f"{3 * float(os.environ[PATIENCE]) + 0.5}"
    kinds = ({"LATER": "0.2"}, {"LATER": late, "KUBERNETES_SERVICE_HOST": "10.96.0.1"})
    processes = [python(program, address, LD_PRELOAD=library, **env) for env in kinds]
    for process in processes:
        said, errors = process.communicate(timeout=60)
        assert said in ("1\n", "2\n"), errors


def test_it_waits_for_the_store_to_come() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(_core.TcpStore, f"nowhere.invalid:1,{address}", timeout=SECONDS)
        time.sleep(0.2)
        serving = _core.TcpStore(address, serve=True)
        serving.set("key", b"value")
        assert waiting.result().get("key") == b"value"


@pytest.mark.parametrize("host", ["localhost", "[::1]", "0.0.0.0", "[::]", "127.0.0.1"])
def test_where_it_listens(host: str) -> None:
    try:
        serving = _core.TcpStore(f"{host}:0", serve=True)
    except SystemCallError:
        assert "[" in host, "a machine without IPv6"
        pytest.skip("no IPv6 here")
    serving.set("key", b"value")
    assert _core.TcpStore(serving.address, timeout=SECONDS).get("key") == b"value"
    again = _core.TcpStore(serving.address, serve=True)  # the same one, in one process
    assert again.get("key", timeout=0) == b"value"


def test_the_end_of_its_process_is_told() -> None:
    process = python(SERVING)
    assert process.stdout is not None
    store = _core.TcpStore(process.stdout.readline().strip(), timeout=SECONDS)
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(store.get, "key")
        time.sleep(0.2)
        process.kill()
        with pytest.raises(PeerError, match=r"the store at 127.0.0.1:\d+ has gone"):
            waiting.result()
    process.communicate(timeout=30)
    with pytest.raises(CommunicationTimeoutError, match="Connection refused"):
        store.set("key", b"", timeout=0.2)


def test_a_store_that_stops_does_not_stop_others() -> None:
    process = python(SERVING)
    assert process.stdout is not None
    store = _core.TcpStore(process.stdout.readline().strip(), timeout=SECONDS)
    process.send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, process.pid, os.WSTOPPED)
    with pytest.raises(CommunicationTimeoutError, match=r"has not answered within 0.3 s"):
        store.set("key", b"", timeout=0.3)
    process.send_signal(signal.SIGCONT)
    store.set("key", b"value")
    assert store.get("key") == b"value"
    process.kill()
    process.communicate(timeout=30)


def test_ctrl_c_ends_a_wait() -> None:
    program = """
from gradientflow import _core
store = _core.TcpStore("127.0.0.1:0", serve=True)
print("waiting", flush=True)
try:
    store.get("never")
except KeyboardInterrupt:
    print(store.add("n", 1))
"""
    process = python(program)
    assert process.stdout is not None
    process.stdout.readline()
    time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    output, errors = process.communicate(timeout=30)
    assert output == "1\n", errors


def test_a_forked_process_keeps_nothing_of_it(served: Any) -> None:
    """It does not use the connection of its parent, and the port is free once the parent has ended."""
    serving = _core.TcpStore("127.0.0.1:0", serve=True)
    address = serving.address
    serving.add("n", 1)
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        said = b"nothing"
        try:
            serving.add("n", 1, timeout=1)
        except Exception as error:
            said = str(error).encode()
        os.write(writing, said)
        os.read(reading, 0)
        time.sleep(60)
        os._exit(0)
    try:
        assert b"belongs to the process that this one was forked from" in os.read(reading, 1000)
        assert serving.add("n", 1) == 2
        del serving
        assert _core.TcpStore(address, serve=True).add("n", 1) == 1  # another store, at the same port
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        os.close(reading)
        os.close(writing)


@pytest.mark.parametrize("text", ["", "host", "host:", ":1", "host:x", "host:65536", "host:-1", "::1:5000:", "a:1,,b:2",
                                  "fd00::1:4000", "[]:1", "host:1 "])  # fmt: skip
def test_what_is_no_place(text: str) -> None:
    with pytest.raises(ArgumentError, match="is no place to meet"):
        _core.TcpStore(text)


def test_places() -> None:
    text = "host0:29400,10.0.0.1:1,[fd00::1]:65535,[fe80::1%eth0]:2"
    assert meeting.parse_host_ports(text) == [
        ("host0", 29400),
        ("10.0.0.1", 1),
        ("fd00::1", 65535),
        ("fe80::1%eth0", 2),
    ]


# ---- strangers -------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def connected(address: str | int) -> Iterator[socket.socket]:
    port = int(str(address).rpartition(":")[2])
    with socket.create_connection(("127.0.0.1", port), timeout=SECONDS) as connection:
        yield connection


def received(connection: socket.socket) -> bytes:
    """Receive until the other side closes."""
    said = b""
    with contextlib.suppress(ConnectionResetError):
        while more := connection.recv(65536):
            said += more
    return said


def works(server: Any) -> bool:
    store = _core.TcpStore(f"127.0.0.1:{server.port}", timeout=SECONDS)
    store.set("works", b"yes")
    return bool(store.get("works") == b"yes")


def test_who_says_nothing_is_dropped() -> None:
    server = meeting.StoreServer(seconds=0.3)
    with connected(server.port) as silent, connected(server.port) as slow:
        slow.sendall(meeting.encode_hello(1, "")[:-1])
        assert works(server)
        assert received(silent) == received(slow) == b""


def test_who_sends_a_byte_at_a_time_is_dropped() -> None:
    server = meeting.StoreServer(seconds=0.5, token="secret")
    with connected(server.port) as slow:
        with contextlib.suppress(ConnectionError):
            for byte in meeting.encode_hello(1, "secret" + 100 * " "):
                slow.sendall(bytes([byte]))
                time.sleep(0.02)
        assert received(slow) == b""


def test_the_oldest_of_too_many_strangers_makes_room() -> None:
    server = meeting.StoreServer(unauthenticated=4, seconds=60)
    with contextlib.ExitStack() as stack:
        silent = [stack.enter_context(connected(server.port)) for _ in range(50)]
        assert works(server)
        assert all(received(each) == b"" for each in silent[:46])
        silent[-1].settimeout(0.2)
        with pytest.raises(TimeoutError):
            silent[-1].recv(1)


GARBAGE = [
    b"GET / HTTP/1.1\r\n\r\n",
    b"\xff" * 100_000,
    b"GFhello\n" + b"\xff" * 8,
    meeting.encode_hello(1, "")[:12] + (1 << 30).to_bytes(4, "little"),
    meeting.encode_hello(1, "") + b"\xff" * 1000,
    meeting.encode_hello(1, "") + meeting.encode_request(0, "key", "", None, 0)[:4] + b"\xff" * 20,
    meeting.encode_hello(1, "") + meeting.encode_request(0, "", "value", None, 0),
    meeting.encode_hello(1, "other"),
]


@pytest.mark.parametrize("garbage", GARBAGE, ids=range(len(GARBAGE)))
def test_garbage_is_dropped(garbage: bytes) -> None:
    server = meeting.StoreServer(seconds=1)
    with connected(server.port) as connection:
        with contextlib.suppress(ConnectionError):  # it may be dropped before all is sent
            connection.sendall(garbage)
        assert len(received(connection)) <= 16
    assert works(server)


@functools.cache
def one_server() -> Any:
    return meeting.StoreServer(seconds=60)


@given(garbage=st.binary(max_size=200), greets=st.booleans())
@settings(max_examples=150)
def test_any_bytes(garbage: bytes, greets: bool) -> None:
    server = one_server()
    with connected(server.port) as connection:
        connection.sendall((meeting.encode_hello(1, "") if greets else b"") + garbage)
    assert works(server)


def memory_in_use() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()


def test_lengths_that_are_only_said_take_no_memory() -> None:
    """Those of members: strangers say none that is believed."""
    server = meeting.StoreServer(bytes=1 << 30)
    before = memory_in_use()
    with contextlib.ExitStack() as stack:
        head = meeting.encode_request(0, "k", "", None, 0)
        head = head[:8] + meeting.longest_value.to_bytes(4, "little") + head[12:]
        for _ in range(50):
            member = stack.enter_context(connected(server.port))
            member.sendall(meeting.encode_hello(1, "") + head)
        assert works(server)
        assert memory_in_use() - before < 50 << 20  # of 800 MiB


def test_what_is_on_its_way_is_bounded() -> None:
    """Members together send more than the store takes: some are dropped, it serves on."""
    server = meeting.StoreServer(bytes=8 << 20)
    message = meeting.encode_hello(1, "") + meeting.encode_request(0, "k", "v" * (4 << 20), None, 0)[:-1]
    before = memory_in_use()
    with contextlib.ExitStack() as stack:
        for _ in range(40):
            member = stack.enter_context(connected(server.port))
            with contextlib.suppress(ConnectionError):
                member.sendall(message)
        assert memory_in_use() - before < 64 << 20  # of 160
    assert works(server)


def test_a_full_store_says_so() -> None:
    server = meeting.StoreServer(bytes=1 << 20)
    store = _core.TcpStore(f"127.0.0.1:{server.port}", timeout=SECONDS)
    for i in range(3):
        store.set(f"key {i}", bytes(300_000))
    with pytest.raises(ArgumentError, match="the store is full"):
        store.set("one more", bytes(300_000))
    assert store.get("key 2") == bytes(300_000)
    store.remove("key 0")
    store.set("one more", bytes(300_000))
    store.remove("one more")
    for _ in range(10):  # a value is replaced
        store.set("small", bytes(10_000))


def test_who_does_not_read_stops_nobody() -> None:
    server = meeting.StoreServer(bytes=64 << 20)
    store = _core.TcpStore(f"127.0.0.1:{server.port}", timeout=SECONDS)
    store.set("large", bytes(16 << 20))
    asking = meeting.encode_hello(1, "") + 20 * meeting.encode_request(2, "large", "", None, 0)
    before = memory_in_use()
    with contextlib.ExitStack() as stack:
        for _ in range(10):
            stack.enter_context(connected(server.port)).sendall(asking)
        assert works(server)
        assert store.add("n", 1) == 1
        assert memory_in_use() - before < 16 << 20  # a value is kept once, whoever reads it


def test_a_file_that_another_process_writes_to_is_awaited_where_no_time_is_left(tmp_path: Path) -> None:
    """Ranks that wait in vain say so in the store, all at the same moment."""
    store = _core.FileStore(str(tmp_path / "store"), timeout=SECONDS)
    store.set("key", b"of before", SECONDS)
    program = (
        "import fcntl, sys, time; file = open(sys.argv[1], 'r+'); fcntl.lockf(file, fcntl.LOCK_EX);"
        "print('has it', flush=True); time.sleep(0.2)"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path / "store")], stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "has it\n"
        assert store.compare_set("key", b"of before", b"of now", 0) == b"of now"


def test_more_connections_than_files() -> None:
    """A process that serves, and has few files, goes on serving once strangers have gone."""
    program = """
import resource, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
from gradientflow import _core
store = _core.TcpStore("127.0.0.1:0", serve=True)
print(store.address, flush=True)
store.get("end")
"""
    process = python(program)
    assert process.stdout is not None
    address = process.stdout.readline().strip()
    with contextlib.ExitStack() as stack:
        for _ in range(150):
            stack.enter_context(connected(address))
        assert process.poll() is None
    _core.TcpStore(address, timeout=SECONDS).set("end", b"")
    _, errors = process.communicate(timeout=30)
    assert process.returncode == 0, errors


# ---- what is said over a connection ----------------------------------------------------------------------------------

TEXTS = st.binary(max_size=40)
KEYS = st.binary(min_size=1, max_size=40)
MESSAGES = st.one_of(
    st.tuples(st.just("hello"), st.tuples(st.just(1), TEXTS)),
    st.tuples(st.just("welcome"), st.tuples(st.integers(0, 2**32 - 1), st.integers(0, 2))),
    st.tuples(
        st.just("request"),
        st.tuples(st.integers(0, 5), KEYS, TEXTS, st.none() | TEXTS, st.integers(-(2**63), 2**63 - 1)),
    ),
    st.tuples(st.just("answer"), st.tuples(st.integers(0, 2), TEXTS)),
)


@given(message=MESSAGES, cut=st.floats(0, 1), rest=st.binary(max_size=20))
def test_messages_survive_the_way(message: tuple[str, tuple[Any, ...]], cut: float, rest: bytes) -> None:
    kind, fields = message
    parse = getattr(meeting, f"parse_{kind}")
    encoded = getattr(meeting, f"encode_{kind}")(*fields)
    assert parse(encoded + rest) == ("complete", len(encoded), fields)
    state, needed, _ = parse(encoded[: int(cut * (len(encoded) - 1))])
    assert state == "incomplete"
    assert needed <= len(encoded)


@given(kind=st.sampled_from(["hello", "welcome", "request", "answer"]), garbage=st.binary(max_size=100))
@settings(max_examples=1000)
def test_garbage_is_read_within_its_bounds(kind: str, garbage: bytes) -> None:
    state, needed, _ = getattr(meeting, f"parse_{kind}")(garbage)
    assert state in ("complete", "incomplete", "wrong")
    assert state != "complete" or needed <= len(garbage)
    assert needed <= 64 + meeting.longest_key + 2 * meeting.longest_value


@given(one=TEXTS, other=TEXTS)
def test_tokens_are_compared_whole(one: bytes, other: bytes) -> None:
    assert meeting.same_token(one, other) == (one == other)
    assert meeting.same_token(one, one)
    assert not meeting.same_token(one, one + one[:1] + b"x")


@given(texts=st.lists(TEXTS, max_size=5), garbage=st.binary(max_size=40))
def test_texts_are_packed(texts: list[bytes], garbage: bytes) -> None:
    packed = meeting.pack(texts)
    assert meeting.unpack(packed) == texts
    for bad in (garbage, packed + garbage):
        with contextlib.suppress(MismatchError):
            assert sum(map(len, meeting.unpack(bad))) <= len(bad)


# ---- meetings --------------------------------------------------------------------------------------------------------


def meet(make_store: Callable[[], Any], comers: list[tuple[int, int]], timeout: float = SECONDS) -> list[Any]:
    """Return what an exchange gives to processes that come as (rank, size): texts, or the error."""
    with ThreadPoolExecutor(len(comers)) as pool:
        coming: list[Future[Any]] = []
        for number, (rank, size) in enumerate(comers):
            coming.append(pool.submit(make_store().exchange, rank, size, b"from %d" % number, timeout))
        return [each.exception() or each.result() for each in coming]


def test_all_hear_all(anywhere: Callable[[], Any]) -> None:
    for _ in range(3):  # one meeting after the other
        assert meet(anywhere, [(2, 3), (0, 3), (1, 3)]) == [[b"from 1", b"from 2", b"from 0"]] * 3
    assert meet(anywhere, [(0, 1)]) == [[b"from 0"]]


def alike(errors: list[Any], kind: type[Exception]) -> str:
    """Return the sentence of all errors, which are of this kind."""
    assert [type(each) for each in errors] == [kind] * len(errors), errors
    assert len({str(each) for each in errors}) == 1, errors
    return str(errors[0])


def test_missing_ranks_are_named(anywhere: Callable[[], Any]) -> None:
    said = alike(meet(anywhere, [(0, 5), (3, 5), (1, 5)], timeout=0.5), CommunicationTimeoutError)
    assert "no sign of ranks 2, 4" in said
    assert "within 0.5 s (GRADIENTFLOW_TIMEOUT)" in said
    assert alike(meet(anywhere, [(4, 5), (2, 5)]), CommunicationTimeoutError) == said  # who comes late hears of it
    assert len(meet(anywhere, [(r, 5) for r in range(5)])[0]) == 5  # and they may try again


def test_meetings_of_different_kinds_do_not_mix(anywhere: Callable[[], Any]) -> None:
    with ThreadPoolExecutor(2) as pool:
        other = pool.submit(anywhere().exchange, 0, 2, b"one", SECONDS, "one")
        with pytest.raises(CommunicationTimeoutError, match="no sign of rank 0"):
            anywhere().exchange(1, 2, b"other", 0.3, "other")
        anywhere().exchange(1, 2, b"one", SECONDS, "one")
        assert other.result() == [b"one", b"one"]


def test_meetings_leave_next_to_nothing() -> None:
    given = StoreOfProgram()
    for _ in range(3):
        assert len(meet(lambda: python_store(given), [(r, 3) for r in range(3)])[0]) == 3
        alike(meet(lambda: python_store(given), [(0, 3), (1, 3)], timeout=0.1), CommunicationTimeoutError)
        alike(meet(lambda: python_store(given), [(2, 3)]), CommunicationTimeoutError)
        alike(meet(lambda: python_store(given), [(0, 3), (0, 3)]), MismatchError)
        alike(meet(lambda: python_store(given), [(1, 3)]), MismatchError)
        alike(meet(lambda: python_store(given), [(2, 3)]), MismatchError)
    assert len(meet(lambda: python_store(given), [(r, 3) for r in range(3)])[0]) == 3
    last = int(given.values["gradientflow/meeting"])
    assert given.values.keys() == {"gradientflow/meeting", f"gradientflow/{last}/verdict"}


MEETING = """
import sys
if sys.argv[3:]:
    print("started", flush=True)
    sys.stdin.readline()
from gradientflow import _core
print(_core.meet(int(sys.argv[1]), 2, _core.TcpStore(sys.argv[2]), overrides={"timeout": "20"}).size)
"""


def test_processes_that_are_started_after_a_failure(served: Any) -> None:
    """They do not hear of it."""
    said = alike(meet(lambda: served, [(0, 2)], timeout=0.3), CommunicationTimeoutError)
    time.sleep(0.02)  # the system knows to a hundredth of a second when a process began
    processes = [python(MEETING, rank, served.address) for rank in (1, 0)]
    for process in processes:
        output, errors = process.communicate(timeout=60)
        assert output == "2\n", (said, errors)


def test_a_process_that_was_started_before_a_failure(served: Any) -> None:
    """It hears of it, though it has loaded the library afterwards."""
    process = python(MEETING, 1, served.address, "late")
    assert process.stdout is not None
    assert process.stdout.readline() == "started\n"
    time.sleep(0.1)  # the system counts in hundredths of a second
    said = alike(meet(lambda: served, [(0, 2)], timeout=0.3), CommunicationTimeoutError)
    _, errors = process.communicate("\n", timeout=60)
    assert said in errors


def test_two_ranks_with_one_number(anywhere: Callable[[], Any]) -> None:
    said = alike(meet(anywhere, [(0, 4), (1, 4), (1, 4)]), MismatchError)
    assert "two processes were told to be rank 1: process " in said
    assert str(os.getpid()) in said


def test_a_rank_too_many(anywhere: Callable[[], Any]) -> None:
    said = alike(meet(anywhere, [(0, 2), (2, 2)]), MismatchError)
    assert "there is no rank 2 among 2 ranks" in said


def test_different_numbers_of_ranks(anywhere: Callable[[], Any]) -> None:
    said = alike(meet(anywhere, [(0, 3), (1, 4)]), MismatchError)
    assert "the ranks differ about their number: " in said
    assert ("3 on rank 0" in said) == ("4 on rank 1" in said)


@pytest.mark.parametrize(("rank", "size"), [(-1, 2), (0, 0), (0, -1)])
def test_what_no_rank_can_be(served: Any, rank: int, size: int) -> None:
    with pytest.raises(ArgumentError, match="the first is rank 0"):
        served.exchange(rank, size, b"", 1.0)


def store_at(place: str) -> Any:
    return _core.TcpStore(place, timeout=SECONDS) if ":" in place else _core.FileStore(place, timeout=SECONDS)


def introduce(place: str, *ranks: tuple[str, str]) -> list[Any]:
    """Return what ranks hear that listen at these addresses, or cannot for these reasons."""
    with ThreadPoolExecutor(len(ranks)) as pool:
        coming = [
            pool.submit(meeting.introduce, place, rank, len(ranks), address, trouble, SECONDS)
            for rank, (address, trouble) in enumerate(ranks)
        ]
        return [each.exception() or each.result() for each in coming]


def test_introductions(place: str) -> None:
    one, other = introduce(place, ("127.0.0.1:1", ""), ("[::1]:2", ""))
    assert one == other
    assert one[0] == ["127.0.0.1:1", "[::1]:2"]
    assert len(one[1]) == 32
    assert introduce(place, ("127.0.0.1:1", ""), ("[::1]:2", ""))[0][1] != one[1]


def test_a_rank_that_cannot_listen(place: str) -> None:
    said = alike(introduce(place, ("10.0.0.1:1", ""), ("", "no card"), ("10.0.0.1:2", "")), SystemCallError)
    assert said == "rank 1 cannot be reached by others: no card"


def test_an_address_that_a_rank_cannot_use(tmp_path: Path) -> None:
    """Of an interface that no host has: what a rank finds wrong with it alone, all say."""
    said = alike(introduce(f"{tmp_path}/store", ("10.0.0.1:1", ""), ("[fe80::1%nosuch0]:2", "")), MismatchError)
    assert said.startswith("rank 0 cannot connect to all others: 'fe80::1%nosuch0' is no address there: set ")


def test_another_version_of_the_library(place: str) -> None:
    card = meeting.pack(["0.0.7", "whatever", "comes"])
    with ThreadPoolExecutor() as pool:
        other = pool.submit(store_at(place).exchange, 1, 2, card)
        with pytest.raises(MismatchError, match=r"different versions of GradientFlow: .* on rank 0, 0\.0\.7 on rank 1"):
            meeting.introduce(place, 0, 2, "127.0.0.1:1", "", SECONDS)
        other.result()


def test_loopback_is_no_way_between_hosts(place: str) -> None:
    card = meeting.pack([meeting.version, "10.0.0.2:1", "another network", "", "", "0"])
    with ThreadPoolExecutor() as pool:
        other = pool.submit(store_at(place).exchange, 1, 2, card)
        with pytest.raises(MismatchError, match=r"rank 0 listens at 127.0.0.1:1, .* set GRADIENTFLOW_INTERFACE to"):
            meeting.introduce(place, 0, 2, "127.0.0.1:1", "", SECONDS)
        other.result()
        other = pool.submit(store_at(place).exchange, 1, 2, card)
        assert meeting.introduce(place, 0, 2, "10.0.0.1:1", "", SECONDS)[0] == ["10.0.0.1:1", "10.0.0.2:1"]
        other.result()


# ---- endpoints -------------------------------------------------------------------------------------------------------


def meet_natively(size: int, exchange_of: Callable[[int], Any], **overrides: str) -> list[Any]:
    """Return (rank, size, transport) of each endpoint, or the error."""
    overrides = {"timeout": str(SECONDS), **overrides}
    with ThreadPoolExecutor(size) as pool:
        coming = [pool.submit(_core.meet, rank, size, exchange_of(rank), overrides=overrides) for rank in range(size)]
        endpoints = [each.exception() or each.result() for each in coming]
    return [each if isinstance(each, Exception) else (each.rank, each.size, each.transport) for each in endpoints]


def test_an_endpoint_by_a_store(make_store: Callable[[], Any]) -> None:
    for size in (3, 1):
        expected = [(rank, size, "tcp") for rank in range(size)]
        assert meet_natively(size, lambda _: make_store(), transport="tcp") == expected


def test_an_endpoint_by_a_store_of_the_program() -> None:
    store = StoreOfProgram()
    assert meet_natively(3, lambda _: python_store(store)) == [(rank, 3, "tcp") for rank in range(3)]


def test_an_endpoint_of_one_rank() -> None:
    assert meet_natively(1, lambda _: None) == [(0, 1, "tcp")]
    with pytest.raises(ArgumentError, match="2 ranks need a store"):
        _core.meet(0, 2, None)


def test_stores_of_the_program_that_fail() -> None:
    class Failing(StoreOfProgram):
        error: type[Exception]

        def add(self, key: str, amount: int) -> int:
            raise self.error("no more\nof this")

    for error_type, raised in ((RuntimeError, PeerError), (ConnectionResetError, PeerError), (KeyError, KeyError)):
        store = Failing()
        store.error = error_type
        (error,) = meet_natively(1, lambda _, store=store: python_store(store))
        assert isinstance(error, raised)
        if raised is PeerError:
            said = "the store of a test does not answer any more; the rank that serves it may have ended: no more"
            assert str(error) == said
    with pytest.raises(ArgumentTypeError, match="ranks meet at a store, not by 'no'"):
        _core.meet(0, 1, "no")


def test_an_interface_that_is_not_there(served: Any) -> None:
    with ThreadPoolExecutor() as pool:
        store = _core.TcpStore(served.address)
        other = pool.submit(_core.meet, 1, 2, store, overrides={"interface": "nosuch0"})
        with pytest.raises(ArgumentError, match=r"rank 1 cannot be reached .* 'nosuch0'; it has lo"):
            _core.meet(0, 2, served)
        assert isinstance(other.exception(), ArgumentError)


def test_the_end_of_who_serves_the_meeting() -> None:
    process = python(SERVING)
    assert process.stdout is not None
    store = _core.TcpStore(process.stdout.readline().strip(), timeout=SECONDS)
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(_core.meet, 1, 2, store)
        time.sleep(0.2)
        process.kill()
        assert isinstance(waiting.exception(), PeerError)
    process.communicate(timeout=30)


def test_ctrl_c_ends_a_meeting() -> None:
    process = python("""
from gradientflow import _core
store = _core.TcpStore("127.0.0.1:0", serve=True)
print("waiting", flush=True)
try:
    _core.meet(0, 2, store)
except KeyboardInterrupt:
    print("ended")
""")
    assert process.stdout is not None
    process.stdout.readline()
    time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    output, errors = process.communicate(timeout=30)
    assert output == "ended\n", errors


@pytest.mark.usefixtures("patience")
def test_who_serves_waits_for_the_others() -> None:
    """Rank 0 ends as soon as it has met, and a rank that has come hears of the meeting even so."""
    program = """
import sys
from gradientflow import _core
rank, address = int(sys.argv[1]), sys.argv[2]
store = _core.TcpStore(address, serve=rank == 0, timeout=20)
endpoint = _core.meet(rank, 4, store, overrides={"timeout": "20"})
print(endpoint.rank)
"""
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    processes = [python(program, rank, address) for rank in range(4)]
    for rank, process in enumerate(processes):
        output, errors = process.communicate(timeout=60)
        assert output == f"{rank}\n", errors


# ---- addresses -------------------------------------------------------------------------------------------------------

IN_A_NAMESPACE = """
import json, socket, sys
from gradientflow import _core
for near, interface in json.loads(sys.argv[1]):
    try:
        print(json.dumps(_core.own_address(near, {"interface": interface})))
    except Exception as error:
        print(json.dumps(f"{type(error).__name__}: {error}"))
"""
NAMESPACE = ["unshare", "--user", "--map-root-user", "--net", "--uts", "--mount"]
TWO_CARDS = """
ip link set lo up
for i in 0 1; do
    ip link add eth$i type veth peer name other$i; ip link set eth$i up; ip link set other$i up
done
ip address add 10.0.0.5/24 dev eth0
ip address add 192.168.7.5/24 dev eth1; ip address add fd00:7::5/64 dev eth1 nodad
ip link add eth2 type veth peer name other2; ip address add 10.9.0.1/24 dev eth2
"""


@pytest.fixture(scope="module")
def _namespaces() -> None:
    tried = None
    if all(map(shutil.which, ("unshare", "ip"))):
        tried = subprocess.run([*NAMESPACE, "ip", "link", "add", "eth0", "type", "veth"], check=False, timeout=30)
    if tried is None or tried.returncode != 0:
        pytest.skip("no namespaces can be made here")


def own_addresses(script: str, *cases: tuple[str, str]) -> list[str]:
    """Return the address for each (near, interface) in a network of its own."""
    done = subprocess.run(
        [*NAMESPACE, "sh", "-e", "-c", script + 'exec "$@"', "sh", sys.executable, "-c", IN_A_NAMESPACE,
         json.dumps(cases)],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.usefixtures("_namespaces")
def test_the_address_that_leads_to_the_meeting() -> None:
    routed = TWO_CARDS + "ip route add default via 192.168.7.1\n"
    expected = {
        "10.0.0.9:1": "10.0.0.5",
        "192.168.7.9:1": "192.168.7.5",
        "[fd00:7::9]:1": "fd00:7::5",
        "8.8.8.8:1": "192.168.7.5",
        "10.0.0.5:29400": "10.0.0.5",  # here
        "127.0.0.1:1": "127.0.0.1",
        "localhost:1": "127.0.0.1",
        "[2001:db8:1::1]:1,10.0.0.9:1": "10.0.0.5",  # the first to which there is a way
        "": "192.168.7.5",
    }
    assert own_addresses(routed, *((near, "auto") for near in expected)) == list(expected.values())


def test_a_meeting_place_that_is_unknown_here() -> None:
    assert _core.own_address("nowhere.invalid:1") == _core.own_address("")


@pytest.mark.usefixtures("_namespaces")
def test_never_what_the_own_name_resolves_to(tmp_path: Path) -> None:
    (tmp_path / "hosts").write_text("127.0.0.1 localhost\n127.0.1.1 thishost\n")
    named = f"mount --bind {tmp_path}/hosts /etc/hosts; echo thishost > /proc/sys/kernel/hostname\n"
    routed = "ip route add default via 192.168.7.1\n"
    assert own_addresses(TWO_CARDS + named, ("thishost:1", "auto"), ("", "auto")) == ["10.0.0.5", "10.0.0.5"]
    assert own_addresses(TWO_CARDS + routed + named, ("thishost:1", "auto")) == ["192.168.7.5"]


@pytest.mark.usefixtures("_namespaces")
def test_alone_there_is_loopback() -> None:
    assert own_addresses("ip link set lo up\n", ("", "auto"), ("10.0.0.9:1", "auto")) == ["127.0.0.1"] * 2


@pytest.mark.usefixtures("_namespaces")
def test_the_setting_interface() -> None:
    expected = {
        "eth0": "10.0.0.5",
        "eth1": "192.168.7.5",
        "lo": "127.0.0.1",
        "10.0.0.0/24": "10.0.0.5",
        "192.168.0.0/16": "192.168.7.5",
        "fd00:7::/64": "fd00:7::5",
        "fd00:7::5": "fd00:7::5",
        "0.0.0.0/0": "127.0.0.1",
        "eth7,eth1,eth0": "192.168.7.5",  # the first that is there
        "172.16.0.0/12,10.0.0.0/24": "10.0.0.5",
        "^lo": "10.0.0.5",
        "^lo,eth0": "192.168.7.5",
        "^192.168.7.0/24,eth0": "fd00:7::5",
        "^eth7": "10.0.0.5",
    }
    assert own_addresses(TWO_CARDS, *(("10.0.0.9:1", name) for name in expected)) == list(expected.values())
    assert own_addresses(TWO_CARDS, ("192.168.7.9:1", "^lo")) == ["192.168.7.5"]  # which leads to the meeting
    for name in ("eth2", "eth7", "10.0.1.0/24", "fd00:8::/64", "eth2,eth7"):  # eth2 is down
        (said,) = own_addresses(TWO_CARDS, ("", name))
        assert said.startswith("ArgumentError: interface (GRADIENTFLOW_INTERFACE): ")
        assert f"this host has no address of '{name}'" in said
        assert "eth0 (10.0.0.5), eth1 (192.168.7.5)" in said
    (said,) = own_addresses(TWO_CARDS, ("", "^eth0,eth1"))
    assert "this host has no address of '^eth0,eth1'; it has eth0 (10.0.0.5), " in said
    for name in ("10.0.0.0/33", "10.0.0.0/", "eth0/24", "fd00::/129", "lo,10.0.0.0/33"):
        (said,) = own_addresses(TWO_CARDS, ("", name))
        assert "is no network, such as 10.0.0.0/24" in said
