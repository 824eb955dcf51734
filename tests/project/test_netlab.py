"""Hosts made on this machine: jobs run across them, links are what they should be, and nothing of them stays."""

from __future__ import annotations

import contextlib
import os
import pty
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from jobs import Finished
from pace import wait_until

from gradientflow.launch import module_command
from gradientflow.netlab import Netlab, NetlabError, parse_link_down

Start = Callable[..., Any]

PLACES = """
import socket
from mpi4py import MPI
import gradientflow as gf
name = socket.gethostname()
places = MPI.COMM_WORLD.gather(f"{name}={socket.gethostbyname(name)}")
with gf.init() as comm:
    if places is not None:
        print(*places, *comm.describe()["nodes"], sep="|")
"""
PLACES_WITHOUT_MPI = """
echo $(hostname) $GRADIENTFLOW_RANK $LOCAL_RANK $LOCAL_WORLD_SIZE ${GRADIENTFLOW_MEET%:*} $(ip -brief addr show eth0)
"""
SILENT = """
import subprocess, time
from mpi4py import MPI
shown = ["ip", "-brief", "link", "show", "eth0"]
host = MPI.Get_processor_name()
end = time.monotonic() + 20
while "DOWN" not in subprocess.check_output(shown, text=True) and host == "host1" and time.monotonic() < end:
    time.sleep(0.05)
print(host, subprocess.check_output(shown, text=True).split()[1], flush=True)
"""


def sleeping(number: int) -> int:
    """Count the processes on this machine that sleep by a command of ours."""
    found = 0
    for folder in Path("/proc").iterdir():
        if folder.name.isdecimal():
            with contextlib.suppress(OSError):
                found += (folder / "cmdline").read_bytes() == b"sleep\0%s\0" % a_while(number).encode()
    return found


def a_while(number: int) -> str:
    """Give seconds to sleep that no other test has."""
    return f"{100 + number}.{os.getpid()}"


@pytest.fixture(autouse=True)
def _nothing_is_left() -> Iterator[None]:
    """Check that this machine's interfaces stay as they are, and that no namespace has got a name."""

    def look() -> tuple[list[str], list[str]]:
        mounts = Path("/proc/self/mountinfo").read_text(encoding="utf-8").splitlines()
        return sorted(os.listdir("/sys/class/net")), [mount for mount in mounts if "nsfs" in mount]

    before = look()
    yield
    assert look() == before


# ---- jobs ------------------------------------------------------------------------------------------------------------


def test_hosts_are_nodes_and_have_names_and_addresses(start_netlab: Start, tmp_path: Path) -> None:
    program = tmp_path / "with space.py"
    program.write_text(PLACES)
    finished = start_netlab("--hosts", "3", "--ranks-per-host", "2", str(program)).finish()
    assert finished.returncode == 0, finished.output
    places = finished.stdout.strip().split("|")
    assert places[:6] == [f"host{number}=10.0.0.{number + 1}" for number in (0, 0, 1, 1, 2, 2)]
    assert places[6:] == ["[0, 1]", "[2, 3]", "[4, 5]"]


@pytest.mark.thorough
@pytest.mark.parametrize("transport", ["mpi", "tcp"])
def test_the_library_is_right_across_hosts(netlab_run: Start, transport: str) -> None:
    env = {"GRADIENTFLOW_TRANSPORT": transport}
    netlab_run(2, 2, "collectives", "wrapping", "auto", rate="1gbit", env=env)


@pytest.mark.thorough
def test_ranks_have_the_environment_of_the_command(start_netlab: Start, tmp_path: Path) -> None:
    program = tmp_path / "places.py"
    program.write_text(PLACES)
    arguments = ("--hosts", "1", "--ranks-per-host", "2", str(program))
    finished = start_netlab(*arguments, env={"GRADIENTFLOW_NODE_SIZE": "1"}).finish()
    assert finished.stdout.strip() == "host0=10.0.0.1|host0=10.0.0.1|[0]|[1]", finished.output


