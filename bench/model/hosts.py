"""Jobs on emulated hosts, whose rank 0 prints the findings."""

from __future__ import annotations

import json
from dataclasses import dataclass

from rich.console import Console

from gradientflow.annotations import JsonValue
from gradientflow.launch import module_command

from ..core.job_turns import found_by


@dataclass(frozen=True)
class Case:
    """Hosts to emulate.

    Attributes
    ----------
    hosts : int
        Number of hosts, with a rank each.
    rate : str
        Rate at which each host can send.
    stragglers : tuple of float
        Slowdowns of the ranks' computation, in turn.
    delay : str
        Delay of messages between hosts.
    """

    hosts: int
    rate: str = "1gbit"
    stragglers: tuple[float, ...] = (1.0,)
    delay: str = "0s"

    def __str__(self) -> str:
        """Return the name of the case."""
        slow = "" if max(self.stragglers) == 1 else f", one {max(self.stragglers):g}x slower"
        late = "" if self.delay == "0s" else f", {self.delay}"
        return f"{self.hosts} hosts, {self.rate}{late}{slow}"


def run_on_hosts(case: Case, transport: str, told: dict[str, object], console: Console) -> JsonValue:
    """Run a job on emulated hosts, and return the findings of its rank 0.

    Raises
    ------
    gradientflow.errors.GradientFlowError
        If the job fails.
    """
    console.print(f"[dim]{case}: {told['measure']} ...[/dim]")
    program = module_command("gradientflow.bench.model.rank", [json.dumps(told)])
    where = ["--hosts", str(case.hosts), "--rate", case.rate, "--delay", case.delay, "--transport", transport]
    return found_by(module_command("gradientflow.cli", ["netlab", *where, "--", *program]), str(case))


__all__ = ["Case", "run_on_hosts"]
