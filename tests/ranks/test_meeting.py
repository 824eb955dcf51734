"""Ranks that meet without mpirun: what really happens, with processes that were started in all these ways."""

from __future__ import annotations

import json
import secrets
import sys
import time
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from jobs import PROGRAMS, Finished, Job, free_port, write
from pace import scaled

from gradientflow.launch import module_command

EXAMPLES = Path(__file__).resolve().parents[2] / "docs" / "examples"
MET = str(PROGRAMS / "met.py")
# What srun sets for all that torchrun starts: each would be rank 0 of 1, or of 2, if MPI were started.
PMI_OF_A_STEP = {"PMI_RANK": "0", "PMI_SIZE": "2", "PMIX_RANK": "0", "SLURM_STEP_ID": "0", "SLURM_PROCID": "0"}

needs_torch = pytest.mark.skipif(find_spec("torch") is None, reason="could not import 'torch'")

Start = Callable[..., Job]
Command = Callable[[str | Path], list[str]]


@pytest.fixture
def met(process_command: Command) -> list[str]:
    """Give the command of tests/programs/met.py."""
    return process_command("met")


@pytest.fixture
def processes(start_command: Start) -> Callable[..., list[Finished]]:
    """Give ``processes(command, environments)``: run one process under each environment, all at once, to the end."""

    def run(command: Sequence[str], environments: Sequence[dict[str, str]], timeout: float = 60) -> list[Finished]:
        jobs = [start_command(command, env, timeout) for env in environments]
        return [job.finish() for job in jobs]

    return run


def meeting(size: int, place: str, **more: str) -> list[dict[str, str]]:
    """Write the environments of ranks that meet at a place."""
    shared = {"GRADIENTFLOW_MEET": place, "GRADIENTFLOW_SIZE": str(size), "GRADIENTFLOW_TIMEOUT": f"{scaled(20):g}"}
    return [{**shared, **more, "GRADIENTFLOW_RANK": str(rank)} for rank in range(size)]


def check_met(finished: Sequence[Finished], size: int) -> None:
    """Check that all ranks were there, each once."""
    for each in finished:
        assert each.returncode == 0, each.output
    found = [json.loads(line) for each in finished for line in each.stdout.splitlines() if line.startswith("{")]
    assert sorted(each["rank"] for each in found) == list(range(size))
    assert {each["size"] for each in found} == {size}


def torchrun(ranks: int, *program: str, **options: object) -> list[str]:
    """Write the command line of torchrun for a command, with a meeting point of its own."""
    given = [f"--{name.replace('_', '-')}={value}" for name, value in options.items()]
    place = ["--rdzv-backend=c10d", "--rdzv-endpoint=127.0.0.1:0"] if "master_port" not in options else []
    words = [f"--nproc-per-node={ranks}", *place, *given, "--no-python", *program]
    return [sys.executable, "-m", "torch.distributed.run", *words]


# ---- plain processes -------------------------------------------------------------------------------------------------


def test_three_processes_at_an_address(met: list[str], processes: Callable[..., list[Finished]]) -> None:
    place = f"127.0.0.1:{free_port()}"
    check_met(processes([*met, "init", "again"], meeting(3, place, GRADIENTFLOW_TOKEN=secrets.token_hex(32))), 3)


def test_two_processes_in_a_file(met: list[str], processes: Callable[..., list[Finished]], tmp_path: Path) -> None:
    check_met(processes([*met, "init", "again"], meeting(2, f"file://{tmp_path}/meet")), 2)


