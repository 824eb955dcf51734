"""The benchmarks on a CUDA device, emulated where there is none, and the script that proves it all on a GPU machine."""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import pytest
from jobs import Finished
from needs_mpi import needs_mpi

from gradientflow.bench.collective.columns import Result
from gradientflow.bench.kernels.columns import KernelResult
from gradientflow.bench.kernels.contestants import DEVICE_KERNELS
from gradientflow.bench.kernels.device import take_device_times

ROOT = Path(__file__).resolve().parents[2]


def from_checkout(name: str) -> Any:
    """Load a script of the benchmarks that is not installed."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "bench" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


gpu_check = from_checkout("gpu_check")
Ended, Step, run_step = gpu_check.Ended, gpu_check.Step, gpu_check.run_step


def run_python(*arguments: str, env: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    """Run Python in a process of its own."""
    return subprocess.run(
        [sys.executable, *arguments],
        env={**os.environ, "OMP_NUM_THREADS": "1", **env},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )


def run_program(program: str, *arguments: str, env: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    """Run the command line after a few lines of Python."""
    return run_python("-c", f"{program}\nfrom gradientflow.cli import main; main()", *arguments, env=env)


def bench(*arguments: str, env: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    """Run ``gradientflow bench`` on a device, briefly."""
    return run_python("-m", "gradientflow", "bench", *arguments, "--device", "cuda", "--seconds", "0.05", env=env)


# ---- the kernels -----------------------------------------------------------------------------------------------------


def test_every_kernel_is_verified_and_measured(device_env: Mapping[str, str], tmp_path: Path) -> None:
    path = tmp_path / "figures.json"
    ended = bench("kernels", "--sizes", "20012", "--json", str(path), env=device_env)
    assert ended.returncode == 0, ended.stderr
    assert "cudaMemcpyAsync on the device" in ended.stdout
    written = json.loads(path.read_text())
    assert written["environment"]["device"] == "cuda"
    assert written["environment"]["gpu"]
    assert written["environment"]["gpu"] in ended.stdout
    results = written["results"]
    assert len(results) == len(DEVICE_KERNELS)
    assert set(results[0]) == {field.name for field in fields(KernelResult)}
    assert {(result["device"], result["simd"], result["wrong"]) for result in results} == {("cuda", "none", 0)}
    assert all(result["iterations"] >= 5 and result["median_us"] > 0 for result in results)


def test_a_wrong_kernel_is_noticed(device_env: Mapping[str, str]) -> None:
    """One that leaves out the last elements: what it writes, or the number that it works out, is wrong then."""
    program = (
        "from dataclasses import replace\n"
        "import gradientflow.bench.kernels.plan as plan\n"
        "def short(kernel): return replace(kernel, prepare=lambda at, count: kernel.prepare(at, count - 9))\n"
        "plan.KERNELS_OF['cuda'] = [short(kernel) for kernel in plan.KERNELS_OF['cuda']]"
    )
    names = ["reduce", "scatter", "sum_of_squares"]
    arguments = ["--sizes", "4K", "--kernels", ",".join(names), "--seconds", "0.05"]
    ended = run_program(program, "bench", "kernels", "--device", "cuda", *arguments, env=device_env)
    assert ended.returncode == 1, ended.stderr
    assert [ended.stdout.count(f"WRONG: {name} of") for name in names] == [3, 3, 3]


class MadeUpLaunch:
    """A kernel that takes as long as it says, by a clock of its own."""

    def __init__(self, microseconds: float) -> None:
        self._microseconds = microseconds
        self.repeats: list[int] = []

    def run(self) -> Sequence[float]:
        return []

    def microseconds(self, repeats: int) -> float:
        self.repeats.append(repeats)
        return self._microseconds


def test_short_kernels_are_launched_many_times_in_a_row() -> None:
    short, long = MadeUpLaunch(5.0), MadeUpLaunch(15.0)
    times = take_device_times([short, long], 0.05)
    assert times.tolist() == [[5000] * times.shape[1], [15000] * times.shape[1]]
    assert times.shape[1] >= 5
    assert short.repeats[-1] == long.repeats[-1] == 400  # in which both together take twice the shortest series
    slow = MadeUpLaunch(1e6)
    take_device_times([slow], 0.05)
    assert slow.repeats[-1] == 1


# ---- collectives -----------------------------------------------------------------------------------------------------


@needs_mpi
def test_allreduce_is_measured_beside_mpi_through_the_host(device_env: Mapping[str, str], tmp_path: Path) -> None:
    path = tmp_path / "figures.json"
    arguments = ["--sizes", "4K,20012", "--algorithm", "auto,ring", "--op", "mean", "--json", str(path)]
    ended = bench("allreduce", "-n", "2", *arguments, env=device_env)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "launch" in ended.stdout
    written = json.loads(path.read_text())
    assert written["environment"]["device"] == "cuda"
    results = written["results"]
    assert set(results[0]) == {field.name for field in fields(Result)}
    ours = {(result["memory"], result["algorithm"]) for result in results if result["backend"] == "gradientflow"}
    assert ours == {(memory, algorithm) for memory in ("pool", "array") for algorithm in ("auto", "ring")}
    assert [result["backend"] for result in results].count("mpi") == 2
    assert {(result["device"], result["wrong"]) for result in results} == {("cuda", 0)}
    assert all(result["launch_us"] > 0 and result["refill_median_us"] > 0 for result in results)


@pytest.mark.thorough
@pytest.mark.parametrize("collective", ["reduce-scatter", pytest.param("scatter", marks=pytest.mark.slow)])
def test_arrays_of_different_lengths_are_right(collective: str, device_env: Mapping[str, str]) -> None:
    ended = bench(collective, "-n", "3", "--sizes", "4000", "--iterations", "5", "--compare", "", env=device_env)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "WRONG" not in ended.stdout


@pytest.mark.thorough
def test_nccl_that_is_not_there_is_a_remark(device_env: Mapping[str, str]) -> None:
    hidden = {**device_env, "GRADIENTFLOW_NCCL_LIBRARY": "/nowhere/libnccl.so.2"}
    arguments = ["--sizes", "4K", "--algorithm", "auto,nccl", "--compare", "nccl", "--memory", "array"]
    ended = bench("allreduce", "-n", "2", *arguments, "--iterations", "5", env=hidden)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    text = " ".join(ended.stdout.split())
    assert "4K: nccl was not measured: /nowhere/libnccl.so.2" in text
    assert "4K: ours (nccl, array) was not measured" in text


@needs_mpi
def test_a_wrong_result_on_the_device_is_noticed(device_env: Mapping[str, str]) -> None:
    """One that is not there: its array on the device stays as it was, whatever the image of it has held."""
    program = (
        "from dataclasses import replace\n"
        "import gradientflow.bench.collective.session as session\n"
        "made = session.our_contestant\n"
        "session.our_contestant = lambda *args: replace(made(*args), call=lambda: None)"
    )
    arguments = ["allgather", "--device", "cuda", "--sizes", "4K", "--iterations", "5"]
    ended = run_program(program, "bench", *arguments, env={**device_env, "OMPI_COMM_WORLD_SIZE": "1"})
    assert ended.returncode == 1, ended.stdout + ended.stderr
    text = " ".join(ended.stdout.split())
    assert "WRONG: ours (auto, pool) at 4K" in text
    assert "WRONG: ours (auto, array) at 4K" in text
    assert "WRONG: mpi" not in text


# ---- without a device ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("arguments", [["kernels"], ["allreduce", "-n", "2"]], ids=["kernels", "allreduce"])
def test_without_a_device_nothing_is_begun(arguments: list[str]) -> None:
    ended = bench(*arguments, env={"GRADIENTFLOW_CUDA_LIBRARY": "/nowhere/libgradientflow_cuda.so"})
    assert ended.returncode == 2
    assert ended.stdout == ""
    assert "--device cuda: GradientFlow was built without CUDA" in ended.stderr
    assert len(ended.stderr.splitlines()) == 1


def test_what_only_a_device_has_is_refused_on_the_processor(command_line: Callable[..., Finished]) -> None:
    for option in ("--algorithm", "--compare"):
        done = command_line("bench", "allreduce", "-n", "2", option, "nccl")
        assert (done.returncode, f"{option} does not know 'nccl'" in done.stderr) == (2, True)


# ---- the script ------------------------------------------------------------------------------------------------------


def python_step(program: str, limit: float = 30) -> Step:
    return Step("step", [sys.executable, "-c", program], limit)


def test_steps_pass_and_fail_and_end_in_time(tmp_path: Path) -> None:
    later = time.monotonic() + 60
    ended = run_step(python_step("print('here')"), tmp_path, later)
    assert (ended.status, ended.reason) == ("passed", "")
    assert (tmp_path / "step.log").read_text().endswith("here\n")
    ended = run_step(python_step("raise SystemExit(3)"), tmp_path, later)
    assert (ended.status, ended.reason) == ("failed", "exit status 3")
    began = time.monotonic()
    ended = run_step(python_step("import time; time.sleep(60)", 0.5), tmp_path, later)
    assert (ended.status, ended.reason) == ("failed", "it had not ended after 0 s")
    assert time.monotonic() - began < 10
    ended = run_step(python_step(""), tmp_path, time.monotonic() - 1)
    assert (ended.status, "the time for the whole run was up" in ended.reason) == ("failed", True)
    assert run_step(Step("step", ["/nowhere/program"], 5), tmp_path, later).status == "failed"
    assert run_step(Step("step", [], 0, reason="no tool"), tmp_path, later).status == "left out"


@pytest.mark.parametrize(
    ("counts", "status", "found"),
    [
        ('tests="9" failures="0" errors="0" skipped="4"', "passed", {"passed": 5, "failed": 0, "skipped": 4}),
        ('tests="4" failures="0" errors="0" skipped="4"', "failed", {"passed": 0, "failed": 0, "skipped": 4}),
        ('tests="0" failures="0" errors="0" skipped="0"', "left out", {"passed": 0, "failed": 0, "skipped": 0}),
    ],
)
def test_tests_that_were_all_skipped_prove_nothing(
    counts: str, status: str, found: dict[str, int], tmp_path: Path
) -> None:
    report = tmp_path / "report.xml"
    report.write_text(f"<testsuites><testsuite {counts}/></testsuites>")
    step = Step("step", [sys.executable, "-c", ""], 30, report=report)
    ended = run_step(step, tmp_path, time.monotonic() + 60)
    assert (ended.status, ended.tests) == (status, found)


def test_the_aims_are_read_off_the_figures(tmp_path: Path) -> None:
    def write(name: str, results: list[dict[str, Any]]) -> None:
        (tmp_path / f"{name}.json").write_text(json.dumps({"results": results}))

    kernels = [{"kernel": "cast", "dtype": dtype, "bytes": 8, "ratio": 0.9} for dtype in ("float16", "bfloat16")]
    write("bench-kernels", [*kernels, {"kernel": "gather", "dtype": "float32", "bytes": 8, "ratio": 0.95}])
    write(
        "bench-1-rank",
        [
            {"backend": backend, "bytes": size, "launch_us": us}
            for size in (4, 8)
            for backend, us in (("gradientflow", 9.0), ("nccl", 3.0))
        ],
    )
    ours = {"backend": "gradientflow", "bytes": 1 << 20}
    write(
        "bench-2-ranks",
        [
            {**ours, "memory": memory, "algorithm": algorithm, "median_us": us}
            for memory, shared in (("array", 10.0), ("pool", 2.0))
            for algorithm, us in (("shared", shared), ("hierarchical", 20.0))
        ],
    )
    options = argparse.Namespace(small=False)
    ended = [Ended(name, "", "passed", 1.0) for name in ("bench-kernels", "bench-1-rank", "bench-2-ranks")]
    summary = gpu_check._write_summary(tmp_path, options, ended)
    assert json.loads((tmp_path / "summary.json").read_text()) == summary
    assert summary["passed"]
    assert [step["name"] for step in summary["steps"]] == [asdict(step)["name"] for step in ended]
    reached = [(aim["reached"], aim["found"]) for aim in summary["aims"]]
    assert reached == [
        (True, "0.90 to 0.95"),
        (False, "6.0 us in the median of 2 sizes"),
        (False, "2.0x at 1 MiB"),
        (True, "10.0x at 1 MiB"),
    ]


@pytest.mark.thorough
def test_the_script_runs_through(device_env: Mapping[str, str], tmp_path: Path) -> None:
    """Without what takes long; what is left out says so, and a step that fails decides the exit status."""
    command = [sys.executable, "bench/gpu_check.py", "--out", str(tmp_path), "--no-install", "--small", "--seconds"]
    command += ["0.02", "--ranks", "2", "--only", "doctor", "bench-2-ranks", "bench-gpus"]
    env = {**os.environ, **device_env}
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=110, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert [(step["name"], step["status"]) for step in summary["steps"]][:2] == [
        ("doctor", "passed"),
        ("bench-2-ranks", "passed"),
    ]
    assert json.loads((tmp_path / "bench-2-ranks.json").read_text())["results"]
