"""Meeting: from the way that applies to an endpoint, through which the ranks exchange messages."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gradientflow._location import load_core

from .given_store import core_store
from .stores import open_store
from .variables import Place
from .way import PREFIX, Way


def meet(way: Way, settings: Mapping[str, str], *, store: Any = None, mpi: int | None = None) -> Any:
    """Meet the other ranks of a job, through MPI or over TCP. Collective.

    Parameters
    ----------
    way : Way
        How.
    settings : mapping of str to str
        Those of the communicator to be made.
    store : object, optional
        The one that the program gives, as `core_store` takes it.
    mpi : int, optional
        Where the handle of an MPI communicator is, through which the ranks meet.

    Returns
    -------
    gradientflow._core.Endpoint
        With all ranks.
    """
    if mpi is not None:
        return load_core().introduced(mpi, {**settings, "transport": way.transport})
    if store is not None:
        return meet_by(core_store(store, serve=way.serves), way.place, settings, near(way))
    found = open_store(way, float(settings["timeout"])) if way.at else None
    return meet_by(found, way.place, settings, near(way), way.prefix, replaces=way.replaces)


def near(way: Way) -> str:
    """Return where ranks meet on the network, which a rank's address should lead to; empty if nowhere."""
    return "" if way.at and way.at[0].startswith("file://") else ",".join(way.at)


def meet_by(
    exchange: Any,
    place: Place,
    settings: Mapping[str, str],
    towards: str = "",
    prefix: str = PREFIX,
    *,
    replaces: bool = False,
) -> Any:
    """Meet the other ranks by a store. Collective.

    Parameters
    ----------
    exchange : Store of the core, or None
        By which the ranks tell each other their addresses; None where there is one rank.
    place : Place
        This process, and how many there are.
    settings : mapping of str to str
        Those of the communicator to be made.
    towards : str, optional
        Where the ranks meet, which the address of this host should lead to.
    prefix : str, optional
        Begins the names of all values in a store.
    replaces : bool, default False
        Whether this process was started in place of one that may have come to the store.
    """
    return load_core().meet(place.rank, place.size, exchange, towards, dict(settings), prefix, replaces)
