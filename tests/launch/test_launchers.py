"""What others start: each of these launchers in a test, by itself or by the variables that it sets.

torchrun itself is in ranks/test_meeting.py, launchers of trainers in real/test_trainers.py.
"""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path

import pytest
from jobs import PROGRAMS, Finished, Job, free_port, write

from gradientflow.launch import OPEN_MPI, Launcher, module_command
from gradientflow.meeting import find_plan

MET = str(PROGRAMS / "met.py")
RANKS = range(2)
KUBERNETES = {"KUBERNETES_SERVICE_HOST": "10.96.0.1", "KUBERNETES_SERVICE_PORT": "443"}  # in each pod

needs_torch = pytest.mark.skipif(find_spec("torch") is None, reason="could not import 'torch'")

Processes = Callable[..., list[Finished]]
Command = Callable[[str | Path], list[str]]


@pytest.fixture
def processes(start_command: Callable[..., Job]) -> Processes:
    """Give ``processes(command, environments)``: run one process under each environment, all at once, to the end."""

    def run(
        command: Sequence[str], environments: Sequence[dict[str, str]] = ({},), *, ranks: int = 2, timeout: float = 100
    ) -> list[Finished]:
        jobs = [start_command(command, env, timeout) for env in environments]
        finished = [job.finish() for job in jobs]
        for each in finished:
            assert each.returncode == 0, each.output
        assert ranks == sum(each.stdout.count(f'"size": {ranks}') for each in finished) or not ranks, finished
        return finished

    return run


def test_srun_without_pmix(process_command: Command, processes: Processes) -> None:
    step = {"SLURM_JOB_ID": str(os.getpid()), "SLURM_STEP_ID": "3", "SLURM_STEP_NUM_TASKS": "2", "SLURM_NTASKS": "2"}
    step |= {"SLURM_STEP_NODELIST": "localhost", "SLURM_JOB_NODELIST": "localhost", "SLURM_LOCALID": "0"}
    processes(process_command("met"), [{**step, "SLURM_PROCID": str(rank)} for rank in RANKS])


@pytest.mark.thorough
def test_two_steps_of_slurm_with_one_port(processes: Processes, tmp_path: Path) -> None:
    """At once on one node, in an order in which each could take the other's rank for its own."""
    program = write(
        tmp_path / "program.py",
        "import os, numpy as np, gradientflow as gf\n"
        "with gf.init() as comm:\n"
        "    total = comm.allreduce(np.array([int(os.environ['SLURM_JOB_ID'])]))[0]\n"
        "    assert total == 2 * int(os.environ['SLURM_JOB_ID']), total\n"
        "    os.write(1, b'\"size\": %d\\n' % comm.size)\n",
    )
    both = {"SLURM_STEP_NUM_TASKS": "2", "SLURM_STEP_NODELIST": "localhost"}
    one = {**both, "SLURM_JOB_ID": str(os.getpid() + 99), "SLURM_STEP_ID": "8"}
    other = {**both, "SLURM_JOB_ID": str(os.getpid()), "SLURM_STEP_ID": "7"}
    assert find_plan({**one, "SLURM_PROCID": "0"}).at[0] == find_plan({**other, "SLURM_PROCID": "0"}).at[0]
    order = [(one, "0"), (other, "1"), (one, "1"), (other, "0")]
    environments = [{**step, "SLURM_PROCID": rank} for step, rank in order]
    finished = processes([sys.executable, str(program)], environments, ranks=0)
    assert [each.stdout for each in finished] == ['"size": 2\n'] * 4


def pods_of_pytorchjob() -> list[dict[str, str]]:
    """Give the environments of two pods of a rank each, as Kubeflow's training operator 1.9 makes them."""
    port = str(free_port())
    job = {"PYTHONUNBUFFERED": "1", "MASTER_ADDR": "localhost", "MASTER_PORT": port, "WORLD_SIZE": "2"}
    job |= {"PET_MASTER_ADDR": "localhost", "PET_MASTER_PORT": port, "PET_NNODES": "2", **KUBERNETES}
    names = ("train-master-0", "train-worker-0")
    return [{**job, "RANK": str(rank), "PET_NODE_RANK": str(rank), "HOSTNAME": names[rank]} for rank in RANKS]


@needs_torch
def test_pytorchjob_of_kubernetes(process_command: Command, processes: Processes) -> None:
    processes(process_command("met"), pods_of_pytorchjob())


@needs_torch
@pytest.mark.thorough
def test_containers_that_kubernetes_starts_again(
    process_command: Command, processes: Processes, tmp_path: Path
) -> None:
    """Rank 1 dies, rank 0 fails; each starts again in its pod, as with restartPolicy: OnFailure, and both meet."""
    program = write(
        tmp_path / "program.py",
        "import torch  # gf.init() does it here: so the process is forked from one that has done it\n"
        "import os, signal, sys, gradientflow as gf, numpy as np\n"
        "first = not os.path.exists(sys.argv[1])\n"
        "with gf.init() as comm:\n"
        "    comm.barrier()\n"
        "    if first and comm.rank == 1:\n"
        "        open(sys.argv[1], 'w').close()\n"
        "        os.kill(os.getpid(), signal.SIGKILL)\n"
        "    assert comm.allreduce(np.ones(1))[0] == 2\n"
        "    os.write(1, b'\"size\": %d\\n' % comm.size)\n",
    )
    words = shlex.join([*process_command(program), str(tmp_path / "died")])
    container = f"for start in 1 2 3; do {words} && exit; sleep 0.5; done; exit 1"
    processes(["sh", "-c", container], pods_of_pytorchjob())