DELAYED = """
import time
import numpy as np
import gradientflow as gf
with gf.init() as comm:
    values = np.arange(200_000) + comm.rank
    begin = time.monotonic()
    for _ in range(3):
        comm.barrier()
    seconds = time.monotonic() - begin
    comm.allreduce(values)
    if comm.rank == 0:
        print(seconds, bool((values == 3 * np.arange(200_000) + 3).all()))
"""


@pytest.mark.thorough
def test_what_a_host_sends_is_under_way_for_so_long(start_netlab: Start) -> None:
    rest = ("--transport", "tcp", "--", sys.executable, "-c", DELAYED)
    finished = start_netlab("--hosts", "3", "--rate", "1gbit", "--delay", "30ms", *rest).finish()
    assert finished.returncode == 0, finished.output
    seconds, right = finished.stdout.split()
    assert float(seconds) > 3 * 0.03
    assert right == "True"


@pytest.mark.thorough
def test_hosts_without_mpi(start_netlab: Start) -> None:
    arguments = ("--hosts", "2", "--ranks-per-host", "2", "--transport", "tcp", "--", "sh", "-c", PLACES_WITHOUT_MPI)
    finished = start_netlab(*arguments).finish()
    assert finished.returncode == 0, finished.output
    ranks = [line.split() for line in sorted(finished.stdout.splitlines())]
    places = [(0, 0), (0, 1), (1, 0), (1, 1)]  # the host of each rank, and its place there
    assert [rank[:5] for rank in ranks] == [
        [f"host{host}", str(rank), str(local), "2", "host0"] for rank, (host, local) in enumerate(places)
    ]
    assert [f"10.0.0.{host + 1}/24" in rank for rank, (host, _) in zip(ranks, places, strict=True)] == [True] * 4
    ended = start_netlab("--hosts", "2", "--transport", "tcp", "--", "sh", "-c", "exit $((RANK * 7))").finish()
    assert ended.returncode == 7, ended.output


def allowed() -> str:
    """Return what the system says of the cores that this process may use."""
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    return next(line for line in status.splitlines() if line.startswith("Cpus_allowed:"))


@pytest.mark.thorough
@pytest.mark.parametrize("transport", ["tcp", "mpi"])
def test_ranks_of_hosts_share_all_cores(start_netlab: Start, transport: str) -> None:
    arguments = ("--hosts", "2", "--ranks-per-host", "2", "--transport", transport)
    finished = start_netlab(*arguments, "--", "grep", "Cpus_allowed:", "/proc/self/status").finish()
    assert finished.stdout.splitlines() == [allowed()] * 4, finished.output


def test_the_exit_status_is_passed_on(start_netlab: Start) -> None:
    assert start_netlab("--hosts", "2", "--", "sh", "-c", "exit 7").finish().returncode == 7
    assert start_netlab("--hosts", "2", "--shell", "--", "sh", "-c", "exit 8").finish().returncode == 8


@pytest.mark.thorough
def test_programs_that_end_at_once_do_not_hang(start_netlab: Start) -> None:
    for _ in range(4):
        assert start_netlab("--hosts", "3", "true", timeout=20).finish().returncode == 0


@pytest.mark.thorough
@pytest.mark.usefixtures("_hosts_can_be_made")
def test_rank_0_reads_standard_input() -> None:
    command = module_command("gradientflow.cli", ["netlab", "--hosts", "2", "--", "sh", "-c", "read x; echo $x"])
    ended = subprocess.run(command, input="a b\n", capture_output=True, text=True, timeout=60, check=False)
    assert sorted(ended.stdout.splitlines()) == ["", "a b"]


