"""The command line of this folder."""

from __future__ import annotations

import sys

import click

from gradientflow.errors import GradientFlowError

from join.command import join
from survive.command import survive
from train.command import train


@click.group()
def chaos() -> None:
    """Kill ranks, start them again, and check what is left.

    The exit status is 1 if a job hangs or is wrong.
    """


chaos.add_command(join)
chaos.add_command(survive)
chaos.add_command(train)


@chaos.result_callback()
def _end(status: int) -> None:
    sys.exit(status)


def main() -> None:
    """Run a command; ends the process with its exit status."""
    try:
        chaos(prog_name="python tests/chaos")
    except GradientFlowError as error:
        sys.exit(f"gradientflow: {error}")
