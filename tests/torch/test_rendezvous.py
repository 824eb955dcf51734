"""How ranks meet by stores of PyTorch, and what they hear where others fail."""

from __future__ import annotations

import contextlib
import hashlib
import os
import signal
import socket
import subprocess
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from jobs import Job, free_port, write
from pace import wait_until

from gradientflow.errors import (
    ArgumentTypeError,
    CommunicationError,
    CommunicationTimeoutError,
    GradientFlowError,
)
from gradientflow.launch import module_command
from gradientflow.meeting import MeetingPlan, find_plan
from gradientflow.meeting.endpoints import meet
from gradientflow.meeting.passed_store import core_store
from gradientflow.meeting.plan import ARGUMENTS, MASTER
from gradientflow.meeting.stores import open_store

torch = pytest.importorskip("torch")
dist: Any = torch.distributed

Start = Callable[..., Job]

SECONDS = 20.0  # of a wait that is expected to end long before


def tcp_store() -> Any:
    limit = timedelta(seconds=SECONDS)
    return dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=limit)


@pytest.fixture(params=["TCPStore", "FileStore", "HashStore", "PrefixStore"])
def make_store(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[], Any]:
    """Give a function that makes one more store of the same values."""
    if request.param == "FileStore":
        return lambda: dist.FileStore(str(tmp_path / "store"), 3)
    if request.param == "HashStore":
        shared = dist.HashStore()
        return lambda: shared
    served = tcp_store()
    if request.param == "PrefixStore":
        return lambda: dist.PrefixStore("a", dist.PrefixStore("b", served.clone()))
    return lambda: served.clone()


def come(store: Any, rank: int, size: int, timeout: float = SECONDS) -> tuple[int, int]:
    endpoint = meet(MeetingPlan(ARGUMENTS, "tcp", rank, size), {"timeout": str(timeout)}, store=store)
    return endpoint.rank, endpoint.size


def test_ranks_try_again_after_a_meeting_that_has_failed(make_store: Callable[[], Any]) -> None:
    """Who came too late hears of it, and is in step with the others from then on."""
    with pytest.raises(CommunicationTimeoutError, match=r"did not meet at the .*Store.*: no sign of rank 1") as first:
        come(make_store(), 0, 2, timeout=0.5)
    with pytest.raises(CommunicationTimeoutError) as late:
        come(make_store(), 1, 2)
    assert str(late.value) == str(first.value)
    for _ in range(3):
        with ThreadPoolExecutor(2) as pool:
            assert list(pool.map(lambda rank: come(make_store(), rank, 2), range(2))) == [(0, 2), (1, 2)]


def test_two_jobs_at_one_master_do_not_meet() -> None:
    """As two steps with one MASTER_PORT on a node: the rank of the other one waits for its own."""
    shared = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    shared |= {"SLURM_JOB_ID": "7", "SLURM_STEP_NUM_TASKS": "2"}

    def rank_of(step: str, rank: int, timeout: float = SECONDS) -> tuple[int, int]:
        place = {"SLURM_STEP_ID": step, "SLURM_PROCID": str(rank), "RANK": str(rank)}
        endpoint = meet(find_plan({**shared, **place}), {"timeout": str(timeout)})
        return endpoint.rank, endpoint.size

    with ThreadPoolExecutor() as pool:
        first = pool.submit(rank_of, "1", 0)
        with pytest.raises(CommunicationTimeoutError, match="no sign of rank 0"):
            rank_of("2", 1, timeout=1)
        assert rank_of("1", 1) == (1, 2)
        assert first.result() == (0, 2)


def test_an_address_of_the_master_that_nobody_knows() -> None:
    """One sentence, and none of PyTorch's calls in C++."""
    variables = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "nowhere.invalid", "MASTER_PORT": "29500"}
    said = "^the ranks cannot meet at PyTorch's store, at nowhere.invalid:29500 .*: the name nowhere.invalid is unknown"
    with pytest.raises(CommunicationError, match=said) as caught:
        open_store(find_plan(variables), 60)
    assert "\n" not in str(caught.value)
    assert caught.value.__suppress_context__


def test_what_is_no_store() -> None:
    with pytest.raises(ArgumentTypeError, match="this dict has no set and no add and no compare_set"):
        core_store({}, serve=False)


def test_names_of_stores(tmp_path: Path) -> None:
    served = tcp_store()
    prefixed = dist.PrefixStore("a", dist.PrefixStore("b", served))
    assert repr(core_store(prefixed, serve=False)) == f"<the TCPStore at 127.0.0.1:{served.port}>"
    assert repr(core_store(dist.FileStore(str(tmp_path / "store"), 1), serve=False)) == "<the FileStore>"


def test_a_group_looks_for_an_address_that_leads_to_its_store(monkeypatch: pytest.MonkeyPatch) -> None:
    from gradientflow.torch.process_group.create import _towards

    class Elsewhere:
        host, port = "fd00::1", 4000

    class Here:
        host, port = "127.0.0.1", 4000

    class Prefix:
        def __init__(self, store: Any) -> None:
            self.underlying_store = store

    for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    assert _towards(Prefix(Prefix(Elsewhere()))) == "[fd00::1]:4000"
    assert _towards(Here()) == _towards(dist.HashStore()) == ""
    monkeypatch.setenv("RANK", "1")  # which is no way, and not asked for
    assert _towards(Here()) == ""
    monkeypatch.setenv("GRADIENTFLOW_MEET", "10.0.0.1:29400")
    monkeypatch.setenv("GRADIENTFLOW_RANK", "0")
    monkeypatch.setenv("GRADIENTFLOW_SIZE", "2")
    assert _towards(Here()) == "10.0.0.1:29400"
    assert _towards(Elsewhere()) == "[fd00::1]:4000"