# As between pods, it runs the command of a host, here on this machine, and writes down its arguments.
SSH = """#!/bin/sh
echo "$@" >> "$(dirname "$0")/log"
while [ "${1#-}" != "$1" ]; do case $1 in -o) shift 2;; *) shift;; esac; done
shift; exec sh -c "$*"
"""


@pytest.mark.thorough
def test_mpijob_of_kubernetes(launcher: Launcher, processes: Processes, tmp_path: Path) -> None:
    """The pod of the launcher has the hosts in a file, which variables of Open MPI 4 name, also for Open MPI 5."""
    if launcher.library != OPEN_MPI:
        pytest.skip("the variables are Open MPI's")
    hosts = [f"train-worker-{number}.train.default.svc" for number in RANKS]
    hostfile = write(tmp_path / "hostfile", "".join(f"{host} slots=1\n" for host in hosts))
    (ssh := write(tmp_path / "ssh", SSH)).chmod(0o755)
    env = {"OMPI_MCA_orte_default_hostfile": str(hostfile), "OMPI_MCA_orte_keep_fqdn_hostnames": "true"}
    env |= {"OMPI_MCA_plm_rsh_args": "-o ConnectionAttempts=10", "OMPI_MCA_orte_set_default_slots": "1"}
    env |= {"K_MPI_JOB_ROLE": "launcher", "HOSTNAME": "train-launcher", **KUBERNETES}
    env |= {"NVIDIA_VISIBLE_DEVICES": "", "NVIDIA_DRIVER_CAPABILITIES": "", "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    program = (
        "import os, gradientflow as gf\n"
        "with gf.init() as comm:\n"
        f"    assert os.environ['MASTER_ADDR'] == '{hosts[0]}' and comm.describe()['transport'] == 'mpi'\n"
        "    os.write(1, b'\"size\": %d\\n' % comm.size)\n"
    )
    processes(module_command("gradientflow.cli", ["run", "-n", "2", "--", sys.executable, "-c", program]), [env])
    log = (ssh.parent / "log").read_text()
    assert all(f"-o ConnectionAttempts=10 {host} " in log for host in hosts), log


@needs_torch
def test_the_variables_of_lightning(process_command: Command, processes: Processes, tmp_path: Path) -> None:
    """It says rank and number of ranks by arguments, and sets some variables in some processes."""
    program = write(
        tmp_path / "program.py",
        "import os\n"
        "import torch, torch.distributed as dist\n"
        "rank = int(os.environ.get('LOCAL_RANK', 0))\n"
        f"os.environ.update(MASTER_ADDR='127.0.0.1', MASTER_PORT='{free_port()}')\n"
        "dist.init_process_group('gradientflow', rank=rank, world_size=2)\n"
        "x = torch.ones(3)\n"
        "dist.all_reduce(x)\n"
        "assert x.tolist() == [2.0, 2.0, 2.0]\n"
        "print('\"size\": 2')\n"
        "dist.destroy_process_group()\n",
    )
    processes(process_command(program), [{}, {"WORLD_SIZE": "2", "NODE_RANK": "0", "LOCAL_RANK": "1"}])


@needs_torch
@pytest.mark.slow
def test_torch_multiprocessing_with_the_variables_of_ray_train(processes: Processes, tmp_path: Path) -> None:
    """Ray's workers set the variables when they run already, as the processes here do."""
    program = write(
        tmp_path / "program.py",
        "import os, runpy, sys, torch.multiprocessing as mp, gradientflow as gf\n"
        "def work(rank):\n"
        f"    os.environ.update(MASTER_ADDR='127.0.0.1', MASTER_PORT='{free_port()}', RANK=str(rank), WORLD_SIZE='2')\n"
        "    os.environ.update(LOCAL_RANK=str(rank), LOCAL_WORLD_SIZE='2', NODE_RANK='0')\n"
        "    sys.argv[1:] = ['init', 'group']\n"
        f"    runpy.run_path({MET!r}, run_name='__main__')\n"
        "if __name__ == '__main__':\n"
        "    mp.spawn(work, nprocs=2)\n",
    )
    processes([sys.executable, str(program)])


FSDP = """
import torch, torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
dist.init_process_group("gradientflow")
rank, size = dist.get_rank(), dist.get_world_size()
def network():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(20, 30), torch.nn.Tanh(), torch.nn.Linear(30, 5))
x = torch.randn(8 * size, 20, generator=torch.Generator().manual_seed(1))
def train(model, batch):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for _ in range(3):
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()
sharded, alone = network(), network()
mesh = init_device_mesh("cpu", (size,))
for layer in (sharded[0], sharded[2], sharded):
    fully_shard(layer, mesh=mesh)
train(sharded, x[8 * rank : 8 * rank + 8])
train(alone, x)
for ours, right in zip(sharded.parameters(), alone.parameters()):
    torch.testing.assert_close(ours.full_tensor(), right)
print(f'"size": {size}', flush=True)
dist.destroy_process_group()
"""


@needs_torch
@pytest.mark.slow
@pytest.mark.parametrize("how", ["torchrun", "run"])
def test_fsdp_trains_as_one_process_does(processes: Processes, how: str, tmp_path: Path) -> None:
    program, ranks = tmp_path / "program.py", 2 if how == "torchrun" else 4
    program.write_text(FSDP)
    if how == "torchrun":
        command = [sys.executable, "-m", "torch.distributed.run", f"--nproc-per-node={ranks}"]
        command += ["--rdzv-backend=c10d", "--rdzv-endpoint=127.0.0.1:0", str(program)]
    else:
        command = module_command("gradientflow.cli", ["run", "-n", str(ranks), "--transport", "tcp", str(program)])
    processes(command, ranks=ranks)