def test_arguments_and_a_store_of_ones_own(processes: Callable[..., list[Finished]], tmp_path: Path) -> None:
    program = write(
        tmp_path / "program.py",
        "import fcntl, sys, pathlib\n"
        "import numpy as np\n"
        "import gradientflow as gf\n"
        "place, folder, rank = sys.argv[1], pathlib.Path(sys.argv[2]), int(__import__('os').environ['R'])\n"
        "class Folder:  # a store, as anybody could write one\n"
        "    def set(self, key, value):\n"
        "        self.change(key, lambda _: value)\n"
        "    def change(self, key, how):\n"
        "        file = folder / key.replace('/', '-')\n"
        "        with open(folder / 'lock', 'w') as lock:\n"
        "            fcntl.flock(lock, fcntl.LOCK_EX)\n"
        "            value = how(file.read_bytes() if file.exists() else b'')\n"
        "            file.write_bytes(value)\n"
        "        return value\n"
        "    def add(self, key, amount):\n"
        "        return int(self.change(key, lambda old: b'%d' % (int(old or 0) + amount)))\n"
        "    def compare_set(self, key, expected, desired):\n"
        "        return self.change(key, lambda old: desired if old == expected else old)\n"
        "for given in ({'meet': place}, {'store': Folder()}, {'store': Folder()}):\n"
        "    with gf.init(rank=rank, size=2, **given) as comm:\n"
        "        assert (comm.rank, comm.size) == (rank, 2)\n"
        "        assert comm.allgather(np.array([rank])).ravel().tolist() == [0, 1]\n",
    )
    command = [sys.executable, str(program), f"127.0.0.1:{free_port()}", str(tmp_path)]
    for each in processes(command, [{"R": "0"}, {"R": "1"}]):
        assert each.returncode == 0, each.output


def test_another_token_is_refused(met: list[str], processes: Callable[..., list[Finished]]) -> None:
    place = f"127.0.0.1:{free_port()}"
    environments = meeting(2, place, GRADIENTFLOW_TIMEOUT="3")
    for number, env in enumerate(environments):
        env["GRADIENTFLOW_TOKEN"] = str(number) * 64
    first, second = processes(met, environments)
    assert first.returncode != 0
    assert "CommunicationTimeoutError" in first.stderr
    assert "rank 1" in first.stderr
    assert "with another token (GRADIENTFLOW_TOKEN) had to be refused" in first.stderr.splitlines()[-1]
    assert second.returncode != 0
    assert "token" in second.stderr.splitlines()[-1]


def test_a_rank_too_many_and_a_rank_twice(met: list[str], processes: Callable[..., list[Finished]]) -> None:
    place = f"127.0.0.1:{free_port()}"
    environments = meeting(2, place, GRADIENTFLOW_TIMEOUT="3")
    ended = processes(met, [*environments, {**environments[1], "GRADIENTFLOW_RANK": "2"}])
    assert "ArgumentError: GRADIENTFLOW_RANK is 2 and GRADIENTFLOW_SIZE is 2" in ended[2].stderr
    check_met(ended[:2], 2)
    place = f"127.0.0.1:{free_port()}"
    environments = meeting(3, place, GRADIENTFLOW_TIMEOUT="5")
    ended = processes(met, [*environments[:2], environments[1]])  # and no rank 2
    assert all("MismatchError" in each.stderr and "rank 1" in each.stderr for each in ended), ended
    place = f"127.0.0.1:{free_port()}"
    environments = meeting(2, place, GRADIENTFLOW_TIMEOUT="3")
    environments[1]["GRADIENTFLOW_SIZE"] = "3"
    ended = processes(met, environments)
    assert any("MismatchError" in each.stderr for each in ended), ended


def test_nobody_is_there(met: list[str], start_command: Start) -> None:
    begin = time.monotonic()
    place = f"127.0.0.1:{free_port()}"
    ended = start_command(met, {**meeting(2, place)[1], "GRADIENTFLOW_TIMEOUT": "2"}).finish()
    assert ended.returncode == 1
    assert "CommunicationTimeoutError" in ended.stderr.splitlines()[-1]
    assert place in ended.stderr.splitlines()[-1]
    assert time.monotonic() - begin < scaled(20)


def test_two_processes_that_are_rank_0(met: list[str], processes: Callable[..., list[Finished]]) -> None:
    """One cannot serve; the other, which waits for a rank in vain, hears of it."""
    place = f"127.0.0.1:{free_port()}"
    environment = {**meeting(2, place)[0], "GRADIENTFLOW_TIMEOUT": f"{scaled(1.5):g}"}
    said = [each.stderr.splitlines()[-1] for each in processes(met, [environment, environment])]
    said.sort(key=lambda each: "cannot listen" in each)
    assert "no sign of rank 1; process " in said[0]
    assert "wanted to serve the store, too: two processes were told to be rank 0" in said[0]
    assert "cannot listen" in said[1]
    assert "another rank 0" in said[1]


