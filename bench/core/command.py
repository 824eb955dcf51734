"""A bench for the command line: its options, plan and session, and the ways to show its results."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import click

from gradientflow.annotations import JsonObject

from .plan import AUTO, PEERS, TRANSPORTS, WIRES, parse_list
from .plot import Draw
from .table import AnyResult, Layout

if TYPE_CHECKING:
    from gradientflow.communicator import Communicator

    from .session import Observer, Session

Page = Callable[[Sequence[AnyResult], JsonObject, Sequence[str]], str]


@dataclass(frozen=True)
class Bench:
    """A bench of ``gradientflow bench``.

    Attributes
    ----------
    name : str
        Name on the command line, where the command also has the description.
    options : sequence of click.Option
        Options in addition to the common ones.
    plan : callable
        Takes the values of the options that are set, makes a `Plan`, or raises `PlanError`.
    session : callable
        Takes the communicator, a plan and an observer of the progress; gives the `Session` that measures.
    layout : Layout
        Layout of the table.
    draw : callable
        Draws the picture.
    page : callable, optional
        Takes the results, the environment and the remarks; gives a page of HTML.
    others : mapping
        Tables of further results, by their names in the outcome.
    in_job : bool
        True if it measures several ranks, False if this process alone.
    packages : sequence of str
        Modules that it needs, of packages that the library does not need.
    """

    name: str
    options: Sequence[click.Option]
    plan: Callable[..., object]
    session: Callable[[Communicator, Any, Observer | None], Session[Any, Any, Any]]
    layout: Layout
    draw: Draw
    others: Mapping[str, Layout] = field(default_factory=dict)
    page: Page | None = None
    in_job: bool = True
    packages: Sequence[str] = ()


def option(
    name: str, default: object, help: str, read: Callable[[Any], object] | None = parse_list, **further: Any
) -> click.Option:
    """Make an option.

    Parameters
    ----------
    name : str
        Name of the option, possibly followed by the name of the value in the plan.
    default : object
        Default, as typed; shown in the help. With None the plan's default applies.
    help : str
        The help text.
    read : callable
        Parser of the typed text; not used if `further` has a type.
    **further
        Further arguments of `click.Option`.
    """

    def value(context: click.Context, parameter: click.Parameter, typed: object) -> object:
        return typed if typed is None or read is None or "type" in further else read(typed)

    more = {"metavar": None if "type" in further else "LIST", **further}
    return click.Option(name.split(), default=default, show_default=True, help=help, callback=value, **more)


def wires(default: str | None = "float32", known: Sequence[str] = WIRES) -> click.Option:
    """Make the option of our wires."""
    text = f"Formats of values between nodes, of {', '.join(known)}."
    return option("--wire wires", default, text if default else f"{text}  [default: the dtype]")


def compare(peers: Sequence[str] = PEERS) -> click.Option:
    """Make the option of the peers."""
    return option("--compare peers", "mpi", f"Peers, of {', '.join(peers)}, or '' for none.")


def transport() -> click.Option:
    """Make the option of our transports."""
    return option("--transport transports", AUTO, f"Transports of our messages, of {', '.join(TRANSPORTS)}.")


def timing(seconds: float, each: str, what: str = "steps") -> tuple[click.Option, ...]:
    """Make the options of the duration, and of showing processor times."""
    return (
        option(
            "--iterations", None, f"Timed {what} of each contestant (default: as many as fit).", type=int, metavar="N"
        ),
        option("--seconds", seconds, f"Time for each {each}, roughly.", type=float),
        click.Option(["--cpu", "with_cpu"], is_flag=True, help="Show processor times in the table."),
    )


def plot(what: str) -> click.Option:
    """Make the option of the picture."""
    return click.Option(["--plot", "plot_path"], metavar="FILE.png", help=f"Picture of {what} (needs matplotlib).")


def page(what: str) -> click.Option:
    """Make the option of the page."""
    help = f"Page of HTML with {what} (needs matplotlib and jinja2)."
    return click.Option(["--report", "page_path"], metavar="FILE.html", help=help)
