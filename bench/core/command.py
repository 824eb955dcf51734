"""What a bench is to the command line: its options, its plan, how it measures, and how it shows what came out."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import click

from .plan import PEERS, WIRES
from .plot import Draw
from .table import Layout

if TYPE_CHECKING:
    from gradientflow.communicator import Communicator

    from .session import Observer, Session


@dataclass(frozen=True)
class Bench:
    """A bench of ``gradientflow bench``.

    Attributes
    ----------
    name, help : str
        As the command line shows them.
    options : sequence of click.Option
        Besides those that all benches have.
    plan : callable
        Makes the plan of the options' values, or raises `PlanError`. A plan says in `stages` how much there is to do,
        and its `check_job` refuses what could only fail on the way.
    session : callable
        Told the communicator, a plan, and whom to tell how much is done and what comes, gives what measures in `run`.
    layout : Layout
        The table.
    draw : callable
        The picture.
    others : mapping
        The tables of further results, by the names that these have in the outcome.
    in_job : bool
        Whether it measures several ranks; otherwise this process alone.
    """

    name: str
    help: str
    options: Sequence[click.Option]
    plan: Callable[[Mapping[str, Any]], Any]
    session: Callable[[Communicator, Any, Observer | None], Session[Any, Any, Any]]
    layout: Layout
    draw: Draw
    others: Mapping[str, Layout] = field(default_factory=dict)
    in_job: bool = True


def option(name: str, default: Any, help: str, **further: Any) -> click.Option:
    """Make an option that is a list, unless something else is said; its default is shown."""
    named = {"metavar": None if "type" in further and further["type"] is not None else "LIST", **further}
    return click.Option(name.split(), default=default, show_default=True, help=help, **named)


def wires(default: str | None = "float32") -> click.Option:
    """Make the option of what values are rounded to."""
    text = f"what values are rounded to between nodes, of {', '.join(WIRES)}"
    return option("--wire", default, text if default else f"{text}  [default: the dtype]")


def compare(peers: Sequence[str] = PEERS) -> click.Option:
    """Make the option of whom to compare with."""
    return option("--compare", "mpi", f"of {', '.join(peers)}, or '' for none")


def timing(seconds: float, each: str, what: str = "steps") -> tuple[click.Option, ...]:
    """Make the options of how long to measure, and what to show of it."""
    return (
        click.Option(
            ["--iterations"], type=int, metavar="N", help=f"timed {what} of each contestant (default: what fits)"
        ),
        option("--seconds", seconds, f"to spend on each {each}, roughly", type=float),
        click.Option(["--cpu", "with_cpu"], is_flag=True, help="show processor times in the table"),
    )


def plot(what: str) -> click.Option:
    """Make the option of the picture."""
    return click.Option(["--plot", "plot_path"], metavar="FILE.png", help=f"draw {what} (needs matplotlib)")
