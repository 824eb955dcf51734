"""The ranks of a group."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from gradientflow.config import Config


class Members(NamedTuple):
    """The ranks of a group.

    Attributes
    ----------
    place : tuple of int and int
        This process in the group, and how many there are.
    world_ranks : sequence of int
        The rank in the world of each rank of the group.
    ranks : callable
        Takes the settings of a communicator, and gives what it is made of: an MPI communicator, or an endpoint of its
        own. Collective over the group.
    release : callable
        Gives up what belongs to the group besides, once; after an abort it is not called.
    """

    place: tuple[int, int]
    world_ranks: Sequence[int]
    ranks: Callable[[Config], Any]
    release: Callable[[], object] = lambda: None
