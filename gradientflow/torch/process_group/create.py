"""How ``torch.distributed`` makes a process group."""

from __future__ import annotations

import zlib
from typing import Any

import torch.distributed
from mpi4py import MPI

from gradientflow.errors import ArgumentError, ArgumentTypeError
from gradientflow.torch.names import BACKEND

from .group import ProcessGroup
from .rendezvous import position

dist: Any = torch.distributed  # its annotations leave out what it takes from C++


def create(options: Any, backend_options: Any) -> ProcessGroup:
    """Make a process group; called by ``torch.distributed`` on the ranks that belong to it.

    Parameters
    ----------
    options : torch.distributed._DistributedBackendOptions
        Its ranks, name and timeout.
    backend_options : None
        The backend has no options.
    """
    if backend_options is not None:
        message = f"the backend {BACKEND} has no options: leave pg_options out"
        raise ArgumentTypeError(message)
    if MPI.Query_thread() != MPI.THREAD_MULTIPLE:
        message = f"the backend {BACKEND} needs an MPI that was initialised with MPI_THREAD_MULTIPLE"
        raise ArgumentError(message)
    ranks = list(options.global_ranks_in_group)
    if ranks:
        position(dist.get_rank(), dist.get_world_size())
    else:
        ranks = list(range(position(options.group_rank, options.group_size)[1]))
    world = MPI.COMM_WORLD
    # Only the members call this, so only they take part. The tag keeps apart groups that are made at the same time. It
    # is not made of the group's name, which can differ between members (use_local_synchronization).
    tag = zlib.crc32(repr(ranks).encode()) % 32768
    everybody = world.Get_group()
    members = everybody.Incl(ranks)
    try:
        mpi = world.Create_group(members, tag)
    finally:
        members.Free()
        everybody.Free()
    return ProcessGroup(mpi, options.timeout, options.group_id)
