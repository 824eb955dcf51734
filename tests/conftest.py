"""Starting MPI jobs from tests, and making sure that nothing of them stays behind."""

from __future__ import annotations

import fcntl
import gc
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import cuda_emulator
import hypothesis
import nccl_emulator
import pytest
from checks import CheckedJob, checks_of, job_of, without_repeats
from jax_jobs import jax_command, takes_jax
from jobs import Finished, Job, begin, python_command, rank_command
from needs_mpi import WITHOUT_MPI, takes_mpi
from pace import PACE, PATIENCE, measure, scaled
from processor_time import ProcessorTime
from rank_servers import RankServers
from xdist.scheduler import LoadScopeScheduling

from gradientflow import cli
from gradientflow._location import PACKAGE
from gradientflow.launch import Launcher, find_launcher, launch_environment, module_command

# ---- limits of time --------------------------------------------------------------------------------------------------


@pytest.hookimpl(tryfirst=True)  # before the plugin for timeouts reads its options
def pytest_configure(config: pytest.Config) -> None:
    """Measure the machine, and have the limit of a test, unless it is the user's, follow.

    Tests press Ctrl-C: where a shell has started them in the background, their processes would ignore it.
    """
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if PACE not in os.environ:
        os.environ[PACE] = f"{measure():.2f}"
    os.environ.setdefault(PATIENCE, f"{min(scaled(0.2), 1.0):.2f}")
    if config.option.timeout is None and "PYTEST_TIMEOUT" not in os.environ:
        config.option.timeout = scaled(float(config.getini("timeout")))
    hypothesis.settings.register_profile("tests", deadline=None)  # the limit is the test's
    hypothesis.settings.load_profile("tests")
    config.pluginmanager.register(ProcessorTime())
    line = "checks(program, *only, without=()): run the test for each function check_* of tests/programs/<program>.py"
    config.addinivalue_line("markers", line)


