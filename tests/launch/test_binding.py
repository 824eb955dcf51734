"""Which cores ranks get: on made-up machines, and in jobs of this one, under taskset and in control groups."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from jobs import Finished, Job
from needs_mpi import needs_mpi

import gradientflow as gf
from gradientflow.launch import LaunchError, asked_binding, cores, machine, module_command, rank_program

HERE = os.sched_getaffinity(0)
SAY = "import os, sys; print('mine', sorted(os.sched_getaffinity(0)), flush=True)"
TRANSPORTS = ("tcp", pytest.param("mpi", marks=needs_mpi))

needs_two_cores = pytest.mark.skipif(cores() < 2, reason="needs two cores")

Run = Callable[..., list[set[int]]]


def make_machine(root: Path, threads: Sequence[Sequence[int]], nodes: Sequence[str] = ()) -> Path:
    """Write what the system would say of a machine with such hyper-threads in each core, and such NUMA nodes."""
    for core in threads:
        for number in core:
            folder = root / f"sys/devices/system/cpu/cpu{number}/topology"
            folder.mkdir(parents=True)
            (folder / "thread_siblings_list").write_text(",".join(map(str, core)) + "\n")
    for number, numbers in enumerate(nodes):
        folder = root / f"sys/devices/system/node/node{number}"
        folder.mkdir(parents=True)
        (folder / "cpulist").write_text(numbers + "\n")
    return root


def shares(binding: str, ranks: int, usable: set[int], root: Path) -> list[set[int]]:
    return [set(machine.share(binding, rank, ranks, usable, root)) for rank in range(ranks)]


def test_hyper_threads_of_a_core_stay_together(tmp_path: Path) -> None:
    root = make_machine(tmp_path, [(0, 4), (1, 5), (2, 6), (3, 7)])
    everything = set(range(8))
    assert cores(everything, root) == 4
    assert shares("auto", 2, everything, root) == [{0, 4, 1, 5}, {2, 6, 3, 7}]
    assert shares("auto", 4, everything, root) == [{0, 4}, {1, 5}, {2, 6}, {3, 7}]
    assert shares("core", 2, everything, root) == [{0, 4}, {2, 6}]
    assert shares("auto", 3, everything, root) == [{0, 4}, {1, 5}, {2, 6, 3, 7}]
    assert shares("auto", 2, {1, 2, 5}, root) == [{1, 5}, {2}]  # half of a core is not usable


@pytest.mark.parametrize("ranks", [5, 8, 9])
def test_fewer_cores_than_ranks(tmp_path: Path, ranks: int) -> None:
    root = make_machine(tmp_path, [(0, 4), (1, 5), (2, 6), (3, 7)])
    everything = set(range(8))
    assert shares("auto", ranks, everything, root) == [everything] * ranks
    one_each = shares("core", ranks, everything, root)
    counts = [one_each.count(core) for core in ({0, 4}, {1, 5}, {2, 6}, {3, 7})]
    assert sum(counts) == ranks
    assert max(counts) - min(counts) <= 1


def test_nothing_is_divided_where_nothing_is_asked_or_there_is_one_rank(tmp_path: Path) -> None:
    root = make_machine(tmp_path, [(0,), (1,), (2,)])
    assert shares("none", 3, {0, 1, 2}, root) == [{0, 1, 2}] * 3
    assert shares("auto", 1, {0, 1, 2}, root) == [{0, 1, 2}]
    assert shares("core", 1, {0, 1, 2}, root) == [{0}]


def test_numa_nodes(tmp_path: Path) -> None:
    root = make_machine(tmp_path, [(each,) for each in range(8)], ["0,2,4,6", "1,3,5,7", ""])
    everything = set(range(8))
    even, odd = {0, 2, 4, 6}, {1, 3, 5, 7}
    assert shares("auto", 2, everything, root) == [even, odd]
    assert shares("auto", 4, everything, root) == [{0, 2}, {4, 6}, {1, 3}, {5, 7}]
    assert shares("numa", 4, everything, root) == [even, even, odd, odd]
    assert shares("numa", 1, everything, root) == [everything]
    assert shares("numa", 2, {0, 2}, root) == [{0, 2}, {0, 2}]


def test_a_machine_that_says_nothing_of_itself(tmp_path: Path) -> None:
    assert cores({0, 1, 5}, tmp_path) == 3
    assert shares("auto", 2, {0, 1, 5}, tmp_path) == [{0}, {1, 5}]
    assert shares("numa", 2, {0, 1, 5}, tmp_path) == [{0, 1, 5}] * 2


@pytest.mark.parametrize(
    ("own", "files", "expected"),
    [
        ("0::/a/b", {"a/b/cpu.max": "max 100000", "a/cpu.max": "150000 100000"}, 2),
        ("0::/", {"cpu.max": "100000 100000"}, 1),
        ("0::/a", {"a/cpu.max": "max 100000"}, 4),
        (
            "3:cpu,cpuacct:/a",
            {"cpu,cpuacct/a/cpu.cfs_quota_us": "50000", "cpu,cpuacct/a/cpu.cfs_period_us": "100000"},
            1,
        ),
        ("3:cpu:/a", {"cpu/cpu.cfs_quota_us": "300000", "cpu/cpu.cfs_period_us": "100000"}, 3),
        ("3:cpu:/a", {"cpu/a/cpu.cfs_quota_us": "-1", "cpu/a/cpu.cfs_period_us": "100000"}, 4),
        ("3:cpuset:/a", {"cpuset/a/cpu.cfs_quota_us": "50000", "cpuset/a/cpu.cfs_period_us": "100000"}, 4),
    ],
)
def test_the_quota_of_a_control_group(tmp_path: Path, own: str, files: dict[str, str], expected: int) -> None:
    for name, text in {
        "proc/self/cgroup": own,
        **{f"sys/fs/cgroup/{name}": text for name, text in files.items()},
    }.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")
    assert cores({0, 1, 2, 3}, tmp_path) == expected
    unbound = [{0, 1, 2, 3}] * 2
    assert shares("auto", 2, {0, 1, 2, 3}, tmp_path) == (unbound if expected == 1 else [{0, 1}, {2, 3}])


@pytest.fixture
def run(start_command: Callable[..., Job]) -> Run:
    """Give ``run(*arguments, before=(), env=None)``: what each rank of ``gradientflow run`` may use, by rank."""

    def start(*arguments: object, before: Sequence[str] = (), env: dict[str, str] | None = None) -> list[set[int]]:
        command = [*before, *module_command("gradientflow.cli", ["run", "--label", *map(str, arguments)])]
        finished = start_command([*command, "--", sys.executable, "-I", "-S", "-c", SAY], env).finish()
        assert finished.returncode == 0, finished.output
        return by_rank(finished)

    return start


def by_rank(finished: Finished) -> list[set[int]]:
    lines = [line.partition("mine ") for line in finished.stdout.splitlines() if "mine " in line]
    return [set(map(int, numbers.strip("[]").split(", "))) for _, _, numbers in sorted(lines)]


def shares_here(binding: str, ranks: int) -> list[set[int]]:
    return [set(machine.share(binding, rank, ranks)) for rank in range(ranks)]


@needs_two_cores
@pytest.mark.parametrize("transport", TRANSPORTS)
def test_ranks_of_a_job_have_cores_of_their_own(run: Run, transport: str) -> None:
    first, second = run("-n", 2, "--transport", transport)
    assert [first, second] == shares_here("auto", 2)
    assert not first & second
    assert first | second == HERE


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.thorough
def test_ranks_of_a_job_that_is_not_bound(run: Run, transport: str) -> None:
    assert run("-n", 2, "--transport", transport, "--bind", "none") == [HERE, HERE]
    too_many = cores() + 1
    assert run("-n", too_many, "--transport", transport, env={"GRADIENTFLOW_BIND": "auto"}) == [HERE] * too_many


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.thorough
def test_the_variable_decides_and_the_option_before_it(run: Run, transport: str) -> None:
    ranks = cores() + 1
    environment = {"GRADIENTFLOW_BIND": "core"}
    assert run("-n", ranks, "--transport", transport, env=environment) == shares_here("core", ranks)
    assert run("-n", 1, "--transport", transport, "--bind", "numa", env=environment) == shares_here("numa", 1)


@needs_two_cores
@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.thorough
def test_under_taskset(run: Run, transport: str) -> None:
    one, other = sorted(HERE)[:2]
    assert run("-n", 2, "--transport", transport, before=["taskset", "-c", str(one)]) == [{one}, {one}]
    both = run("-n", 2, "--transport", transport, before=["taskset", "-c", f"{one},{other}"])
    assert set().union(*both) == {one, other}


@contextlib.contextmanager
def control_group(controller: str, values: dict[str, str]) -> Iterator[list[str]]:
    """Make a control group of version 1; gives what starts a command in it."""
    group = Path("/sys/fs/cgroup", controller, f"gradientflow-{os.getpid()}")
    try:
        group.mkdir()
        for name, value in values.items():
            (group / name).write_text(value)
    except OSError as error:
        pytest.skip(f"control groups cannot be made here: {error}")
    try:
        yield ["sh", "-c", f'echo $$ > {group}/cgroup.procs && exec "$@"', "sh"]
    finally:
        group.rmdir()


@needs_two_cores
@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.thorough
def test_in_a_control_group_of_one_core(run: Run, transport: str) -> None:
    one = min(HERE)
    with control_group("cpuset", {"cpuset.cpus": str(one), "cpuset.mems": "0"}) as before:
        assert run("-n", 2, "--transport", transport, before=before) == [{one}, {one}]
    with control_group("cpu", {"cpu.cfs_period_us": "100000", "cpu.cfs_quota_us": "100000"}) as before:
        assert run("-n", 2, "--transport", transport, before=before) == [HERE, HERE]


@needs_two_cores
@pytest.mark.thorough
def test_ranks_on_hosts_over_ssh_are_bound_there(run: Run) -> None:
    assert run("-n", 2, "--transport", "tcp", "--hosts", "localhost:2") == shares_here("auto", 2)


@needs_two_cores
def test_spawned_ranks_and_what_the_library_says_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    def say(_: object) -> tuple[list[int], list[int], str]:
        with gf.init() as comm:
            facts = comm.describe()
            return sorted(os.sched_getaffinity(0)), facts["cores"], facts["cores_remark"]

    everything = sorted(HERE)
    assert gf.spawn(say, 2, None) == [(sorted(share), everything, "") for share in shares_here("auto", 2)]
    monkeypatch.setenv("GRADIENTFLOW_BIND", "none")
    assert gf.spawn(say, 2, None) == [(everything, everything, "")] * 2

    def squeeze(_: object) -> tuple[list[int], list[int], str]:
        os.sched_setaffinity(0, {min(HERE)} if os.environ["RANK"] < "2" else HERE)
        return say(None)

    remark = {facts[2] for facts in gf.spawn(squeeze, 3, None)}
    assert remark == {"ranks 0, 1 share one core"}


def test_a_binding_that_does_not_exist(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRADIENTFLOW_BIND", "socket")
    with pytest.raises(LaunchError, match="GRADIENTFLOW_BIND is 'socket': it is one of auto, none, core, numa"):
        asked_binding()
    monkeypatch.setenv("GRADIENTFLOW_BIND", "")
    assert asked_binding() == "auto"


def test_the_program_is_as_it_would_be_unbound() -> None:
    environment = {**os.environ, "OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_RANK": "0"}
    environment |= {"OMPI_COMM_WORLD_LOCAL_SIZE": "2", "OMPI_COMM_WORLD_LOCAL_RANK": "0"}

    def run_bound(*program: str) -> subprocess.CompletedProcess[str]:
        command = rank_program(program, bind="core")
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)

    ignored = "grep SigIgn /proc/self/status"
    unbound = subprocess.run(["sh", "-c", ignored], capture_output=True, text=True, check=True)
    assert run_bound("sh", "-c", ignored).stdout == unbound.stdout
    assert run_bound("sh", "-c", "exit 7").returncode == 7
    missing = run_bound("/no/such/program")
    assert missing.returncode == 127
    assert missing.stderr == "gradientflow: /no/such/program cannot be started: No such file or directory\n"
