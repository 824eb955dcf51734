"""Choice of the launcher of a job: MPI's launcher, or TCP without MPI."""

from __future__ import annotations

from collections.abc import Callable

import click

from gradientflow.cli.library import built_with
from gradientflow.launch import Launcher, LaunchError, find_launcher
from gradientflow.meeting.rules import TRANSPORTS
from gradientflow.mpi_library import missing_mpi
from gradientflow.settings_file import settings_file


def transport_option(how: str) -> Callable[[Callable[..., int]], Callable[..., int]]:
    """Return the option for the start of ranks; `how` describes the start over TCP."""
    return click.option(
        "--transport",
        type=click.Choice(TRANSPORTS),
        default=lambda: str(settings_file().settings.get("transport", "auto")),
        envvar="GRADIENTFLOW_TRANSPORT",
        help=f"Start of the ranks: an MPI job (mpi), processes {how} (tcp), mpi or else tcp (auto, the default).",
    )


WHY_NOT_MPI = "MPI's launcher ends all ranks when one fails"  # reason against MPI with --min-ranks
_RESTARTS = 3

min_ranks_option = click.option(
    "--min-ranks",
    type=int,
    metavar="M",
    help="Least number of ranks with which the job continues after failures (default: all). The job then uses TCP.",
)

restart_option = click.option(
    "--restart",
    "restarts",
    type=click.IntRange(min=0),
    is_flag=False,
    flag_value=_RESTARTS,
    default=0,
    metavar="[TIMES]",
    help=f"Restart a failed process, up to TIMES times ({_RESTARTS}), with --min-ranks; it joins the job by "
    "gradientflow.join(). If all have failed, the job begins again.",
)


def check_restarts(restarts: int, min_ranks: int | None) -> None:
    """Raise if restarts are asked for in a job that ends when a rank fails."""
    if restarts > 0 and min_ranks is None:
        raise LaunchError("--restart goes with --min-ranks: without it the failure of a rank ends the others")


def find_launcher_or_tcp(transport: str, without: str = "") -> Launcher | None:
    """Return MPI's launcher, or None for a job over TCP.

    Parameters
    ----------
    transport : {"auto", "mpi", "tcp"}
        Transport asked for. "auto" is TCP if there is no MPI; this choice is reported on standard error.
    without : str
        Addition to this report.

    Raises
    ------
    gradientflow.launch.LaunchError
        If MPI is asked for but missing.
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


def transport_without_mpi(transport: str, option: str, why: str) -> str:
    """Return the transport of a job with an option that MPI's launcher lacks.

    Raises
    ------
    gradientflow.launch.LaunchError
        If MPI is asked for.
    """
    if transport == "mpi":
        raise LaunchError(f"{why}: {option} needs --transport tcp")
    return "tcp"


def _find_launcher() -> Launcher:
    if why := missing_mpi():
        raise LaunchError(why)
    return find_launcher(built_with())
