"""Starting MPI jobs from tests, and making sure that nothing of them stays behind."""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import cuda_emulator
import pytest

from gradientflow._location import PACKAGE
from gradientflow.launch import (
    OPEN_MPI,
    SESSION_FOLDER,
    Launcher,
    find_launcher,
    launch_environment,
    module_command,
    mpirun_command,
)

RANK_PROGRAMS = Path(__file__).resolve().parent / "programs"
TAG = "GRADIENTFLOW_TEST_JOB"  # a variable of the environment of every process of a job
ENDING_SECONDS = 5.0  # what the kernel and the launcher may take to clear away a job that has ended


@dataclass(frozen=True)
class Finished:
    """What a job left: its exit status and what its ranks printed."""

    returncode: int
    stdout: str
    stderr: str

    @property
    def output(self) -> str:
        return f"exit status {self.returncode}\n--- stdout\n{self.stdout}\n--- stderr\n{self.stderr}"

    def line(self, start: str) -> str:
        """Return the rest of the only line that starts so."""
        found = [line.removeprefix(start) for line in self.stdout.splitlines() if line.startswith(start)]
        assert len(found) == 1, f"expected one line that starts with {start!r}\n{self.output}"
        return found[0].strip()


@dataclass
class Job:
    """One mpirun or netlab under way, in a session of its own."""

    process: subprocess.Popen[str]
    tag: str
    timeout: float
    folder: tempfile.TemporaryDirectory[str]
    recover: bool | str = False
    started: float = field(default_factory=time.monotonic)

    def processes(self) -> list[int]:
        """List the processes that carry this job's tag: the launcher, the ranks, and whatever they started."""
        wanted = f"{TAG}={self.tag}".encode()
        found = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdecimal():
                with contextlib.suppress(OSError):
                    if wanted in (entry / "environ").read_bytes().split(b"\0"):
                        found.append(int(entry.name))
        return found

    def finish(self) -> Finished:
        """Wait for the end; kill the job where it takes too long. No process may be left either way."""
        late = False
        while True:
            try:
                stdout, stderr = self.process.communicate(timeout=1)
                break
            except subprocess.TimeoutExpired:
                # A launcher that goes on after a rank has died sometimes does not notice that the others have ended.
                launcher_hangs = self.recover and set(self.processes()) <= {self.process.pid}
                late = not launcher_hangs and time.monotonic() > self.started + self.timeout
                if late or launcher_hangs:
                    self.kill()
        finished = Finished(self.process.returncode, stdout, stderr)
        deadline = time.monotonic() + ENDING_SECONDS
        while (left := self.processes()) and time.monotonic() < deadline:
            time.sleep(0.02)
        commands = [_command_of(pid) for pid in left]
        self.close()
        if late:
            pytest.fail(f"the job had not ended after {self.timeout} s\n{finished.output}")
        if left:
            pytest.fail(f"processes are left after the job: {commands}\n{finished.output}")
        return finished

    def kill(self) -> None:
        """Kill what is left: the session of the launcher, and the ranks, which have process groups of their own."""
        with contextlib.suppress(ProcessLookupError):
            if self.process.poll() is None:
                os.killpg(self.process.pid, signal.SIGKILL)
        for pid in self.processes():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def close(self) -> None:
        """Leave nothing behind: no process, no pipe, no file of the launcher."""
        self.kill()
        self.process.communicate()
        self.folder.cleanup()


def _start(
    command: list[str],
    env: dict[str, str] | None,
    timeout: float,
    *,
    recover: bool | str = False,
    cwd: Path | None = None,
) -> Job:
    """Start a command under a tag of its own, without settings of the library from outside."""
    tag = uuid.uuid4().hex
    outside = {name: value for name, value in os.environ.items() if not name.startswith("GRADIENTFLOW_")}
    folder = tempfile.TemporaryDirectory(prefix="gradientflow-test-", ignore_cleanup_errors=True)
    process = subprocess.Popen(
        command,
        cwd=cwd,
        env={SESSION_FOLDER: folder.name, **outside, "OMP_NUM_THREADS": "1", **(env or {}), TAG: tag},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        start_new_session=True,
    )
    return Job(process, tag, timeout, folder, recover)


def _rank_command(
    launcher: Launcher, ranks: int, program: str, arguments: tuple[object, ...], recover: bool | str
) -> list[str]:
    """Write the command line that starts tests/programs/<program>.py; `recover` as of `start_job`."""
    command = mpirun_command(
        launcher, ranks, [sys.executable, str(RANK_PROGRAMS / f"{program}.py"), *map(str, arguments)]
    )
    if recover:
        if launcher.library != OPEN_MPI:
            pytest.skip(f"{launcher.library}'s launcher ends all ranks when one dies")
        command[1:1] = ["--with-ft", "ulfm"] if recover == "ulfm" else ["--enable-recovery"]
    return command


def _command_of(pid: int) -> str:
    try:
        return f"{pid}: " + Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return f"{pid}: ended meanwhile"


@pytest.fixture(scope="session")
def launcher() -> Launcher:
    """Find the launcher that belongs to the MPI library in use."""
    return find_launcher()


@pytest.fixture(scope="session")
def cuda_devices() -> int:
    """Count this machine's CUDA devices, in another process: one has real devices or emulated ones, not both."""
    program = "from gradientflow._location import load_core; print(load_core().device.count())"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    return int(done.stdout)


