"""``gradientflow bench first``: programs that set only the name of a strategy, beside DDP over Gloo."""

from __future__ import annotations

import importlib.util
import json
import secrets
import statistics
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

import click
from rich.console import Console

from gradientflow.errors import GradientFlowError
from gradientflow.json_option import JsonOutput, json_option
from gradientflow.machine import format_size
from gradientflow.tables import FittedTable, print_table

from ..core.job_turns import JobPlace, run_turn, turns
from ..core.packages import check_packages
from ..core.plan import PlanError, parse_sizes
from ..core.table import empty_table
from ..train.perceptrons import SHAPES

_GLOO = "ddp-gloo"
_TRAINED = {"ddp-gradientflow": "DDP", "dense": "optimizer", "csc": "csc", "lags": "lags"}
_PSUM = "psum_over_gloo"  # a ratio; all other figures are milliseconds
_ROUNDS = 3  # jobs of each library for JAX, since a JAX process has only one library


@click.command()
@click.option("-n", "--ranks", default=2, show_default=True, help="Number of ranks on this machine; 0 for none.")
@click.option(
    "--hosts", default=4, show_default=True, help="Number of hosts to emulate by netlab, one rank each; 0 for none."
)
@click.option("--rate", default="1gbit", show_default=True, help="Rate at which each host can send.")
@click.option(
    "--gradients", default="300K,1400K,5M,23M,100M", show_default=True, help="Bytes of the gradients of each model."
)
@click.option("--shape", type=click.Choice(SHAPES), default=SHAPES[0], show_default=True, help="Layers of the models.")
@click.option("--steps", default=20, show_default=True, help="Timed steps of each contestant.")
@click.option(
    "--jax/--no-jax",
    default=importlib.util.find_spec("jax") is not None,
    help="Measure psum of JAX, too  [default: if installed]",
)
@json_option
def first(
    ranks: int,
    hosts: int,
    rate: str,
    gradients: str,
    shape: str,
    steps: int,
    jax: bool,
    json_output: JsonOutput | None,
) -> None:
    """Measure the performance without settings: DDP, the optimizer, csc, lags and psum of JAX, beside Gloo.

    Every result is checked before it is timed.
    """
    sizes = parse_sizes(gradients)
    places = [JobPlace(ranks)] if ranks else []
    places += [JobPlace(hosts, hosts=hosts, rate=rate)] if hosts else []
    if not places or not sizes:
        raise PlanError("nothing is to be measured: give --ranks or --hosts, and --gradients")
    check_packages("bench first", "torch", "sklearn", *(["jax"] if jax else []))
    console = Console()
    found = []
    for place in places:
        figures = _trained(place, sizes, shape, steps)
        if jax:
            for size, ratio in _psum(place, sizes).items():
                figures[size][_PSUM] = ratio
        print_table(_table(place, figures), console)
        found.append({"place": vars(place), "shape": shape, "steps": steps, "results": figures})
    if json_output is not None:
        json_output.write(found)


def _trained(place: JobPlace, gradients: Sequence[int], shape: str, steps: int) -> dict[str, dict[str, float]]:
    """Give the milliseconds of a step by size and contestant."""
    models = {f"{shape}-{format_size(size)}": format_size(size) for size in gradients}
    strategies = [name for name in _TRAINED if not name.startswith("ddp")]
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "figures.json")
        options = ["--model", ",".join(models), "--steps", str(steps), "--strategy", ";".join(strategies)]
        options += ["--contestants", f"gradientflow,{_GLOO},ddp-gradientflow", "--json", str(file)]
        command = place.command(["gradientflow", "bench", "train", *options])
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
        if done.returncode != 0:
            raise GradientFlowError(f"training has ended with exit status {done.returncode}\n{done.stdout}")
        rows = json.loads(file.read_text(encoding="utf-8"))["results"]
    figures: dict[str, dict[str, float]] = {size: {} for size in models.values()}
    for row in rows:
        figures[models[row["model"]]][row["strategy"] or row["contestant"]] = row["step_median_ms"]
    return figures


def _psum(place: JobPlace, gradients: Sequence[int]) -> dict[str, float]:
    """Give the time of psum over its time with gloo, by size."""
    told = {"measure": "psum", "sizes": list(gradients), "seconds": 1.0}
    times: dict[str, list[list[float]]] = {"gradientflow": [], "gloo": []}
    for library in turns([*times], _ROUNDS):
        found = run_turn(place, {**told, "contestant": library, "seed": secrets.randbits(31)})["results"]
        if wrong := sum(each["wrong"] for each in found):
            raise GradientFlowError(f"{wrong} elements of psum over {library} were wrong")
        times[library].append([each["median_us"] for each in found])
    ours, theirs = ([statistics.median(each) for each in zip(*turns, strict=True)] for turns in times.values())
    return {format_size(size): mine / peer for size, mine, peer in zip(gradients, ours, theirs, strict=True)}


def _table(place: JobPlace, figures: dict[str, dict[str, float]]) -> FittedTable:
    hosts = f"{place.hosts} hosts at {place.rate}" if place.hosts else f"{place.ranks} ranks of one node"
    has_psum = any(_PSUM in each for each in figures.values())
    headings = ["gradients", "alone\nms", "DDP Gloo\nms", *_TRAINED.values(), *(["psum\nof JAX"] if has_psum else [])]
    table = empty_table(figures=headings)
    table.title = f"{hosts}: a step of DDP over Gloo, and what share of its time others take"
    for size, each in figures.items():
        ratios = [f"{each[name] / each[_GLOO]:.2f}" for name in _TRAINED]
        psum = [f"{each[_PSUM]:.2f}"] if has_psum else []
        table.add_row(size, f"{each['none']:.1f}", f"{each[_GLOO]:.1f}", *ratios, *psum)
    return table
