"""Meeting of the ranks by the chosen plan; the result is an endpoint, through which they exchange messages."""

from __future__ import annotations

from collections.abc import Mapping

from gradientflow._location import core

from .passed_store import core_store
from .plan import PREFIX, MeetingPlan
from .stores import open_store
from .variables import RankAndSize


def meet(
    plan: MeetingPlan, settings: Mapping[str, str], *, store: object = None, mpi: int | None = None
) -> core.Endpoint:
    """Meet all ranks of a job, through MPI or over TCP. Collective.

    Parameters
    ----------
    plan : MeetingPlan
        The plan of the meeting.
    settings : mapping of str to str
        Settings of the future communicator.
    store : object, optional
        Store given by the program, as `core_store` takes it.
    mpi : int, optional
        Address of the handle of an MPI communicator, through which the ranks meet.

    Returns
    -------
    gradientflow._core.Endpoint
        Endpoint of all ranks.
    """
    if mpi is not None:
        return core.introduced(mpi, {**settings, "transport": plan.transport})
    if store is not None:
        return meet_by(core_store(store, serve=plan.serves), plan.place, settings, near(plan))
    found = open_store(plan, float(settings["timeout"])) if plan.at else None
    return meet_by(found, plan.place, settings, near(plan), plan.prefix, replaces=plan.replaces)


def near(plan: MeetingPlan) -> str:
    """Return the network addresses of the meeting point, with commas; empty if it has none.

    The addresses help to choose this host's own address, which must be on a route to them.
    """
    return "" if plan.at and plan.at[0].startswith("file://") else ",".join(plan.at)


def meet_by(
    exchange: object,
    place: RankAndSize,
    settings: Mapping[str, str],
    towards: str = "",
    prefix: str = PREFIX,
    *,
    replaces: bool = False,
) -> core.Endpoint:
    """Meet all ranks through a store. Collective.

    Parameters
    ----------
    exchange : Store of the core, or None
        Store in which the ranks publish their addresses; None for a single rank.
    place : RankAndSize
        Rank of this process, and number of ranks.
    settings : mapping of str to str
        Settings of the future communicator.
    towards : str, optional
        Addresses to which this host's own address must be on a route.
    prefix : str, optional
        Prefix of all keys in the store.
    replaces : bool, default False
        True if this process replaces a failed one, which may have used the store.
    """
    return core.meet(place.rank, place.size, exchange, towards, dict(settings), prefix, replaces)
