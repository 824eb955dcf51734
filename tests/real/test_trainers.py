"""Trainers of other libraries, each in the ways in which its users start it."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from jobs import Finished, Job, free_port, python_command, write

from gradientflow.launch import module_command

EXAMPLES = Path(__file__).resolve().parents[2] / "docs" / "examples"
PYTHON = [sys.executable]
TORCHRUN = [*PYTHON, "-m", "torch.distributed.run", "--nproc-per-node=2", "--rdzv-backend=c10d"]
TORCHRUN += ["--rdzv-endpoint=127.0.0.1:0"]
RUN = [*module_command("gradientflow.cli", ["run", "-n", "2", "--transport", "tcp", "--"]), *PYTHON]

SETTINGS = {"DS_ACCELERATOR": "cpu", "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}

pytestmark = pytest.mark.timeout(600)


@pytest.fixture
def finish(start_command: Callable[..., Job], tmp_path: Path) -> Callable[..., Finished]:
    """Give ``finish(command)``, which runs a command to its end, in an empty folder."""

    def run(command: list[str]) -> Finished:
        finished = start_command(command, SETTINGS, 500, cwd=tmp_path).finish()
        assert finished.returncode == 0, finished.output
        return finished

    return run


def program(name: str) -> str:
    return python_command(name)[-1]


@pytest.mark.real("transformers", "accelerate")
def test_transformers(finish: Callable[..., Finished], tmp_path: Path) -> None:
    """Weights and losses are Gloo's to the bit, and those of a training that is not interrupted."""
    assert "trained" in finish([*RUN, program("trainer_transformers"), str(tmp_path)]).stdout


NOTEBOOK = f"""
import runpy, sys
from accelerate import notebook_launcher
def train():
    runpy.run_path({str(EXAMPLES / "train_accelerate.py")!r}, run_name="__main__")
if __name__ == "__main__":
    notebook_launcher(train, num_processes=2, use_port=sys.argv[1])
"""
ACCELERATE = [*PYTHON, "-m", "accelerate.commands.launch", "--num_processes=2", "--num_machines=1"]
ACCELERATE += ["--main_process_port=0", "--mixed_precision=no", "--dynamo_backend=no"]
EXAMPLE = "train_accelerate.py"
STARTS = {
    # Without the file of hosts it starts one process.
    "accelerate launch by mpirun": ([*ACCELERATE, "--cpu", "--mpirun_hostfile=hosts"], EXAMPLE, "accelerate"),
    "accelerate launch": ([*ACCELERATE, "--multi_gpu"], EXAMPLE, "accelerate"),
    "notebook_launcher": (PYTHON, "notebook.py", "accelerate"),
    "accelerate by torchrun": (TORCHRUN, EXAMPLE, "accelerate"),
    "accelerate by gradientflow run": (RUN, EXAMPLE, "accelerate"),
    "lightning by itself": (PYTHON, "train_lightning.py", "lightning"),
}


@pytest.mark.parametrize(
    ("command", "example"),
    [pytest.param(*start, id=how, marks=pytest.mark.real(engine)) for how, (*start, engine) in STARTS.items()],
)
def test_examples(finish: Callable[..., Finished], tmp_path: Path, command: list[str], example: str) -> None:
    write(tmp_path / "hosts", "localhost slots=2\n")
    file = write(tmp_path / example, NOTEBOOK) if example == "notebook.py" else EXAMPLES / example
    accuracy, _, rest = finish([*command, str(file), str(free_port())]).line("accuracy").partition(" ")
    assert rest == "on 2 ranks over gradientflow"
    assert float(accuracy) > 0.95


@pytest.mark.real("lightning")
@pytest.mark.parametrize("how", ["spawn", "fork", "torchrun", "run"])
def test_lightning(finish: Callable[..., Finished], tmp_path: Path, how: str) -> None:
    """By launchers of others: weights and losses are Gloo's to the bit, and those without an interruption."""
    start = {"torchrun": TORCHRUN, "run": RUN}.get(how, PYTHON)
    assert "trained" in finish([*start, program("trainer_lightning"), str(tmp_path), how]).stdout


@pytest.mark.real("deepspeed")
def test_deepspeed(finish: Callable[..., Finished], tmp_path: Path) -> None:
    """Weights of ZeRO-1 and ZeRO-2 are Gloo's to the bit. The first start compiles an extension."""
    for backend in ("gloo", "gradientflow"):
        finish([*RUN, program("trainer_deepspeed"), backend, str(tmp_path / backend)])
    assert (tmp_path / "gloo").read_bytes() == (tmp_path / "gradientflow").read_bytes()


@pytest.mark.real("torch")
@pytest.mark.parametrize("start", [TORCHRUN, RUN], ids=["torchrun", "run"])
def test_workers_of_data_loaders(finish: Callable[..., Finished], start: list[str]) -> None:
    assert "worked" in finish([*start, program("data_workers")]).stdout
