"""``gradientflow bench jax``: the commands, and their tables."""

from __future__ import annotations

import secrets
import statistics

import click

from gradientflow.machine import format_size
from gradientflow.strategies import as_strategy

from ..core.job_command import Found, in_jobs
from ..core.job_turns import JobPlace, run_turn, turns
from ..core.plan import PlanError, check_choices, parse_list, parse_sizes
from ..core.table import empty_table

_OURS = "gradientflow"


def _sizes(context: click.Context, option: click.Parameter, text: str) -> list[int]:
    del context
    sizes = list(parse_sizes(text))
    if not sizes:
        raise PlanError(f"{option.opts[0]} names no size")
    return sizes


def _peers(context: click.Context, option: click.Parameter, text: str) -> tuple[str, ...]:
    peers = parse_list(text)
    check_choices("--compare", peers, ("gloo",), may_be_empty=True)
    return peers


def _strategies(context: click.Context, option: click.Parameter, text: str) -> list[str]:
    del context, option
    found = [each.strip() for each in text.split(";")]
    for each in found:
        if as_strategy(each).gradients != "mean":
            raise PlanError(f"--strategies takes strategies that average gradients, not {each}")
    return found


@click.group()
def jax() -> None:
    """Measure unchanged programs of JAX beside gloo, and calls inside of jit.

    Every result is checked before it is timed; if one is wrong, the exit status is 1.
    """


@jax.command()
@in_jobs("jax")
@click.option("--sizes", default="4,64K,1M,16M", show_default=True, callback=_sizes, help="Bytes of each rank.")
@click.option("--compare", default="gloo", show_default=True, callback=_peers, help="Peers: gloo, or '' for none.")
@click.option("--rounds", default=5, type=click.IntRange(1), show_default=True, help="Jobs of each library.")
@click.option("--seconds", default=1.0, show_default=True, help="Time for each size in each job, roughly.")
def psum(place: JobPlace, sizes: list[int], compare: tuple[str, ...], rounds: int, seconds: float) -> Found:
    """Time psum in shard_map."""
    found = []
    libraries = [_OURS, *compare]
    for library in turns(libraries, rounds):
        told = {"measure": "psum", "contestant": library, "sizes": sizes, "seconds": seconds, "seed": _seed()}
        found.append({"library": library, **run_turn(place, told)})
    headings = ("bytes", "library", "median\nus", "least\nus", "p95\nus", "empty\nus", "wrong", "gloo / ours")
    table = empty_table(figures=headings)
    for number, size in enumerate(sizes):
        by_library = {
            library: [turn["results"][number] for turn in found if turn["library"] == library] for library in libraries
        }
        for library, each in by_library.items():
            figures = [statistics.median(turn[name] for turn in each) for name in ("median_us", "p95_us", "empty_us")]
            least = min(turn["min_us"] for turn in each)
            table.add_row(
                format_size(size),
                library,
                f"{figures[0]:.1f}",
                f"{least:.1f}",
                f"{figures[1]:.1f}",
                f"{figures[2]:.1f}",
                str(sum(turn["wrong"] for turn in each)),
                _ratios(by_library[_OURS], each) if library != _OURS else "",
            )
        table.add_section()
    wrong = sum(result["wrong"] for turn in found for result in turn["results"])
    return table, {"turns": found}, wrong


@jax.command()
@in_jobs("jax")
@click.option("--calls", default=10_000, type=click.IntRange(1), show_default=True, help="Calls of each collective.")
@click.option("--size", default="1M", show_default=True, callback=_sizes, help="Bytes of each rank.")
@click.option("--contestant", type=click.Choice([_OURS, "gloo"]), default=_OURS, show_default=True, help="Library.")
def loop(place: JobPlace, calls: int, size: list[int], contestant: str) -> Found:
    """Count wrong results of psum_scatter and all_gather in a loop."""
    told = {"measure": "loop", "contestant": contestant, "calls": calls, "bytes": size[0], "seed": _seed()}
    found = run_turn(place, told)
    table = empty_table(figures=("collective", "calls", "wrong"))
    for name, wrong in found["wrong"].items():
        table.add_row(name, str(found["calls"]), str(wrong))
    return table, {**told, **found}, sum(found["wrong"].values())


@jax.command()
@in_jobs("jax", placed=False)
@click.option("--sizes", default="4,64K", show_default=True, callback=_sizes, help="Bytes of an array.")
@click.option(
    "--strategies",
    default="dense; csc(density=0.1)",
    show_default=True,
    callback=_strategies,
    help="Strategies for average(), separated by semicolons.",
)
@click.option("--rounds", default=5, type=click.IntRange(1), show_default=True, help="Number of jobs.")
@click.option("--seconds", default=3.0, show_default=True, help="Time for each size in each job, roughly.")
def calls(sizes: list[int], strategies: list[str], rounds: int, seconds: float) -> Found:
    """Time compiled calls of average and allreduce at one rank, beside empty ones."""
    told = {"measure": "calls", "contestant": _OURS, "sizes": sizes, "seconds": seconds, "strategies": strategies}
    found = [run_turn(JobPlace(1, "tcp"), {**told, "seed": _seed()}) for _ in range(rounds)]
    table = empty_table(figures=("bytes", "call", "median\nus", "over empty\nus", "wrong"))
    for results in zip(*(each["results"] for each in found), strict=True):
        first = results[0]
        empty = "empty, with a state" if first["call"].startswith("average") else "empty"
        beside = [
            next(other for other in each["results"] if (other["call"], other["bytes"]) == (empty, first["bytes"]))
            for each in found
        ]
        over = [result["median_us"] - other["median_us"] for result, other in zip(results, beside, strict=True)]
        table.add_row(
            format_size(first["bytes"]),
            first["call"],
            f"{statistics.median(each['median_us'] for each in results):.1f}",
            "" if first["call"].startswith("empty") else f"{statistics.median(over):.1f}",
            str(sum(each["wrong"] for each in results)),
        )
    wrong = sum(result["wrong"] for each in found for result in each["results"])
    return table, {"turns": found}, wrong


@jax.command()
@in_jobs("jax", "optax", "torch")
@click.option(
    "--turns",
    "count",
    default=16,
    type=click.IntRange(1),
    show_default=True,
    help="Turns, in which each contestant makes four steps.",
)
def step(place: JobPlace, count: int) -> Found:
    """Time a perceptron's step with average("dense") inside of jit, beside PyTorch's with the DistributedOptimizer."""
    found = run_turn(place, {"measure": "step", "contestant": "step", "turns": count, "seed": _seed()})
    table = empty_table(figures=("contestant", "step\nms", "over alone\nms"))
    for name, figures in found["steps"].items():
        over = figures.get("over_alone_ms")
        table.add_row(name, f"{figures['median_ms']:.2f}", "" if over is None else f"{over:.2f}")
    return table, found, found["wrong"]


def _seed() -> int:
    return secrets.randbits(31)


def _ratios(ours: list[dict[str, float]], theirs: list[dict[str, float]]) -> str:
    """Write the ratio of their time to ours over the rounds: the median, the least and the most."""
    each = [there["median_us"] / here["median_us"] for here, there in zip(ours, theirs, strict=True)]
    return f"{statistics.median(each):.2f} ({min(each):.2f} to {max(each):.2f})"