@pytest.mark.thorough
def test_benchmarks_run_on_hosts(start_netlab: Start) -> None:
    bench = module_command("gradientflow.cli", ["bench", "allreduce", "--sizes", "64K", "--iterations", "2"])
    finished = start_netlab("--hosts", "2", "--", *bench).finish()
    assert finished.returncode == 0, finished.output
    assert "2 ranks on 2 nodes" in finished.stdout
    assert ", the job's messages over TCP (no host has an RDMA device)" in finished.stdout


# ---- hosts and links -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rate", "limit"),
    [
        ("1gbit", "rate 1Gbit burst 70000b "),
        pytest.param("200mbit", "rate 200Mbit burst 70000b ", marks=pytest.mark.thorough),
        pytest.param("10gbit", "rate 10Gbit burst 1[56]....b ", marks=pytest.mark.thorough),  # tc rounds it
        pytest.param("none", None, marks=pytest.mark.thorough),
    ],
)
def test_links_have_the_rate(start_netlab: Start, rate: str, limit: str | None) -> None:
    look = "tc qdisc show dev eth0; tc qdisc show dev ctl0"
    finished = start_netlab("--hosts", "2", "--rate", rate, "--", "sh", "-c", look).finish()
    assert finished.returncode == 0, finished.output
    limits = [line for line in finished.stdout.splitlines() if "noqueue" not in line]
    assert len(limits) == (2 if limit else 0)
    assert all(re.search(f"qdisc tbf .* {limit}", line) for line in limits)


@pytest.mark.thorough
def test_the_shell_starts_jobs_and_single_commands_on_hosts(start_netlab: Start) -> None:
    steps = """
        echo "$NETLAB_HOSTS"
        mpirun -n 4 sh -c 'sleep 0.1; hostname' | sort | tr '\\n' ' '; echo
        mpirun -n 1 sh -c 'sleep 0.1; grep Cpus_allowed: /proc/self/status'
        gradientflow run -n 4 --hosts "$NETLAB_HOSTS" -- grep Cpus_allowed: /proc/self/status | sort -u
        $NETLAB_AGENT host1 'hostname; pwd'
        $NETLAB_AGENT host2 true || echo status $?
    """
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    arguments = ("--hosts", "2", "--ranks-per-host", "2", "--shell", "--", "sh", "-c", steps)
    finished = start_netlab(*arguments, env={"PATH": path}).finish()
    assert finished.stdout.splitlines() == [
        "10.1.0.1:2,10.1.0.2:2",
        "host0 host0 host1 host1 ",
        allowed(),
        allowed(),
        "host1",
        os.getcwd(),
        "status 2",
    ], finished.output
    assert "this netlab has no host host2" in finished.stderr


@pytest.mark.thorough
def test_a_link_goes_down(start_netlab: Start, tmp_path: Path) -> None:
    program = tmp_path / "silent.py"
    program.write_text(SILENT)
    finished = start_netlab("--hosts", "3", "--link-down", "host1@0.5", str(program)).finish()
    assert finished.returncode == 0, finished.output
    assert sorted(finished.stdout.splitlines()) == ["host0 UP", "host1 DOWN", "host2 UP"]


@pytest.mark.thorough
def test_several_at_once_do_not_meet(start_netlab: Start, tmp_path: Path) -> None:
    program = tmp_path / "places.py"
    program.write_text(PLACES.replace("name = ", "import time; time.sleep(1); name = ", 1))
    jobs = [start_netlab("--hosts", "2", str(program)) for _ in range(2)]
    for finished in [job.finish() for job in jobs]:
        assert finished.returncode == 0, finished.output
        assert finished.stdout.strip() == "host0=10.0.0.1|host1=10.0.0.2|[0]|[1]"


# ---- the end ---------------------------------------------------------------------------------------------------------


