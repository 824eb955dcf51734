"""Jobs that take turns: each measures one contestant in separate processes, and prints its findings."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from gradientflow.annotations import JsonObject, JsonValue
from gradientflow.errors import GradientFlowError
from gradientflow.launch import module_command

MARK = "GRADIENTFLOW-BENCH "


@dataclass(frozen=True)
class JobPlace:
    """The place of the ranks of all jobs.

    Attributes
    ----------
    ranks : int
        Number of ranks.
    transport : str
        "auto", "mpi" or "tcp".
    hosts : int
        Number of hosts of a netlab that share the ranks; 0 for this machine.
    rate : str
        Rate at which each of these hosts can send.
    """

    ranks: int
    transport: str = "auto"
    hosts: int = 0
    rate: str = "1gbit"

    def command(self, program: Sequence[str]) -> list[str]:
        """Make the command that runs a program there."""
        how = ["--transport", self.transport, "--", *program]
        if self.hosts == 0:
            return module_command("gradientflow.cli", ["run", "-n", str(self.ranks), *how])
        if self.ranks % self.hosts:
            raise GradientFlowError(f"{self.ranks} ranks cannot be dealt out evenly to {self.hosts} hosts")
        hosts = ["--hosts", str(self.hosts), "--rate", self.rate, "--ranks-per-host", str(self.ranks // self.hosts)]
        return module_command("gradientflow.cli", ["netlab", *hosts, *how])


def run_turn(place: JobPlace, told: JsonObject, module: str = "gradientflow.bench.jax.rank") -> JsonObject:
    """Run one job of a module with the settings `told`; return the output of rank 0."""
    program = module_command(module, [json.dumps(told)])
    figures: JsonObject = found_by(place.command(program), told["contestant"])
    return figures


def found_by(command: Sequence[str], job: str) -> JsonValue:
    """Run a job, named in errors as `job`, and return rank 0's output after `MARK`."""
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    found = [line.partition(MARK)[2] for line in done.stdout.splitlines() if MARK in line]
    if done.returncode != 0 or not found:
        raise GradientFlowError(f"a job of {job} has ended with exit status {done.returncode}\n{done.stdout}")
    return json.loads(found[-1])


def turns(contestants: Sequence[str], rounds: int) -> Iterator[str]:
    """Give the contestants round by round, in alternating order."""
    for number in range(rounds):
        yield from contestants if number % 2 == 0 else reversed(contestants)
