"""Jobs that take turns: each measures one contestant in processes of its own, and prints what it has found."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gradientflow.errors import GradientFlowError
from gradientflow.launch import module_command

MARK = "GRADIENTFLOW-BENCH "


@dataclass(frozen=True)
class Place:
    """Where the ranks of all jobs run.

    Attributes
    ----------
    ranks : int
        How many.
    transport : str
        "auto", "mpi" or "tcp".
    hosts : int
        How many hosts of a netlab share them; 0 for this machine.
    rate : str
        What each of these can send.
    """

    ranks: int
    transport: str = "auto"
    hosts: int = 0
    rate: str = "1gbit"

    def command(self, program: Sequence[str]) -> list[str]:
        """Write what runs a program there."""
        how = ["--transport", self.transport, "--", *program]
        if self.hosts == 0:
            return module_command("gradientflow.cli", ["run", "-n", str(self.ranks), *how])
        if self.ranks % self.hosts:
            raise GradientFlowError(f"{self.ranks} ranks cannot be dealt out evenly to {self.hosts} hosts")
        hosts = ["--hosts", str(self.hosts), "--rate", self.rate, "--ranks-per-host", str(self.ranks // self.hosts)]
        return module_command("gradientflow.cli", ["netlab", *hosts, *how])


def run_turn(place: Place, told: Mapping[str, Any], module: str = "gradientflow.bench.jax.rank") -> dict[str, Any]:
    """Run one job of a module, which is told what to measure; return what rank 0 has printed."""
    program = module_command(module, [json.dumps(told)])
    figures: dict[str, Any] = found_by(place.command(program), told["contestant"])
    return figures


def found_by(command: Sequence[str], job: str) -> Any:
    """Run a job, named in errors as `job`, and return what rank 0 has printed behind `MARK`."""
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    found = [line.partition(MARK)[2] for line in done.stdout.splitlines() if MARK in line]
    if done.returncode != 0 or not found:
        raise GradientFlowError(f"a job of {job} has ended with exit status {done.returncode}\n{done.stdout}")
    return json.loads(found[-1])


def turns(contestants: Sequence[str], rounds: int) -> Iterator[str]:
    """Give the contestants round by round, in an order that changes."""
    for number in range(rounds):
        yield from contestants if number % 2 == 0 else reversed(contestants)
