"""Ranks that only serve: ``gradientflow run --servers``, from the start to the end of a job."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from needs_mpi import needs_mpi
from rank_servers import RankServers

from gradientflow.launch import Launcher, LaunchError, module_command, mpirun_command, rank_program

PUSHES = """
import os, sys
import numpy as np
import gradientflow as gf
from gradientflow.strategies import Settings

comm = gf.init()
assert comm.size == int(os.environ["WORLD_SIZE"]) == 2
weights = [np.ones(1000, np.float32)]
with gf.ParameterServer(comm, weights) as server:
    assert server.servers == 2
    server.push(Settings(0.5), gradients=[np.full(1000, comm.rank + 1, np.float32)])
    server.finish(weights)
assert (weights[0] == 0.25).all()
with gf.init() as another:  # the servers are there as long as one communicator is
    with gf.ParameterServer(another, weights) as server:
        server.push(Settings(0.5), gradients=[np.full(1000, another.rank + 1, np.float32)])
        server.finish(weights)
assert (weights[0] == -0.5).all()
if "closes" in sys.argv:
    comm.close()
    alone = gf.init()
    assert alone.size == 2 and alone.server_ranks is None
"""
DDP = """
import torch, torch.distributed as dist
import gradientflow.torch
dist.init_process_group("gradientflow")
assert dist.get_world_size() == 2
x = torch.ones(3)
dist.all_reduce(x)
assert (x == 2).all()
dist.destroy_process_group()
"""
GOES_WRONG = """
import gradientflow as gf
from mpi4py import MPI
try:
    gf.init(MPI.COMM_SELF)
except gf.errors.ArgumentError as error:
    assert "init() without a communicator comes first" in str(error)
comm = gf.init()
if comm.rank == 1:
    raise SystemExit(3)
"""


Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def run(rank_servers: RankServers, tmp_path: Path) -> Run:
    """Give ``run(program, *arguments, servers=2)``: run a program on two ranks, and ranks that serve."""

    def run(program: str, *arguments: str, servers: int = 2) -> subprocess.CompletedProcess[str]:
        path = tmp_path / "program.py"
        path.write_text(program)
        words = ["run", "-n", "2", "--servers", str(servers), "--", *rank_servers.command(path, {}), *arguments]
        command = module_command("gradientflow.cli", words)
        return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)

    return run


@pytest.mark.thorough
@pytest.mark.parametrize("arguments", [(), ("closes",)])
def test_ranks_serve_until_the_others_have_closed(run: Run, arguments: tuple[str, ...]) -> None:
    ended = run(PUSHES, *arguments)
    assert (ended.returncode, ended.stderr) == (0, ""), ended.stdout + ended.stderr


def test_the_process_group_is_of_the_ranks_that_compute(run: Run) -> None:
    pytest.importorskip("torch")
    ended = run(DDP, servers=1)
    assert ended.returncode == 0, ended.stdout + ended.stderr


@needs_mpi
def test_the_status_of_a_rank_that_fails_is_that_of_the_job(run: Run) -> None:
    assert run(GOES_WRONG).returncode == 3


def test_servers_are_started_beside_the_ranks_and_shared_out(launcher: Launcher) -> None:
    assert " -n 5 " in f" {' '.join(mpirun_command(launcher, 3, ['a'], servers=2))} "
    assert "GRADIENTFLOW_SERVERS=2" in rank_program(["a"], servers=2)
    assert not any("GRADIENTFLOW_SERVERS" in word for word in rank_program(["a"]))
    with pytest.raises(LaunchError, match="too many"):
        mpirun_command(launcher, 2, ["a"], servers=10**6)
