"""Construction of process groups, for ``torch.distributed``."""

from __future__ import annotations

import os
import zlib
from collections.abc import Sequence
from contextlib import suppress
from functools import partial

import torch.distributed as dist

from gradientflow._location import core
from gradientflow.communicator import address_of
from gradientflow.config import Config
from gradientflow.errors import ArgumentError, ArgumentTypeError
from gradientflow.job import asked_transport
from gradientflow.meeting.endpoints import meet_by, near
from gradientflow.meeting.passed_store import address_of_store, core_store
from gradientflow.meeting.variables import RankAndSize, split_address
from gradientflow.mpi_library import load_mpi
from gradientflow.torch.names import BACKEND

from .group import ProcessGroup
from .members import Members
from .options import Options
from .rendezvous import Rendezvous, is_by_mpi, plan_of_job


def create(options: Options, backend_options: object) -> ProcessGroup:
    """Make a process group; called by ``torch.distributed`` on the members of the group.

    In an MPI job the ranks meet through MPI, and exchange messages like the ranks of `gradientflow.init`. Otherwise the
    ranks meet at the group's store, as with PyTorch's own backends, and exchange messages over TCP.

    Parameters
    ----------
    options : torch.distributed._DistributedBackendOptions
        Ranks, name, store and timeout of the group.
    backend_options : None
        None: the backend has no options.
    """
    if backend_options is not None:
        raise ArgumentTypeError(f"the backend {BACKEND} has no options: leave pg_options out")
    has_members = not getattr(options, "enable_reconfigure", False)  # an option of PyTorch since 2.14
    if is_by_mpi():
        if not has_members:
            raise ArgumentError("enable_reconfigure=True needs messages over TCP: set GRADIENTFLOW_TRANSPORT=tcp")
        by_mpi = _by_mpi(options)
        return ProcessGroup(by_mpi.place, by_mpi, options.timeout, options.group_id)
    place, towards = RankAndSize(options.group_rank, options.group_size), _towards(options.store)
    members = _by_store(options, place, towards) if has_members else None
    return ProcessGroup(place, members, options.timeout, options.group_id, towards)


def _by_mpi(options: Options) -> Members:
    MPI = load_mpi()  # noqa: N806
    if MPI.Query_thread() != MPI.THREAD_MULTIPLE:
        raise ArgumentError(f"the backend {BACKEND} needs an MPI that was initialized with MPI_THREAD_MULTIPLE")
    ranks = list(options.global_ranks_in_group)
    if ranks:
        Rendezvous(dist.get_rank(), dist.get_world_size())
    else:
        ranks = list(range(Rendezvous(options.group_rank, options.group_size).place.size))
    # Only members call this, so only they take part. The tag distinguishes groups that are made at the same time. It is
    # not made from the group's name, which can differ between members (use_local_synchronization).
    tag = zlib.crc32(repr(ranks).encode()) % 32768
    everybody = MPI.COMM_WORLD.Get_group()
    members = everybody.Incl(ranks)
    try:
        mpi = MPI.COMM_WORLD.Create_group(members, tag)
    finally:
        members.Free()
        everybody.Free()
    address, asked = address_of(mpi), asked_transport()

    def meet(settings: Config) -> core.Endpoint:
        return core.introduced(address, {**settings, "transport": asked})

    return Members(RankAndSize(mpi.rank, mpi.size), ranks, meet, lambda: MPI.Is_finalized() or mpi.Free())


def _by_store(options: Options, place: RankAndSize, towards: str) -> Members:
    ranks: Sequence[int] = list(options.global_ranks_in_group) or range(place.size)
    return Members(place, ranks, partial(_meet, options.store, place, towards))


def _meet(store: object, place: RankAndSize, towards: str, settings: Config) -> core.Endpoint:
    return meet_by(core_store(store, serve=place.rank == 0), place, settings, towards)


def _towards(store: object) -> str:
    """Return the meeting place on the network, if known from the store, the job, or PyTorch's variables."""
    address = address_of_store(store)
    if address and not _is_loopback(address):  # rank 0 may know a store by a loopback address
        return address
    with suppress(ArgumentError):  # about variables that are not needed here
        if towards := near(plan_of_job()):
            return towards
    host, port = os.environ.get("MASTER_ADDR", ""), os.environ.get("MASTER_PORT", "")
    return f"{host}:{port}" if host and port and ":" not in host else ""


def _is_loopback(address: str) -> bool:
    host, _ = split_address(address, "the address of a store")
    return host in ("localhost", "::1") or host.startswith("127.")
