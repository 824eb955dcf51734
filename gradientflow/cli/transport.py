"""How a job is started: by MPI's launcher, or over TCP where there is no MPI."""

from __future__ import annotations

from collections.abc import Callable

import click

from gradientflow.cli.library import built_with
from gradientflow.launch import Launcher, LaunchError, find_launcher
from gradientflow.mpi_library import missing_mpi


def transport_option(how: str) -> Callable[[Callable[..., int]], Callable[..., int]]:
    """Make the option of how ranks are started; `how` they are over TCP."""
    return click.option(
        "--transport",
        type=click.Choice(["auto", "mpi", "tcp"]),
        default="auto",
        envvar="GRADIENTFLOW_TRANSPORT",
        help=f"mpi: start an MPI job; tcp: start the processes {how}; auto (default): mpi, or tcp without MPI here.",
    )


def find_launcher_or_tcp(transport: str, without: str = "") -> Launcher | None:
    """Return MPI's launcher, or None for a job over TCP.

    Parameters
    ----------
    transport : {"auto", "mpi", "tcp"}
        What is asked for. With "auto" it is TCP where there is no MPI, and a line on standard error says so.
    without : str
        What else that line says.

    Raises
    ------
    gradientflow.launch.LaunchError
        If MPI is asked for, and there is none.
    """
    if transport == "tcp":
        return None
    try:
        return _find_launcher()
    except LaunchError as error:
        if transport == "mpi":
            raise
        click.echo(f"gradientflow: without MPI, over TCP{without}: {error}", err=True)
        return None


def _find_launcher() -> Launcher:
    if why := missing_mpi():
        raise LaunchError(why)
    return find_launcher(built_with())
