"""``gradientflow replay``: give the events of a recorded run to policies."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from pathlib import Path

import click
from rich.console import Console

from gradientflow.annotations import JsonObject
from gradientflow.cli.picture import require_matplotlib
from gradientflow.errors import ArgumentError
from gradientflow.json_option import JsonOutput, json_option
from gradientflow.policies import Policy, Simulation, Trace, as_policy, file_of_policy, parse_policies, simulate
from gradientflow.tables import FittedTable, plain_table, print_table

_BLOCKS = "▁▂▃▄▅▆▇█"
_BINS = 24


@click.command()
@click.argument("file", metavar="TRACE.json")
@click.option(
    "--policy", "policies", multiple=True, metavar="WORDS", help="Other policies, separated by semicolons or repeated."
)
@click.option("--recorded", metavar="WORDS", help="Recorded policy, where the words in the trace do not lead to it.")
@click.option("--yes", is_flag=True, help="Run the Python file that the trace names for its policy, without asking.")
@json_option
@click.option(
    "--plot",
    "picture",
    metavar="FILE.png",
    help="Picture of the pushes and barriers of each policy: .png, .pdf or .svg.",
)
@click.option("--from", "begin", type=float, default=0.0, metavar="S", help="Begin of the picture.")
@click.option("--to", "end", type=float, metavar="S", help="End of the picture.")
def replay(
    file: str,
    policies: Sequence[str],
    recorded: str | None,
    yes: bool,
    json_output: JsonOutput | None,
    picture: str | None,
    begin: float,
    end: float | None,
) -> None:
    """Check a trace of a parameter server, and show the results of other policies.

    The recorded policy gets the same events, and must give the same answers. Other policies are simulated with workers
    that compute as long as the recorded workers; nothing else takes any time. If the trace names a Python file for its
    policy, the file is run only after you agree.
    """
    if picture:
        require_matplotlib()
    trace = Trace.load(file)
    if not (recorded or yes):
        _ask_before_running(file, file_of_policy(trace.policy))
    own = as_policy(recorded or trace.policy)
    others: list[Policy] = parse_policies(";".join(policies)) if policies else []
    difference = trace.difference(own)
    durations = trace.durations()
    found = {f"recorded: {own}": trace.happened()}
    found |= {repr(policy): simulate(policy, durations, keep_events=picture is not None) for policy in others}
    print_table(_table(found))
    if json_output is not None:
        json_output.write(
            [{"policy": name, **_figures(run), "staleness": run.staleness} for name, run in found.items()]
        )
    if picture:
        from gradientflow.cli.replay_plot import save_replay

        save_replay(picture, found, begin, end)
    if difference is not None:
        raise click.ClickException(f"{own} does not give the recorded answers: {difference}")
    Console().print(f"{own} gives the recorded answers to all {len(trace.events)} events.", highlight=False)


def _ask_before_running(trace: str, path: Path | None) -> None:
    """Raise unless the user agrees to run the file that a trace names, because the file may do anything."""
    if path is None:
        return
    if not sys.stdin.isatty():
        raise ArgumentError(
            f"{trace} names a policy of {path}, which would be run, and there is no terminal to ask at: give --yes to "
            "run it, or --recorded with other words"
        )
    if not click.confirm(f"{trace} names a policy of {path}. Run this file?", err=True):
        raise ArgumentError(f"{path} was not run: give --recorded with the words of the policy to ask")


def _table(found: dict[str, Simulation]) -> FittedTable:
    headings = ("seconds\n", "iterations\n/s", "waited\ns", "waited\n%", "barriers\n", "staleness\nmean", "\nmost")
    table = plain_table(["policy"], headings)
    table.add_column("\nhow often", no_wrap=True)
    for name, run in found.items():
        figures = _figures(run)
        table.add_row(
            name,
            *(
                f"{figures[key]:{form}}"
                for key, form in (
                    ("seconds", ".2f"),
                    ("iterations_per_second", ".2f"),
                    ("waited", ".2f"),
                    ("waited_percent", ".1f"),
                    ("barriers", "d"),
                    ("mean_staleness", ".2f"),
                    ("largest_staleness", "d"),
                )
            ),
            _histogram(run.staleness),
        )
    return table


def _figures(run: Simulation) -> JsonObject:
    waited, total = sum(run.waited), sum(run.waited) + sum(run.computed)
    times = sum(run.staleness)
    return {
        "seconds": run.seconds,
        "iterations": run.pushes,
        "iterations_per_second": run.iterations_per_second if run.seconds else 0.0,
        "waited": waited,
        "waited_by_worker": run.waited,
        "waited_percent": 100 * waited / total if total else 0.0,
        "barriers": len(run.barriers),
        "mean_staleness": sum(ahead * count for ahead, count in enumerate(run.staleness)) / times if times else 0.0,
        "largest_staleness": max(len(run.staleness) - 1, 0),
    }


def _histogram(staleness: Sequence[int]) -> str:
    """Return a histogram of staleness, from 0 on, in bins of equal width."""
    width = math.ceil(len(staleness) / _BINS) or 1
    bins = [sum(staleness[first : first + width]) for first in range(0, len(staleness), width)]
    most = max(bins, default=0)
    return "".join(_BLOCKS[math.ceil(count / most * len(_BLOCKS)) - 1] if count else " " for count in bins)
