"""Ray: workers of TorchTrainer, which Ray starts again after one was killed, and actors."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from doc_blocks import blocks_left_to
from jobs import Finished, Job, begin, free_port

pytestmark = [pytest.mark.real("ray"), pytest.mark.timeout(400)]

Run = Callable[[str], Finished]

TRAIN = """
import os, signal, tempfile, torch, gradientflow as gf, ray.train
from pathlib import Path
from ray.train.torch import TorchConfig, TorchTrainer, prepare_model

STEPS, KILLED = 8, 3

def train(config):
    with gf.init() as comm:
        assert (comm.rank, comm.size) == (torch.distributed.get_rank(), 2)
    torch.manual_seed(0)
    rank, size = torch.distributed.get_rank(), torch.distributed.get_world_size()
    model = prepare_model(torch.nn.Sequential(torch.nn.Linear(20, 30), torch.nn.Tanh(), torch.nn.Linear(30, 5)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    begin = 0
    if checkpoint := ray.train.get_checkpoint():
        with checkpoint.as_directory() as folder:
            begin, weights, moments = torch.load(Path(folder) / "state.pt")
        model.module.load_state_dict(weights)
        optimizer.load_state_dict(moments)
    for step in range(begin, STEPS):
        if config["kill"] and begin == 0 and step == KILLED and rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        x = torch.randn(8, 20, generator=torch.Generator().manual_seed(step * size + rank))
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
        with tempfile.TemporaryDirectory() as folder:
            torch.save((step + 1, model.module.state_dict(), optimizer.state_dict()), Path(folder) / "state.pt")
            bits = [float(value).hex() for value in torch.cat([each.flatten() for each in model.parameters()])]
            report = {"begin": begin, "bits": bits, "backend": torch.distributed.get_backend()}
            ray.train.report(report, checkpoint=ray.train.Checkpoint.from_directory(folder) if rank == 0 else None)

def fit(backend, kill=False):
    return TorchTrainer(
        train,
        train_loop_config={"kill": kill},
        torch_config=TorchConfig(backend=backend),
        scaling_config=ray.train.ScalingConfig(num_workers=2),
        run_config=ray.train.RunConfig(
            name=f"{backend} {kill}",
            storage_path=os.environ["FOLDER"],
            failure_config=ray.train.FailureConfig(max_failures=1),
        ),
    ).fit().metrics

gloo, killed = fit("gloo"), fit("gradientflow", kill=True)
assert (gloo["backend"], killed["backend"]) == ("gloo", "gradientflow")
assert gloo["begin"] == 0 < killed["begin"] <= KILLED, killed["begin"]
assert gloo["bits"] == killed["bits"]
print("done")
"""


@pytest.fixture(scope="module")
def cluster() -> Iterator[dict[str, str]]:
    """Start a node of Ray with room for two workers; give the environment of its programs."""
    folder = tempfile.mkdtemp(prefix="ray")  # a short path, below which Ray has sockets
    address = f"127.0.0.1:{free_port()}"
    env = {"RAY_AUTH_MODE": "disabled", "RAY_worker_niceness": "0", "FOLDER": folder}
    env |= {"RAY_raylet_start_wait_time_s": "200", "RAY_worker_register_timeout_seconds": "200"}
    options = f"--head --block --port={address.partition(':')[2]} --node-ip-address=127.0.0.1 --num-cpus=2"
    options += f" --object-store-memory={80 << 20} --include-dashboard=false --disable-usage-stats --temp-dir={folder}"
    job = begin([sys.executable, "-m", "ray.scripts.scripts", "start", *options.split()], env, 400)
    words = []
    for line in job.process.stdout or ():
        words.append(line)
        if "Ray runtime started" in line:
            break
    else:
        pytest.fail("".join(words) + job.process.communicate()[1])
    yield {**env, "RAY_ADDRESS": address}
    job.close()
    shutil.rmtree(folder)


@pytest.fixture
def run(start_command: Callable[..., Job], cluster: dict[str, str], tmp_path: Path) -> Run:
    """Give ``run(program)``, which runs the text of a program to its end."""

    def run_program(program: str) -> Finished:
        (file := tmp_path / "program.py").write_text(program)
        finished = start_command([sys.executable, str(file)], {**cluster, "HOME": os.environ["HOME"]}, 300).finish()
        assert finished.returncode == 0, finished.output
        return finished

    return run_program


def test_a_killed_worker_is_started_again_and_the_weights_are_those_of_gloo(run: Run) -> None:
    assert run(TRAIN).line("done") == ""


def test_the_programs_of_the_page(run: Run) -> None:
    trainer, actors = blocks_left_to(__file__, "docs/clusters.md")
    assert "3., 3., 3., 3." in run(trainer.text).output
    assert run(actors.text).stdout.count("array([3., 3., 3., 3.])") == 2
