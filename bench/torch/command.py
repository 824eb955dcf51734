"""``gradientflow bench torch``: the command, and its table."""

from __future__ import annotations

import secrets
from collections.abc import Sequence

import click

from gradientflow.annotations import JsonObject
from gradientflow.machine import format_size
from gradientflow.tables import FittedTable

from ..core.job_command import Found, in_jobs
from ..core.job_turns import JobPlace, run_turn
from ..core.plan import PlanError, parse_list, parse_sizes
from ..core.table import empty_table

CALLS = ("all_reduce", "all_gather", "reduce_scatter")
FORMS = ("sync", "async", "functional", "compiled")


def _chosen(context: click.Context, option: click.Parameter, text: str) -> list[str]:
    del context
    known = CALLS if option.name == "calls" else FORMS
    found = list(parse_list(text))
    if unknown := [each for each in found if each not in known]:
        raise click.BadParameter(f"{unknown[0]!r} is none of {', '.join(known)}")
    if not found:
        raise click.BadParameter(f"it names none of {', '.join(known)}")
    return found


def _figure(microseconds: float, sign: str = "") -> str:
    return f"{microseconds:{sign}.{1 if abs(microseconds) < 1000 else 0}f}"


@click.command()
@in_jobs("torch", results="elements")
@click.option("--sizes", default="8K,64K,1M", show_default=True, help="Bytes of a whole tensor.")
@click.option("--calls", default=",".join(CALLS), show_default=True, callback=_chosen, help="Calls to time.")
@click.option("--forms", default=",".join(FORMS), show_default=True, callback=_chosen, help="Forms of the calls.")
@click.option("--rounds", default=20, type=click.IntRange(1), show_default=True, help="Turns of each contestant.")
@click.option("--repeat", default=50, type=click.IntRange(1), show_default=True, help="Timed calls of a turn.")
def torch(place: JobPlace, sizes: str, calls: list[str], forms: list[str], rounds: int, repeat: int) -> Found:
    """Time calls of PyTorch's process group beside Gloo, and beside the calls of the communicator that they come to.

    Every result is checked before it is timed; if one is wrong, the exit status is 1.
    """
    told = {"sizes": parse_sizes(sizes), "calls": calls, "forms": forms, "rounds": rounds, "repeat": repeat}
    if not told["sizes"]:
        raise PlanError("--sizes names no size")
    job = {**told, "contestant": "gradientflow and gloo", "seed": secrets.randbits(31)}
    found = run_turn(place, job, "gradientflow.bench.torch.rank")
    return _table(found["results"]), {**told, **found}, sum(each["wrong"] for each in found["results"])


def _table(results: Sequence[JsonObject]) -> FittedTable:
    figures = ("ours\nus", "comm\nus", "over\ncomm", "gloo\nus", "gloo /\nours")
    table = empty_table(("bytes", "call", "form"), figures)
    for ours, gloo, comm in zip(results[::3], results[1::3], results[2::3], strict=True):
        mine, peer, below = (each["median_us"] for each in (ours, gloo, comm))
        times = (_figure(mine), _figure(below), _figure(mine - below, "+"), _figure(peer), f"{peer / mine:.2f}")
        table.add_row(format_size(ours["bytes"]), ours["call"], ours["form"], *times)
    return table