@pytest.fixture(scope="session")
def emulated_cuda(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> Path:
    """Build the library that emulates a CUDA device, once for all workers, for GRADIENTFLOW_CUDA_LIBRARY."""
    base = tmp_path_factory.getbasetemp()
    folder = (base if worker_id == "master" else base.parent) / "cuda-emulator"
    folder.mkdir(exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        library = folder / cuda_emulator.NAME
        return library if library.exists() else cuda_emulator.build(folder, PACKAGE / "lib")


@pytest.fixture(scope="session")
def device_env(cuda_devices: int, request: pytest.FixtureRequest) -> dict[str, str]:
    """What a job that uses CUDA devices needs in its environment: nothing, or emulated devices where there are none."""
    if cuda_devices > 0:
        return {}
    return {"GRADIENTFLOW_CUDA_LIBRARY": str(request.getfixturevalue("emulated_cuda"))}


@pytest.fixture
def start_job(launcher: Launcher) -> Iterator[Callable[..., Job]]:
    """Give ``start_job(n, program, *args, env=None, timeout=60, recover=False)``.

    It starts tests/programs/<program>.py. With `recover` the launcher lets the other ranks go on after one has died;
    with "ulfm" the MPI library tells them, too.
    """
    jobs: list[Job] = []

    def start(
        ranks: int,
        program: str,
        *arguments: object,
        env: dict[str, str] | None = None,
        timeout: float = 60,
        recover: bool | str = False,
    ) -> Job:
        command = _rank_command(launcher, ranks, program, arguments, recover)
        jobs.append(_start(command, {**launch_environment(launcher), **(env or {})}, timeout, recover=recover))
        return jobs[-1]

    yield start
    for job in jobs:
        job.close()


@pytest.fixture
def mpirun(start_job: Callable[..., Job]) -> Callable[..., Finished]:
    """Give ``mpirun(n, program, *args, env=None, timeout=60, recover=False, check=True)``, which runs to the end.

    With `check` the test fails, with the output, unless every rank has exited with 0.
    """

    def run(
        ranks: int,
        program: str,
        *arguments: object,
        env: dict[str, str] | None = None,
        timeout: float = 60,
        recover: bool | str = False,
        check: bool = True,
    ) -> Finished:
        finished = start_job(ranks, program, *arguments, env=env, timeout=timeout, recover=recover).finish()
        if check and finished.returncode != 0:
            pytest.fail(f"{program} on {ranks} ranks failed: {finished.output}")
        return finished

    return run


@pytest.fixture
def shell() -> Iterator[Callable[..., Finished]]:
    """Give ``shell(commands, cwd, env, timeout=60)``, which runs commands with bash, as a user would, to the end."""
    jobs: list[Job] = []

    def run(commands: str, cwd: Path, env: dict[str, str], timeout: float = 60) -> Finished:
        jobs.append(_start(["bash", "-e", "-c", commands], env, timeout, cwd=cwd))
        return jobs[-1].finish()

    yield run
    for job in jobs:
        job.close()


@pytest.fixture(scope="session")
def _hosts_can_be_made() -> None:
    """Skip where ``gradientflow netlab`` cannot work."""
    command = module_command("gradientflow.cli", ["netlab", "--hosts", "1", "--shell", "--", "true"])
    tried = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=30, check=False)
    if tried.returncode == 2:
        pytest.skip(f"no hosts can be made here: {tried.stderr.strip().removeprefix('gradientflow: ')}")


@pytest.fixture
def start_netlab(_hosts_can_be_made: None) -> Iterator[Callable[..., Job]]:
    """Give ``start_netlab(*arguments, env=None, timeout=60)``, which starts ``gradientflow netlab`` with them."""
    jobs: list[Job] = []

    def start(*arguments: str, env: dict[str, str] | None = None, timeout: float = 60) -> Job:
        jobs.append(_start(module_command("gradientflow.cli", ["netlab", *arguments]), env, timeout))
        return jobs[-1]

    yield start
    for job in jobs:
        job.close()


@pytest.fixture
def netlab_run(launcher: Launcher, start_netlab: Callable[..., Job]) -> Callable[..., Finished]:
    """Give ``netlab_run(hosts, ranks_per_host, program, *args, ...)``, which is ``mpirun`` across hosts made for it.

    ``rate`` limits what each host can send (``1gbit``). ``link_down`` is a host and a time, ``host1@2.5``, counted from
    before the ranks start. A rank takes its host's link down at a point of its choice with ``ip link set eth0 down``.
    """

    def run(
        hosts: int,
        ranks_per_host: int,
        program: str,
        *arguments: object,
        env: dict[str, str] | None = None,
        timeout: float = 60,
        recover: bool | str = False,
        check: bool = True,
        rate: str = "none",
        link_down: str | None = None,
    ) -> Finished:
        ranks = hosts * ranks_per_host
        options = ["--hosts", str(hosts), "--ranks-per-host", str(ranks_per_host), "--rate", rate, "--shell"]
        options += ["--link-down", link_down] if link_down is not None else []
        command = _rank_command(launcher, ranks, program, arguments, recover)
        finished = start_netlab(*options, "--", *command, env=env, timeout=timeout).finish()
        if check and finished.returncode != 0:
            pytest.fail(f"{program} on {ranks} ranks of {hosts} hosts failed: {finished.output}")
        return finished

    return run
