"""Runs of tests/programs/faulty.py, and the diagnosis of each: faulty_runs.py SEEDS [DOOR...] prints a score."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from gradientflow.launch import module_command

PROGRAMS = Path(__file__).resolve().parents[1] / "programs"
sys.path.append(str(PROGRAMS))

from faulty import DOORS, Fault  # noqa: E402

FAULTY = [sys.executable, str(PROGRAMS / "faulty.py")]


def command(fault: Fault, seed: int, program: Sequence[str] = FAULTY) -> list[str]:
    """Write the command line of a seed's job, in which `program` takes the place of Python and faulty.py."""
    options = ["--transport", "tcp", "-n", str(fault.ranks)]
    if program == FAULTY and fault.door in ("ddp", "optimizer"):  # imported once for all ranks
        options += ["--preload", "torch,torch._dynamo,gradientflow.torch"]
    return module_command("gradientflow.cli", ["run", *options, "--", *program, str(seed), fault.door])


def settings(folder: str | Path, seconds: float) -> dict[str, str]:
    """Return the variables of a job that writes its reports into a folder, with a timeout in seconds."""
    return {"GRADIENTFLOW_DUMP": str(folder), "GRADIENTFLOW_TIMEOUT": f"{seconds:g}", "OMP_NUM_THREADS": "1"}


def difference(fault: Fault, folder: str | Path) -> str:
    """Return what is wrong in the diagnosis of a job's reports, with the diagnosis; empty if nothing is."""
    done = subprocess.run(
        module_command("gradientflow.cli", ["why", str(folder), "--json"]), capture_output=True, text=True, timeout=60
    )
    if done.returncode != 0:
        return f"{fault}: {done.stderr}"
    found = json.loads(done.stdout)
    line = found["place"] and found["place"]["line"]
    if found["ranks"] == [fault.rank] and line in fault.lines():
        return ""
    return (
        f"{fault} of lines {sorted(fault.lines())}: {found['kind']} {found['ranks']} line {line}: {found['sentence']}"
    )


def main(seeds: int, doors: Sequence[str]) -> None:
    """Run seeds one after another, and print the wrong diagnoses and the score."""
    wrong = 0
    for seed in range(seeds):
        fault = Fault.of(seed, doors[seed // 10 % len(doors)])
        with tempfile.TemporaryDirectory() as folder:
            environment = {**os.environ, **settings(folder, 4)}
            subprocess.run(command(fault, seed), env=environment, capture_output=True, timeout=180, check=False)
            if text := difference(fault, folder):
                wrong += 1
                print(f"seed {seed}: {text}", flush=True)
        print(f"{seed + 1 - wrong} of {seed + 1}", flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:] or DOORS)
