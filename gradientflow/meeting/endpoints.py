"""Meeting: from the way that applies to an endpoint, through which the ranks exchange messages over TCP."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gradientflow._location import load_core

from .exchange import Exchange, StoreExchange
from .stores import open_store
from .variables import Place
from .way import Way

_PREFIX = "gradientflow"


def meet(way: Way, settings: Mapping[str, str], *, store: Any = None, mpi: int | None = None) -> Any:
    """Meet the other ranks of a job over TCP. Collective.

    Parameters
    ----------
    way : Way
        How.
    settings : mapping of str to str
        Those of the communicator to be made.
    store : Store, optional
        The one that the program gives.
    mpi : int, optional
        Where the handle of an MPI communicator is, through which the ranks meet.

    Returns
    -------
    gradientflow._core.Endpoint
        With all ranks.
    """
    if mpi is not None:
        exchange = load_core().mpi_endpoint(mpi, dict(settings))
        return meet_by(exchange, Place(exchange.rank, exchange.size), settings)
    found = store if store is not None else open_store(way, float(settings["timeout"])) if way.at else None
    return meet_by(exchange_by_store(found, way.place, way.restart), way.place, settings, near(way))


def near(way: Way) -> str:
    """Return where ranks meet on the network, which a rank's address should lead to; empty if nowhere."""
    return "" if way.at and way.at[0].startswith("file://") else ",".join(way.at)


def meet_by(exchange: Any, place: Place, settings: Mapping[str, str], towards: str = "") -> Any:
    """Meet the other ranks by an exchange or a store of the core. Collective.

    Parameters
    ----------
    exchange : Exchange, or Store or Endpoint of the core
        By which the ranks tell each other their addresses.
    place : Place
        This process, and how many there are.
    settings : mapping of str to str
        Those of the communicator to be made.
    towards : str, optional
        Where the ranks meet, which the address of this host should lead to.
    """
    return load_core().meet(place.rank, place.size, exchange, towards, dict(settings))


def exchange_by_store(store: Any, place: Place, restart: str = "") -> Exchange | Any:
    """Return a store of the core itself, and for any other store an exchange through it; alone, one with nobody."""
    if store is None:
        return lambda mine, _: [mine]
    if isinstance(store, load_core().Store):
        return store
    return StoreExchange(store, place, f"{_PREFIX}/{restart}" if restart else _PREFIX)
