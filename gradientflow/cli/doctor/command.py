"""``gradientflow doctor``: report this machine's equipment, missing parts, and the result of a trial job."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from typing import TypeAlias

import click
from rich.console import Console
from rich.text import Text

from gradientflow.errors import GradientFlowError
from gradientflow.json_option import JsonOutput, json_option
from gradientflow.launch import ranks_of_this_job

from . import hardware, jobs, network, settings, software
from .check import Check
from .meeting_point import meeting_point

_STYLES = {"ok": "green", "warn": "yellow", "fail": "bold red"}
_Section: TypeAlias = tuple[str, Callable[[], list[Check]]]
_JOBS: tuple[_Section, ...] = (
    ("job of two ranks", jobs.live_job),
    ("job of two ranks without MPI", jobs.live_job_without_mpi),
)
_BEFORE: tuple[_Section, ...] = (
    ("versions", software.versions),
    ("machine", hardware.machine),
    ("MPI", software.mpi),
    ("how ranks would meet", network.meeting),
)
_AFTER: tuple[_Section, ...] = (
    ("allreduce between hosts", network.between_hosts),
    ("other packages", software.other_packages),
    ("settings", settings.settings),
)


@click.command()
@json_option
@click.option("--meet", metavar="HOST:PORT", help="Meeting point: check only that ranks started here can meet there.")
def doctor(meet: str | None, json_output: JsonOutput | None) -> int:
    """Check this machine and installation; exits with 1 if something must be fixed."""
    sections = _sections() if meet is None else (("meeting point", partial(meeting_point, meet)),)
    console = Console(soft_wrap=True, highlight=False)
    found: dict[str, list[Check]] = {}
    for section, examine in sections:
        try:
            found[section] = examine()
        except GradientFlowError as error:
            found[section] = [Check(section, "fail", "cannot be looked at", str(error))]
        _print_section(console, section, found[section])
    failed = [check.name for section in found.values() for check in section if check.status == "fail"]
    console.print()
    console.print(Text(f"{len(failed)} to put right: {', '.join(failed)}" if failed else "All in order."))
    if json_output is not None:
        report = {section: [asdict(check) for check in entries] for section, entries in found.items()}
        json_output.write({"ok": not failed, "failed": failed, "checks": report})
    return 1 if failed else 0


def _sections() -> tuple[_Section, ...]:
    """Return the sections of checks; on a rank of a job, that job replaces the trial jobs."""
    inside = ranks_of_this_job() is not None
    return (*_BEFORE, *((("this job", jobs.this_job),) if inside else _JOBS), *_AFTER)


def _print_section(console: Console, section: str, entries: list[Check]) -> None:
    console.print(Text(f"\n{section}", style="bold"))
    width = max((len(check.name) for check in entries), default=0)
    for check in entries:
        line = Text.assemble("  ", (f"{check.status:<4}", _STYLES[check.status]), f"  {check.name:<{width}}  ")
        line.append(check.value)
        console.print(line)
        if check.advice:
            console.print(Text(f"        {'':<{width}}  {check.advice}", style=_STYLES[check.status]))
