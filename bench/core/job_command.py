"""Commands that measure in separate jobs: the place of the jobs, and the output of their figures."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import click

from gradientflow.json_option import JsonOutput, json_option
from gradientflow.meeting.rules import TRANSPORTS
from gradientflow.tables import FittedTable, print_table
from gradientflow.terminal import open_console

from .job_turns import JobPlace
from .packages import check_packages
from .plan import check_writable

Found = tuple[FittedTable, Mapping[str, object], int]  # a table, all figures, and the number of wrong results
Command = Callable[..., Found]

_PLACE = (
    click.option("-n", "--ranks", default=2, show_default=True, help="Number of ranks to start."),
    click.option(
        "--transport", type=click.Choice(TRANSPORTS), default="auto", show_default=True, help="Transport of messages."
    ),
    click.option("--hosts", default=0, help="Number of hosts to emulate by netlab (default: none)."),
    click.option("--rate", default="1gbit", show_default=True, help="Rate at which each host of --hosts can send."),
)


def writable(context: click.Context, option: click.Parameter, path: str | None) -> str | None:
    """Refuse a path that cannot be written before anything is measured."""
    if path is not None:
        check_writable(path)
    return path


def in_jobs(
    *packages: str, results: str = "elements or results", placed: bool = True
) -> Callable[[Command], Callable[..., int]]:
    """Add the options of the place, which the command takes as `place`, and show and write the command's findings.

    Parameters
    ----------
    *packages : str
        Modules that the command needs, of packages that the library does not need.
    results : str
        Name of the elements that may be wrong; then the exit status is 1.
    placed : bool
        True if the command takes a place.
    """

    def decorated(command: Command) -> Callable[..., int]:
        @functools.wraps(command)
        def run(json_output: JsonOutput | None, **options: Any) -> int:
            check_packages(click.get_current_context().command_path.removeprefix("gradientflow "), *packages)
            facts = {}
            if placed:
                place = JobPlace(*(options.pop(name) for name in ("ranks", "transport", "hosts", "rate")))
                options, facts = {"place": place, **options}, {"place": vars(place)}
            table, figures, wrong = command(**options)
            console = open_console()
            print_table(table, console)
            if wrong:
                console.print(f"{wrong} {results} were wrong", style="bold red")
            if json_output is not None:
                json_output.write({**facts, **figures})
            return 1 if wrong else 0

        found: Callable[..., int] = run
        for option in (json_option, *reversed(_PLACE if placed else ())):
            found = option(found)
        return found

    return decorated
