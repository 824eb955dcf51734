"""A job whose last rank dies and comes back, and what each join has taken, if all ranks have what they should."""

from __future__ import annotations

import json
import subprocess
from dataclasses import dataclass
from typing import Any

from gradientflow.errors import GradientFlowError
from gradientflow.launch import module_command
from gradientflow.strategies import Strategy

from .replay import is_near, replayed, replayed_apart
from ranks import rank_command

_PATIENCE = 300.0  # seconds, for each join


@dataclass(frozen=True)
class Join:
    """What it took to come to the others.

    Attributes
    ----------
    ready : float
        Seconds from the start of the process until it knocked: imports, and the making of its weights.
    let_in : float
        From the knock until it had a communicator with the others.
    state : float
        From then until its first step began: its loop was made, and got what it lacked.
    first : float
        That step.
    others : float
        How long the others stood still: the longest step in which one of them let it in, less its usual step. Where
        they train by themselves between two exchanges, the steps from one to the next take the place of this step.
    wrong : bool
        Whether weights or momentum of a rank are others than those of the replay some steps later.
    """

    ready: float
    let_in: float
    state: float
    first: float
    others: float
    wrong: bool

    @property
    def total(self) -> float:
        """Seconds from the knock until the first step began."""
        return self.let_in + self.state


def run(ranks: int, hosts: int, rate: str, nbytes: int, joins: int, strategy: Strategy) -> list[Join]:
    """Run a job whose last rank dies so many times.

    Parameters
    ----------
    ranks : int
        How many, on each host.
    hosts : int
        How many hosts to make by netlab; with 0 the ranks live on this machine.
    rate : str
        What each of the hosts can send.
    nbytes : int
        Of weights and momentum.
    joins : int
        How many.
    strategy : Strategy
        "dense", or one that exchanges weights every few steps.

    Raises
    ------
    gradientflow.errors.GradientFlowError
        If the job fails.
    """
    program = rank_command("join.rank", [str(nbytes), str(joins), repr(strategy)])
    where = ["netlab", "--hosts", str(hosts), "--rate", rate, "--ranks-per-host"] if hosts else ["run", "-n"]
    options = [str(ranks), "--transport", "tcp", "--min-ranks", "1", "--restart", str(joins)]
    command = module_command("gradientflow.cli", [*where, *options, "--", *program])
    job = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        out, errors = job.communicate(timeout=_PATIENCE * joins)
    except subprocess.TimeoutExpired:
        job.terminate()  # its ranks end with it
        out, errors = job.communicate()
    said = [json.loads(line) for line in out.splitlines()]
    if job.returncode != 0 or len(said) != joins * ranks * max(hosts, 1):
        raise GradientFlowError(f"the job has not let {joins} newcomers in (exit status {job.returncode})\n{errors}")
    by_join = [[line for line in said if line["join"] == number] for number in range(1, joins + 1)]
    return [judged(lines, nbytes, strategy) for lines in by_join]


def judged(said: list[dict[str, Any]], nbytes: int, strategy: Strategy) -> Join:
    """Make a join of what all ranks have said about it."""
    (newcomer,) = (line for line in said if line["newcomer"])
    others = [line for line in said if not line["newcomer"]]
    finals = {json.dumps([line["history"], line["steps"]]) for line in others}
    history, steps = others[0]["history"], others[0]["steps"]
    if strategy.gradients == "mean":
        sums = replayed(history, steps, nbytes // 8)
        wrong = len(finals) > 1 or any(tuple(line["sums"]) != sums for line in said)
    else:  # sums over ranks are rounded, but the same everywhere; momentum is exact
        weights, momenta = replayed_apart(history, steps, nbytes // 8, strategy)
        wrong = len(finals) > 1 or len({line["sums"][0] for line in said}) > 1
        wrong |= any(line["sums"][1] != momenta[line["rank"]] for line in said)
        wrong |= not is_near(said[0]["sample"], weights)
    times = {name: newcomer[name] for name in ("ready", "let_in", "state", "first")}
    return Join(**times, others=max(line["first"] - line["usual"] for line in others), wrong=wrong)
