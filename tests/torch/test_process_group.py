"""The process group "gradientflow" for PyTorch: all its calls, what PyTorch builds on them, how it begins and ends."""

from __future__ import annotations

import importlib.util
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from jobs import write
from needs_reconfigure import needs_reconfigure
from rank_servers import RankServers
from survivors import run_ranks
from tutorial_script import OUTSIDE, losses

from gradientflow.launch import Launcher, launch_environment, module_command

pytest.importorskip("torch")

Run = Callable[..., Any]

RANK_PROGRAMS = Path(__file__).resolve().parents[1] / "programs"
EXAMPLES = Path(__file__).resolve().parents[2] / "docs" / "examples"


@pytest.mark.checks("process_group")
@pytest.mark.parametrize(
    ("ranks", "node_sizes", "progress"),
    [
        (3, "02", "caller"),
        *(pytest.param(*each, marks=pytest.mark.thorough) for each in ((2, "1", "auto"), (3, "1", "thread"))),
    ],
)
def test_every_call_gives_what_numpy_gives(check: Run, ranks: int, node_sizes: str, progress: str) -> None:
    """With nodes of all sizes (0: one for all ranks), one after the other in the same processes."""
    check(ranks, *node_sizes, env={"GRADIENTFLOW_PROGRESS": progress}, timeout=100)


@pytest.mark.checks("process_group_users")
@pytest.mark.parametrize(
    "settings",
    [{"GRADIENTFLOW_NODE_SIZE": "1"}, pytest.param({"GRADIENTFLOW_PROGRESS": "caller"}, marks=pytest.mark.slow)],
)
def test_what_pytorch_builds_on_process_groups(check: Run, settings: dict[str, str], tmp_path: Path) -> None:
    check(2, tmp_path, env=settings, timeout=100)


@pytest.mark.checks("process_group_life")
@pytest.mark.parametrize("progress", ["caller", pytest.param("thread", marks=pytest.mark.slow)])
def test_groups_begin_and_end(check: Run, progress: str) -> None:
    if finished := check(2, env={"GRADIENTFLOW_PROGRESS": progress}):
        assert finished.stderr == ""  # though the last group was left open with everything under way


@pytest.mark.thorough
def test_a_group_begins_again_while_a_part_of_the_last_is_kept(
    process_command: Callable[[Path], list[str]], tmp_path: Path
) -> None:
    """Its store is then still served, at the port that the launcher has chosen."""
    program = write(
        tmp_path / "program.py",
        "import torch, torch.distributed as dist\n"
        "for _ in range(2):\n"
        "    dist.init_process_group('gradientflow')\n"
        "    kept = dist.new_group([0, 1])\n"
        "    dist.all_reduce(ones := torch.ones(1), group=kept)\n"
        "    assert ones.item() == 2\n"
        "    dist.destroy_process_group()\n",
    )
    command = ["run", "-n", "2", "--transport", "tcp", "--", *process_command(program)]
    command = module_command("gradientflow.cli", command)
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr


def test_what_pytorch_has_for_programs_that_handle_failures(
    process_command: Callable[[str], list[str]], tmp_path: Path
) -> None:
    printed = run_ranks(process_command("process_group_failures"), 3, tmp_path)
    assert sorted(printed.splitlines()) == [f"rank {rank} has come to the end" for rank in (0, 2)]


@needs_reconfigure
def test_groups_that_get_other_members(process_command: Callable[[str], list[str]], tmp_path: Path) -> None:
    printed = run_ranks(process_command("process_group_reconfigured"), 3, tmp_path, restart=True)
    assert sorted(printed.splitlines()) == [f"rank {rank} has come to the end" for rank in range(3)]


LOADING = """
import os
import sys
if os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"] == "0":
    import torch
    import torch.distributed as dist
    assert "gradientflow" not in dist.Backend.backend_list
import gradientflow.torch
import torch
import torch.distributed as dist

def refused(text):
    try:
        dist.init_process_group("gradientflow")
    except ValueError as error:
        assert text in str(error), error
    else:
        raise AssertionError("no error")

assert "gradientflow" in dist.Backend.backend_list
assert not {"mpi4py", "gradientflow.torch.process_group", "torch._dynamo"} & set(sys.modules)
refused("mpirun -n N")
os.environ.update(RANK="1", WORLD_SIZE="2")
refused("MASTER_ADDR and MASTER_PORT are not set")
os.environ.update(RANK="0", WORLD_SIZE="1")
if os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"] == "0":
    dist.init_process_group("gradientflow")
    dist.barrier()
else:
    import runpy
    sys.path.insert(0, os.path.dirname(sys.argv[1]))
    runpy.run_path(sys.argv[1])
"""


@pytest.mark.parametrize("automatic", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_loading_and_one_process_without_a_job(automatic: bool) -> None:
    """The package registers the backend, cheaply, also in the midst of its own import, and where PyTorch does not ask.

    Without a job there is no group, but for one rank; that one can make all calls.
    """
    finished = subprocess.run(
        [sys.executable, "-c", LOADING, str(RANK_PROGRAMS / "process_group.py"), "0"],
        env={**OUTSIDE, "TORCH_DEVICE_BACKEND_AUTOLOAD": str(int(automatic)), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (finished.returncode, finished.stderr) == (0, "")


@pytest.mark.slow
def test_a_tutorial_script_gives_what_it_gives_with_gloo(tmp_path: Path) -> None:
    ours = losses("gradientflow", tmp_path / "ours", 2)
    assert list(ours) == [0, 1]
    resumed = losses("gradientflow", tmp_path / "ours", 4)
    assert list(resumed) == [2, 3]
    gloo = losses("gloo", tmp_path / "gloo", 4)
    assert {**ours, **resumed} == pytest.approx(gloo, rel=1e-5)
    assert gloo[3] < gloo[0] / 2


@pytest.mark.parametrize(
    ("example", "package"),
    [
        ("tensor_parallel", "torch"),
        *(
            pytest.param(*each, marks=pytest.mark.slow)
            for each in (("lightning",) * 2, ("accelerate",) * 2, ("hf_trainer", "transformers"))
        ),
    ],
)
def test_frameworks_on_top_of_pytorch_train(
    example: str, package: str, launcher: Launcher, rank_servers: RankServers, shell: Run, tmp_path: Path
) -> None:
    """The examples of the documentation."""
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"could not import '{package}', which comes with the extra dev: pip install '.[dev]'")
    script = rank_servers.command(EXAMPLES / f"train_{example}.py", {})
    command = shlex.join(module_command("gradientflow.cli", ["run", "-n", "2", "--", *script]))
    finished = shell(command, tmp_path, launch_environment(launcher), timeout=100)
    assert finished.returncode == 0, finished.output
    accuracy, _, rest = finished.line("accuracy").partition(" ")
    assert rest == "on 2 ranks over gradientflow"
    assert float(accuracy) > 0.95