# What runs on a host carries the tag of its job, so that ``finish`` finds whatever is left. A namespace without a name
# is gone with the last process in it.


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("sent", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129), (signal.SIGKILL, -9)]
)
def test_a_signal_removes_everything(start_netlab: Start, sent: signal.Signals, status: int) -> None:
    job = start_netlab("--hosts", "3", "sleep", a_while(1))
    wait_until(lambda: sleeping(1) == 3)
    job.process.send_signal(sent)
    assert job.finish().returncode == status


@pytest.mark.thorough
def test_a_signal_at_any_time_removes_everything(start_netlab: Start) -> None:
    for tenths in (1, 3, 5, 7):
        job = start_netlab("--hosts", "3", "sleep", a_while(2))
        time.sleep(tenths / 10)
        job.process.terminate()
        assert job.finish().returncode in (143, -signal.SIGTERM)


@pytest.mark.thorough
def test_ctrl_c_at_a_terminal_removes_everything(start_netlab: Start) -> None:
    other = start_netlab("--hosts", "1", "--shell", "sleep", a_while(3))
    script = f"echo begun; sleep {a_while(4)}"
    command = module_command("gradientflow.cli", ["netlab", "--hosts", "2", "sh", "-c", script])
    pid, terminal = pty.fork()
    if pid == 0:
        os.execv(command[0], command)
    wait_until(lambda: sleeping(4) == 2)
    os.write(terminal, b"\x03")
    said = b""
    with contextlib.suppress(OSError):  # how Linux says that nobody is left at the other end
        while data := os.read(terminal, 4096):
            said += data
    os.close(terminal)
    assert b"gradientflow: ended by Ctrl-C, with all ranks" in said
    assert b"Traceback" not in said
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 130
    assert (sleeping(3), sleeping(4)) == (1, 0)
    other.process.terminate()
    assert other.finish().returncode == 143


@pytest.mark.thorough
def test_what_a_killed_netlab_left_can_be_removed(start_netlab: Start) -> None:
    other = start_netlab("--hosts", "1", "--shell", "sleep", a_while(5))
    job = start_netlab("--hosts", "2", "--shell", "--", "sh", "-c", f"setsid sleep {a_while(6)} & wait")
    wait_until(lambda: (sleeping(5), sleeping(6)) == (1, 1))
    job.process.kill()
    job.process.wait()
    wait_until(lambda: len(job.processes()) == 1)  # the hosts went at once; what was started beside them goes on
    assert start_netlab("--clean").finish().stdout == "processes ended: 1\n"
    assert job.processes() == []
    assert sleeping(5) == 1
    other.process.terminate()
    assert other.finish().returncode == 143


# ---- refusals --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "fragment"),
    [
        (("--hosts", "0", "true"), "--hosts takes 1 to 250, not 0"),
        (("--hosts", "251", "true"), "--hosts takes 1 to 250, not 251"),
        (("--hosts", "2", "--ranks-per-host", "0", "true"), "--ranks-per-host takes 1 or more, not 0"),
        (("--hosts", "2", "--rate", "fast", "true"), "not 'fast'"),
        (("--hosts", "2", "--rate", "0gbit", "true"), "not '0gbit'"),
        (("--hosts", "2", "--rate", "7bit", "true"), "from 8bit to 100tbit, or none, not '7bit'"),
        (("--hosts", "2", "--rate", "101tbit", "true"), "from 8bit to 100tbit, or none, not '101tbit'"),
        (("--hosts", "2", "--delay", "5", "true"), "--delay takes a time such as 5ms, up to 10s, not '5'"),
        (("--hosts", "2", "--delay", "11s", "true"), "not '11s'"),
        (("--hosts", "2", "--link-down", "1", "true"), "HOST@SECONDS, such as host0@2.5, not '1'"),
        (("--hosts", "2", "--link-down", "2@1", "true"), "hosts are host0 to host1"),
        (("--hosts", "2", "no-such-program"), "there is no program no-such-program"),
        (("--hosts", "2", "no-such-file.py"), "there is no file no-such-file.py"),
        (("--hosts", "2"), "say how many hosts to make and what to run"),
        (("true",), "say how many hosts to make and what to run"),
        (("--clean", "true"), "--clean runs nothing"),
    ],
)
def test_what_cannot_work_is_refused(
    command_line: Callable[..., Finished], arguments: tuple[str, ...], fragment: str
) -> None:
    ended = command_line("netlab", *arguments)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert fragment in ended.stderr