@pytest.fixture(params=["short", pytest.param("shipped", marks=pytest.mark.thorough)])
def patience(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have what the test starts wait as the suite does, and once as users have it."""
    if request.param == "shipped":
        monkeypatch.setenv(PATIENCE, "1")


def pytest_report_header() -> str:
    return f"limits of time: {scaled(1):.2f} times those of a quiet machine"


@pytest.hookimpl(wrapper=True)
def pytest_pycollect_makeitem() -> Iterator[Any]:
    """Leave out repeats of checks here, where all items of a test are known: later some may have been selected."""
    made = yield
    return without_repeats(made) if isinstance(made, list) else made


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if mark := item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(scaled(mark.args[0])), append=False)


def pytest_collection_finish() -> None:
    """Leave all that is imported and collected out of later collections of garbage, which are short then."""
    gc.collect()
    gc.freeze()


# ---- checks: what a program of several ranks checks, each an item of pytest ------------------------------------------


@pytest.hookimpl(trylast=True)  # so that the check is the last part of the test's name
def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Make an item of each check."""
    if mark := metafunc.definition.get_closest_marker("checks"):
        checks = [
            pytest.param(each.name, marks=getattr(pytest.mark, each.mark) if each.mark else ())
            for each in checks_of(*mark.args, **mark.kwargs)
        ]
        metafunc.parametrize("check", checks, indirect=True)


class JobScheduling(LoadScopeScheduling):
    """Gives all checks of a job to one worker, and what has most checks first."""

    def _split_scope(self, nodeid: str) -> str:
        return job_of(nodeid)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> JobScheduling | None:
    return JobScheduling(config, log) if config.getoption("dist") == "loadscope" else None


@pytest.fixture(scope="session")
def _checked_jobs() -> Iterator[dict[str, CheckedJob]]:
    """Keep the jobs that have been started for checks, and end what is left of them."""
    jobs: dict[str, CheckedJob] = {}
    yield jobs
    for job in jobs.values():
        job.close()


@pytest.fixture
def check(
    request: pytest.FixtureRequest,
    _checked_jobs: dict[str, CheckedJob],
) -> Callable[..., Finished | None]:
    """Give ``check(n, *args, env=None, timeout=60)``, which waits for the outcome of one check of a program.

    The test is marked with ``checks(program)``. All its checks that are selected run in one job, which the first of
    them starts; a program of JAX by ``gradientflow run --jax``. `timeout` is that of the job. A job that ends too early
    fails the check it was in, and those behind. The last check gives what the job left, the others None.
    """
    name: str = request.param
    job = job_of(request.node.nodeid)

    def run(ranks: int, *arguments: object, env: dict[str, str] | None = None, timeout: float = 60) -> Finished | None:
        if job not in _checked_jobs:
            names = [each.callspec.params["check"] for each in request.session.items if job_of(each.nodeid) == job]
            program = request.node.get_closest_marker("checks").args[0]
            environment = env or {}
            python = request.getfixturevalue("rank_servers").command(program, environment)
            command = jax_command(ranks, python, *arguments)
            if not takes_jax(program):
                launcher = None if WITHOUT_MPI and not takes_mpi(program) else request.getfixturevalue("launcher")
                command = rank_command(launcher, ranks, python, arguments, recover=False)
                environment = {**(launch_environment(launcher) if launcher else {}), **environment}
            _checked_jobs[job] = CheckedJob(command, names, environment, timeout)
        return _checked_jobs[job].wait_for(name)

    return run


# ---- jobs ------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def launcher() -> Launcher:
    """Find the launcher that belongs to the MPI library in use; without MPI, the test is skipped."""
    if WITHOUT_MPI:
        pytest.skip(f"needs MPI: {WITHOUT_MPI}")
    return find_launcher()


@pytest.fixture(scope="session")
def rank_servers() -> Iterator[RankServers]:
    """Keep the servers from which ranks are forked."""
    servers = RankServers()
    yield servers
    servers.close()


@pytest.fixture(scope="session")
def process_command(rank_servers: RankServers) -> Callable[[str | Path], list[str]]:
    """Give ``process_command(program)``: what runs a file, or tests/programs/<program>.py, in a process without MPI.

    In place of Python and the file: it is forked, too.
    """
    return lambda program: rank_servers.command(program, {}, mpi=False)


@pytest.fixture(scope="session")
def native() -> None:
    """Compile what a program takes from native.py before its time runs."""
    import native  # noqa: F401


@pytest.fixture(scope="session")
def cuda_devices() -> int:
    """Count this machine's CUDA devices, in another process: one has real devices or emulated ones, not both."""
    program = "from gradientflow._location import load_core; print(load_core().device.count())"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    return int(done.stdout)


@pytest.fixture(scope="session")
def _emulators() -> Callable[..., Path]:
    """Give ``_emulators(name, build)``, which builds a library, once for all workers and until its sources change."""
    folder = cuda_emulator.folder_of_emulators(PACKAGE / "lib")

    def build_once(name: str, build: Callable[[Path], Path]) -> Path:
        with (folder / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            library = folder / name
            return library if library.exists() else build(folder)

    return build_once


@pytest.fixture(scope="session")
def emulated_cuda(_emulators: Callable[..., Path]) -> Path:
    """Build the library that emulates a CUDA device, for GRADIENTFLOW_CUDA_LIBRARY."""
    return _emulators(cuda_emulator.NAME, lambda folder: cuda_emulator.build(folder, PACKAGE / "lib"))


@pytest.fixture(scope="session")
def emulated_nccl(_emulators: Callable[..., Path], emulated_cuda: Path) -> Path:
    """Build the NCCL on top of it, for GRADIENTFLOW_NCCL_LIBRARY."""
    return _emulators(nccl_emulator.NAME, lambda folder: nccl_emulator.build(folder, emulated_cuda))


@pytest.fixture(scope="session")
def device_env(cuda_devices: int, request: pytest.FixtureRequest) -> dict[str, str]:
    """What a job that uses CUDA devices needs in its environment: nothing, or emulated devices where there are none."""
    if cuda_devices > 0:
        return {}
    return {"GRADIENTFLOW_CUDA_LIBRARY": str(request.getfixturevalue("emulated_cuda"))}


@pytest.fixture
def start_command() -> Iterator[Callable[..., Job]]:
    """Give ``start_command(command, env=None, timeout=60, **options)``, which is `jobs.begin`, and kill the rest."""
    jobs: list[Job] = []

    def start(command: Sequence[str], env: dict[str, str] | None = None, timeout: float = 60, **options: Any) -> Job:
        jobs.append(begin([*command], env, timeout, **options))
        return jobs[-1]

    yield start
    for job in jobs:
        job.close()


@pytest.fixture
def start_job(launcher: Launcher, rank_servers: RankServers, start_command: Callable[..., Job]) -> Callable[..., Job]:
    """Give ``start_job(n, program, *args, env=None, timeout=60, recover=False)``.

    It starts tests/programs/<program>.py. With `recover` the launcher lets the other ranks go on after one has died;
    with "ulfm" the MPI library tells them, too.
    """

    def start(
        ranks: int,
        program: str,
        *arguments: object,
        env: dict[str, str] | None = None,
        timeout: float = 60,
        recover: bool | str = False,
    ) -> Job:
        command = rank_command(launcher, ranks, rank_servers.command(program, env or {}), arguments, recover)
        return start_command(command, {**launch_environment(launcher), **(env or {})}, timeout, recover=recover)

    return start


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
def jax_run(rank_servers: RankServers, start_command: Callable[..., Job]) -> Callable[..., Finished]:
    """Give ``jax_run(n, program, *args, env=None, timeout=60, check=True)``, as `mpirun` for programs of JAX.

    They are started by ``gradientflow run --jax``; a `program` may be any file, which is started as a user starts it.
    """

    def run(
        ranks: int,
        program: str | Path,
        *arguments: object,
        env: dict[str, str] | None = None,
        timeout: float = 60,
        check: bool = True,
    ) -> Finished:
        command = [program] if isinstance(program, Path) else rank_servers.command(program, env or {})
        finished = start_command(jax_command(ranks, command, *arguments), env, timeout).finish()
        if check and finished.returncode != 0:
            pytest.fail(f"{program} on {ranks} ranks failed: {finished.output}")
        return finished

    return run


@pytest.fixture
def command_line(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Callable[..., Finished]:
    """Give ``command_line(*arguments)``, which runs ``gradientflow`` in this process, where it starts no other."""

    def run(*arguments: str) -> Finished:
        monkeypatch.setattr(sys, "argv", ["gradientflow", *arguments])
        capfd.readouterr()
        with pytest.raises(SystemExit) as ended:
            cli.main()
        told = capfd.readouterr()
        assert isinstance(ended.value.code, int)
        return Finished(ended.value.code, told.out, told.err)

    return run


@pytest.fixture
def shell(start_command: Callable[..., Job]) -> Callable[..., Finished]:
    """Give ``shell(commands, cwd, env, timeout=60)``, which runs commands with bash, as a user would, to the end."""

    def run(commands: str, cwd: Path, env: dict[str, str], timeout: float = 60) -> Finished:
        return start_command(["bash", "-e", "-c", commands], env, timeout, cwd=cwd).finish()

    return run


@pytest.fixture(scope="session")
def _hosts_can_be_made() -> None:
    """Skip where ``gradientflow netlab`` cannot work."""
    command = module_command("gradientflow.cli", ["netlab", "--hosts", "1", "--shell", "--", "true"])
    tried = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=30, check=False)
    if tried.returncode == 2:
        pytest.skip(f"no hosts can be made here: {tried.stderr.strip().removeprefix('gradientflow: ')}")


@pytest.fixture
def start_netlab(_hosts_can_be_made: None, start_command: Callable[..., Job]) -> Callable[..., Job]:
    """Give ``start_netlab(*arguments, env=None, timeout=60)``, which starts ``gradientflow netlab`` with them."""
    return lambda *arguments, **options: start_command(
        module_command("gradientflow.cli", ["netlab", *arguments]), **options
    )


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
        command = rank_command(launcher, ranks, python_command(program), arguments, recover)
        finished = start_netlab(*options, "--", *command, env=env, timeout=timeout).finish()
        if check and finished.returncode != 0:
            pytest.fail(f"{program} on {ranks} ranks of {hosts} hosts failed: {finished.output}")
        return finished

    return run