@pytest.mark.thorough
def test_a_place_that_is_not_here(met: list[str], start_command: Start) -> None:
    """Rank 0 says so; the others only know that nobody answers there."""
    place = f"192.0.2.1:{free_port()}"  # an address for documents
    ended = start_command(met, {**meeting(2, place)[0], "GRADIENTFLOW_TIMEOUT": "1"}).finish()
    assert f"its host does not have the address of {place}" in ended.stderr.splitlines()[-1]


def test_ranks_of_run_without_mpi(met: list[str], start_command: Start) -> None:
    command = module_command("gradientflow.cli", ["run", "-n", "3", "--transport", "tcp", "--", *met, "init", "again"])
    check_met([start_command(command).finish()], 3)


def test_a_rank_that_dies_is_named_by_the_others(start_command: Start, tmp_path: Path) -> None:
    program = write(
        tmp_path / "program.py",
        "import os, signal\n"
        "import gradientflow as gf\n"
        "comm = gf.init(config={'node_size': 1})\n"
        "comm.barrier()\n"
        "if comm.rank == 1: os.kill(os.getpid(), signal.SIGKILL)\n"
        "try: comm.barrier()\n"
        "except gf.errors.PeerError as error: assert 'rank 1' in str(error); print('noticed', flush=True)\n",
    )
    command = module_command("gradientflow.cli", ["run", "-n", "3", "--transport", "tcp", str(program)])
    ended = start_command(command).finish()
    assert (ended.returncode, ended.stdout.count("noticed")) == (137, 2), ended.output


def test_ranks_that_serve_without_mpi(start_command: Start, tmp_path: Path) -> None:
    program = write(
        tmp_path / "program.py",
        "import sys\n"
        "import numpy as np\n"
        "import gradientflow as gf\n"
        "comm = gf.init()\n"
        "weights = [np.ones(1000, np.float32)]\n"
        "assert comm.size == 2 and comm.server_ranks.count == 1\n"
        "with gf.ParameterServer(comm, weights) as server:\n"
        "    assert server.servers == 1\n"
        "    server.push(gf.strategies.Settings(0.5), gradients=[np.full(1000, comm.rank + 1, np.float32)])\n"
        "    server.finish(weights)\n"
        "assert (weights[0] == 0.25).all()\n"
        "assert 'mpi4py.MPI' not in sys.modules\n"
        "print('trained', flush=True)\n",
    )
    arguments = ["run", "-n", "2", "--servers", "1", "--transport", "tcp", "--", str(program)]
    ended = start_command(module_command("gradientflow.cli", arguments)).finish()
    assert (ended.returncode, ended.stdout.count("trained")) == (0, 2), ended.output


def test_a_rank_that_serves_says_who_has_died(start_command: Start, tmp_path: Path) -> None:
    """It says so in a sentence, since no program of the user runs there."""
    program = write(
        tmp_path / "program.py",
        "import os, signal\n"
        "import gradientflow as gf\n"
        "comm = gf.init()\n"
        "comm.barrier()\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n",
    )
    arguments = ["run", "-n", "1", "--servers", "1", "--transport", "tcp", "--", str(program)]
    ended = start_command(module_command("gradientflow.cli", arguments)).finish()
    assert ended.returncode == 137, ended.output
    assert "gradientflow: rank 1, which only serves, ends: rank 0 has died" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_three_hosts(start_netlab: Callable[..., Any], tmp_path: Path) -> None:
    """Each has several interfaces: the ranks must find each other at those that lead to the meeting point."""
    program = (sys.executable, MET, "init", "again")
    arguments = ("--hosts", "3", "--ranks-per-host", "2", "--transport", "tcp", "--", *program)
    check_met([start_netlab(*arguments).finish()], 6)


# ---- torchrun --------------------------------------------------------------------------------------------------------


# Whoever comes first, init or the process group, finds the store unused: here the one, there the other, as imports of
# PyTorch take two seconds of a processor each.
@needs_torch
@pytest.mark.parametrize(
    "ways", [["init", "group"], pytest.param(["group", "init", "again"], marks=pytest.mark.slow)], ids=" ".join
)
def test_torchrun(met: list[str], start_command: Start, ways: list[str]) -> None:
    """Also below srun, whose variables of MPI all processes inherit: none may start MPI."""
    check_met([start_command(torchrun(2, *met, *ways), PMI_OF_A_STEP, timeout=100).finish()], 2)