def test_a_rank_cannot_make_hosts(command_line: Callable[..., Finished], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "2")
    assert "this is already a rank of a job of 2" in command_line("netlab", "--hosts", "2", "true").stderr


def test_only_root_can_make_hosts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(NetlabError, match="only root can make hosts"), Netlab(2):
        pass


@pytest.mark.parametrize(("program", "package"), [("tc", "iproute2"), ("nsenter", "util-linux")])
def test_a_missing_program_is_named(monkeypatch: pytest.MonkeyPatch, program: str, package: str) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(shutil, "which", lambda name, path: None if name == program else name)
    with pytest.raises(NetlabError, match=f"the program {program}, which is not on the PATH: install {package}"):
        Netlab(2).__enter__()


def test_a_kernel_that_refuses_is_quoted() -> None:
    weak = ("setpriv", "--bounding-set", "-sys_admin", "--inh-caps", "-sys_admin")
    if os.geteuid() != 0 or shutil.which(weak[0]) is None:
        pytest.skip("needs root, and setpriv to give up a capability")
    command = [*weak, *module_command("gradientflow.cli", ["netlab", "--hosts", "2", "true"])]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    assert ended.returncode == 2
    assert "the kernel does not let this process make hosts (unshare: " in ended.stderr
    assert len([line for line in ended.stderr.splitlines() if "without MPI, " not in line]) == 1


@pytest.mark.usefixtures("_hosts_can_be_made")
def test_nothing_is_left_when_hosts_cannot_be_joined(monkeypatch: pytest.MonkeyPatch) -> None:
    lab = Netlab(2, "1gbit")
    monkeypatch.setattr(lab, "_limit", "rate nonsense")
    with pytest.raises(NetlabError, match=r"the hosts cannot be joined \(tc: "), lab:
        pass
    children = Path(f"/proc/self/task/{os.getpid()}/children").read_text(encoding="ascii").split()
    commands = [Path(f"/proc/{child}/comm").read_text(encoding="utf-8").strip() for child in children]
    assert "unshare" not in commands


@pytest.mark.usefixtures("_hosts_can_be_made")
@pytest.mark.parametrize(("program", "words"), [("", ""), ("raise SystemExit('a\\nb')", "b")])
def test_a_delay_that_cannot_be_made_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, program: str, words: str
) -> None:
    switch = tmp_path / "switch.py"
    switch.write_text(program, encoding="utf-8")
    monkeypatch.setattr("gradientflow.netlab.lab._SWITCH", switch)
    with (
        pytest.raises(NetlabError, match=rf"no link with a delay can be made here \({words}\)"),
        Netlab(1, delay="1ms"),
    ):
        pass


def test_link_down_is_read() -> None:
    assert parse_link_down("host1@2.5", 2) == (1, 2.5)
    assert parse_link_down("0@10", 2) == (0, 10)


@pytest.mark.thorough
@pytest.mark.usefixtures("_hosts_can_be_made")
def test_settings_have_the_names_of_the_launchers_version(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMPI_MCA_btl", "^ofi")  # as a process has it that has made a communicator
    with Netlab(2) as lab:
        of_4, of_5 = lab.environment("4.1.4"), lab.environment("5.0.11")
    assert of_4["OMPI_MCA_plm_rsh_agent"] == of_5["PRTE_MCA_plm_ssh_agent"] == of_4["NETLAB_AGENT"]
    assert not [name for name in of_4 if name.startswith("PRTE")]
    assert "vader" in of_4["OMPI_MCA_btl"]