def test_a_host_with_a_name_that_cannot_be_looked_up_has_addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    from gradientflow.torch.process_group.rendezvous import _own_addresses

    own = _own_addresses()
    monkeypatch.setattr(socket, "gethostname", lambda: "a" * 64)
    assert {*_own_addresses()} <= {*own}


def test_a_forked_process_has_a_connection_of_its_own() -> None:
    served = tcp_store()
    plan = MeetingPlan(MASTER, "tcp", 1, 2, (f"127.0.0.1:{served.port}",), agent=True)
    store = open_store(plan, SECONDS)
    assert open_store(plan, SECONDS) is store
    pid = os.fork()
    if pid == 0:
        try:
            own = open_store(plan, SECONDS)
            assert own is not store
            for _ in range(500):
                own.add("sum", 1)
            os._exit(0)
        finally:
            os._exit(1)
    try:
        for _ in range(500):
            store.add("sum", 1)
        assert os.waitpid(pid, 0)[1] == 0
        pid = 0
        assert store.add("sum", 0) == 1000
    finally:
        if pid:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


@pytest.fixture
def start(process_command: Callable[[Path], list[str]], start_command: Start, tmp_path: Path) -> Start:
    """Give ``start(program, *arguments, **variables)``, which starts a process."""

    def run(program: str, *arguments: object, **variables: object) -> Job:
        given = {name: str(value) for name, value in variables.items()}
        path = write(tmp_path / f"{hashlib.sha256(program.encode()).hexdigest()[:8]}.py", program)
        return start_command([*process_command(path), *map(str, arguments)], given)

    return run


GROUP = """
import sys
from datetime import timedelta
import torch
import torch.distributed as dist
place, rank = sys.argv[1:]
dist.init_process_group("gradientflow", init_method=place, rank=int(rank), world_size=2, timeout=timedelta(seconds=20))
x = torch.ones(3)
dist.all_reduce(x)
print(x.sum().item())
dist.destroy_process_group()
"""


def test_arguments_need_no_variables(start: Start) -> None:
    """Whatever is said by variables, also by some that are no way to meet."""
    place = f"tcp://127.0.0.1:{free_port()}"
    variables = ({"RANK": 1}, {"GRADIENTFLOW_MEET": "nowhere.invalid:1", "SLURM_STEP_ID": 0, "SLURM_STEP_NUM_TASKS": 2})
    processes = [start(GROUP, place, rank, **variables[rank]) for rank in range(2)]
    for process in processes:
        ended = process.finish()
        assert ended.stdout == "6.0\n", ended.output


def test_the_store_ends_before_the_ranks_have_met(start: Start) -> None:
    program = """
import sys
import gradientflow as gf
from gradientflow.errors import CommunicationError
try:
    gf.init()
except CommunicationError as error:
    print(error)
"""
    serving = """
import sys, time
from datetime import timedelta
import torch.distributed as dist
store = dist.TCPStore("127.0.0.1", int(sys.argv[1]), is_master=True, wait_for_workers=False)
store.get(sys.argv[2])  # once rank 1 has come
"""
    port = free_port()
    variables = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    other = start(serving, port, f"{find_plan(variables).prefix}/1/1")
    process = start(program, **variables)
    ended = process.finish()
    said = f"PyTorch's store at 127.0.0.1:{port} does not answer any more; the rank that"
    assert ended.stdout.startswith(said), ended.output
    assert ended.stdout.count("\n") == 1
    other.finish()


WAITING = """
import sys
from datetime import timedelta
import torch.distributed as dist
from gradientflow.errors import CommunicationTimeoutError
{before}
try:
    dist.init_process_group("gradientflow", timeout=timedelta(seconds=0.5))
except CommunicationTimeoutError as error:
    print(error, flush=True)
"""


def test_a_group_does_not_take_a_rank_of_another_job(start: Start) -> None:
    """PyTorch's own rendezvous would: its store counts who comes."""
    port = free_port()
    shared = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    shared |= {"SLURM_JOB_ID": "7", "SLURM_STEP_NUM_TASKS": "2"}
    first = start(
        WAITING.format(before="").replace("0.5", "60"), **shared, SLURM_STEP_ID="1", SLURM_PROCID="0", RANK="0"
    )
    wait_until(lambda: answers(port), 60)
    other = start(WAITING.format(before=""), **shared, SLURM_STEP_ID="2", SLURM_PROCID="1", RANK="1")
    ended = other.finish()
    assert "(timeout of init_process_group): no sign of rank 0" in ended.stdout, ended.output
    assert first.process.poll() is None


def answers(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
        return True
    return False


def test_the_timeout_of_a_process_group(process_command: Callable[[Path], list[str]], tmp_path: Path) -> None:
    """The other rank ends without a word; the error is about the process group, and about nothing inside."""
    waiting = WAITING.format(before="import os\nif os.environ['RANK'] == '1': sys.exit()")
    program = write(tmp_path / "program.py", waiting)
    command = module_command(
        "gradientflow.cli", ["run", "-n", "2", "--transport", "tcp", "--", *process_command(program)]
    )
    ended = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert "did not meet at the store at 127.0.0.1" in ended.stdout, ended.stderr
    assert "within 0.5 s (timeout of init_process_group): no sign of rank 1" in ended.stdout
    assert "gradientflow/" not in ended.stdout


def test_errors_are_those_of_the_library(make_store: Callable[[], Any]) -> None:
    for rank, size in ((-1, 2), (0, 0)):
        with pytest.raises(GradientFlowError, match="the first is rank 0"):
            come(make_store(), rank, size)