@needs_torch
@pytest.mark.parametrize(
    "ways", [pytest.param(["init", "group"], marks=pytest.mark.slow), ["group", "init"]], ids=" ".join
)
def test_the_variables_of_torchrun_without_its_store(
    met: list[str], processes: Callable[..., list[Finished]], ways: list[str]
) -> None:
    """As in Kubernetes: rank 0 opens PyTorch's store, for both of us."""
    shared = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    check_met(processes([*met, *ways], [{**shared, "RANK": str(rank)} for rank in range(2)], timeout=100), 2)


@pytest.mark.slow
@needs_torch
def test_torchrun_on_two_hosts(start_netlab: Callable[..., Any]) -> None:
    names = ("GRADIENTFLOW_MEET", "GRADIENTFLOW_RANK", "GRADIENTFLOW_SIZE", "GRADIENTFLOW_TRANSPORT")
    program = (sys.executable, MET, "init", "group")
    command = torchrun(2, *program, nnodes=2, node_rank="$RANK", master_addr="host0", master_port=29611)
    script = " ".join(["unset", *names, "&& exec", *command])  # as if netlab had only made the hosts
    arguments = ("--hosts", "2", "--transport", "tcp", "--", "sh", "-c", script)
    check_met([start_netlab(*arguments, timeout=100).finish()], 4)


@needs_torch
@pytest.mark.thorough
def test_torchrun_starts_the_ranks_again(process_command: Command, start_command: Start, tmp_path: Path) -> None:
    """What is left in its store of processes that have failed is not taken for that of their successors."""
    program = write(
        tmp_path / "program.py",
        "import os, sys, runpy\n"
        "if os.environ['TORCHELASTIC_RESTART_COUNT'] == '0':\n"
        "    import gradientflow as gf\n"
        "    comm = gf.init()\n"
        "    if comm.rank == 1: os._exit(3)\n"
        "    comm.barrier()\n"
        f"runpy.run_path({MET!r}, run_name='__main__')\n",
    )
    ended = start_command(torchrun(2, *process_command(program), "init", "group", max_restarts=1), timeout=100).finish()
    check_met([ended], 2)
    assert '"restart": "1"' in ended.stdout


@needs_torch
@pytest.mark.thorough
def test_under_torchrun_a_script_begins_anew_from_its_checkpoint(
    process_command: Command, start_command: Start, tmp_path: Path
) -> None:
    """Its agent stops all workers when one fails."""
    program = write(
        tmp_path / "program.py",
        "import os, numpy as np, gradientflow as gf\n"
        "from pathlib import Path\n"
        "is_first = os.environ['TORCHELASTIC_RESTART_COUNT'] == '0'\n"
        "path = Path('checkpoint.npy')\n"
        "comm = gf.init()\n"
        "state = np.load(path) if path.exists() else np.zeros(2, np.int64)\n"
        "comm.barrier()\n"
        "print(f'begins at {state[0]}\\n', end='', flush=True)\n"
        "while state[0] < 20:\n"
        "    if is_first and comm.rank == 1 and state[0] == 7: os._exit(3)\n"
        "    state += [1, comm.allreduce(np.array([comm.rank + 1]))[0]]\n"
        "    if comm.rank == 0:\n"
        "        np.save('next.npy', state)\n"
        "        os.replace('next.npy', path)\n"
        "    comm.barrier()\n"
        "print(f'ends with {state[1]}\\n', end='')\n",
    )
    command = ["sh", "-c", f'cd {tmp_path} && exec "$@"', "sh", *torchrun(2, *process_command(program), max_restarts=1)]
    ended = start_command(command, timeout=100).finish()
    assert ended.returncode == 0, ended.output
    assert sorted(ended.stdout.split("\n"))[1:] == ["begins at 0"] * 2 + ["begins at 7"] * 2 + ["ends with 60"] * 2


@pytest.mark.slow
@needs_torch
def test_an_example_under_torchrun(process_command: Command, start_command: Start) -> None:
    ended = start_command(torchrun(2, *process_command(EXAMPLES / "train_ddp.py")), timeout=100).finish()
    assert ended.returncode == 0, ended.output
    assert float(ended.line("accuracy ")) > 0.9
