"""The members of a process group."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from gradientflow._location import core
from gradientflow.config import Config


class Members(NamedTuple):
    """The members of a group.

    Attributes
    ----------
    place : tuple of int and int
        Rank of this process in the group, and number of ranks.
    world_ranks : sequence of int
        World rank of each rank of the group.
    ranks : callable
        Takes the settings of a communicator, and returns its base: an MPI communicator or a separate endpoint.
        Collective over the group.
    release : callable
        Releases other resources of the group, once; not called after an abort.
    """

    place: tuple[int, int]
    world_ranks: Sequence[int]
    ranks: Callable[[Config], core.Endpoint]
    release: Callable[[], object] = lambda: None
