"""New members for a group, for ``torch.distributed._get_reconfigure_handle`` and ``_reconfigure``.

A handle holds the address at which its process listens. Processes that have each other's handles need no store to meet,
and no former member.
"""

from __future__ import annotations

import hashlib
import json
from base64 import b64decode, b64encode
from typing import Any, NoReturn

from gradientflow._location import core
from gradientflow.config import Config
from gradientflow.errors import ArgumentError, ClosedError
from gradientflow.torch.names import BACKEND

from .context import WorkContext
from .group_rank import GroupRank
from .members import Members
from .options import Options, owner_of_timeout, seconds


class Reconfiguration:
    """Makes members of a group from the handles of their processes.

    Parameters
    ----------
    settings : Config
        Settings of the group's communicators.
    towards : str
        Location of the ranks on the network, as far as it is known.
    """

    def __init__(self, settings: Config, towards: str) -> None:
        self._settings = settings
        self._towards = towards
        self._joiner: Any = None
        self._handle = ""
        self._uuids: set[int] = set()

    def handle(self, rank: int | None) -> str:
        """Return the handle of this process for the next reconfiguration; `rank` is its rank among the present members.

        Sorted by their texts, handles of processes without a rank come last.
        """
        if not self._handle:
            self._joiner = core.Joiner(self._towards, dict(self._settings))
            former = "new" if rank is None else f"{rank:08}"
            self._handle = ":".join((BACKEND, former, core.random_token(), b64encode(self._joiner.card).decode()))
        return self._handle

    def members(self, options: Options) -> Members:
        """Return the members that PyTorch's ``ReconfigureOptions`` name, once all have come. Collective over them.

        The handle of this process is used up then, even if a member does not come.

        Raises
        ------
        gradientflow.errors.ArgumentError
            If the options are not supported; then the handle stays.
        """
        handles = options.handles if isinstance(options.handles, list) else sorted(options.handles)
        addresses = [_address(rank, handle) for rank, handle in enumerate(handles)]
        if len(set(handles)) < len(handles):
            raise ArgumentError("a handle is given twice: the new group has one of each of its processes")
        if self._handle not in handles:
            raise ArgumentError(
                f"the handle of this process is not among the {len(handles)} that are given: ask for the handles of "
                "all processes anew before each reconfiguration"
            )
        if options.hints:
            message = f"the backend {BACKEND} has no hints for reconfiguration: leave {sorted(options.hints)} out"
            raise ArgumentError(message)
        if options.uuid in self._uuids:
            message = f"the uuid {options.uuid} was already used in this group: each reconfiguration has its own"
            raise ArgumentError(message)
        place = GroupRank(handles.index(self._handle), len(handles))
        secret = hashlib.sha256(json.dumps([options.uuid, handles]).encode()).digest()
        limit = seconds(options.timeout)
        context = WorkContext(range(place.size), "the reconfiguration" if limit else owner_of_timeout(self._settings))
        joiner, self._joiner, self._handle = self._joiner, None, ""
        self._uuids.add(options.uuid)
        with context.explaining():
            endpoint = joiner.meet(place.rank, addresses, secret, limit or float(self._settings["timeout"]))
        endpoints = iter((endpoint, endpoint.duplicate()))  # the first for calls, the second for calls in callbacks
        return Members(place, range(place.size), lambda _: next(endpoints))


class _NoCalls:
    """Stand-in for the calls of a group that has no members yet."""

    def close(self, **_: object) -> None:
        """Do nothing."""

    abort = close

    def __getattr__(self, name: str) -> NoReturn:
        raise ClosedError(
            "the process group has no members yet: with enable_reconfigure=True, torch.distributed._reconfigure gives "
            "it the first ones"
        )


NO_CALLS: Any = _NoCalls()


def _address(rank: int, handle: str) -> str:
    """Return the address in the handle of the process that will get this rank."""
    try:
        backend, _, _, text = handle.split(":")
        card = b64decode(text, validate=True)
    except ValueError:
        backend = ""
    if backend != BACKEND:
        raise ArgumentError(f"{handle!r} is no handle of a process group of the backend {BACKEND}")
    if objection := core.objection_to(card):
        raise ArgumentError(f"rank {rank} cannot be met: {objection}")
    return str(core.address_on(card))
