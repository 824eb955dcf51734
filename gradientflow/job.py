"""Start of a job: `init`, and the split into ranks that compute and ranks that only serve."""

from __future__ import annotations

import atexit
import os
import sys
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

from ._location import core
from .admission import Admission
from .communicator import Communicator, address_of
from .config import settings
from .errors import ArgumentError, MPILibraryError, PeerError
from .meeting import SERVERS, InitArguments, MeetingPlan, find_plan, servers_of
from .meeting.endpoints import meet as meet_ranks
from .meeting.endpoints import near
from .meeting.exit_status import reaching
from .meeting.plan import ALONE
from .meeting.stores import open_store
from .meeting.variables import RankAndSize
from .mpi_library import find_mpi, load_mpi, start_mpi
from .server import ServerRanks, serve
from .settings_file import settings_file
from .watch import answer_at


def init(
    comm: object = None,
    config: Mapping[str, str] | None = None,
    *,
    transport: str | None = None,
    meet: str | None = None,
    rank: int | None = None,
    size: int | None = None,
    store: object = None,
) -> Communicator:
    """Make a communicator. Collective over its ranks.

    The ranks find each other in the first of these ways that applies: by the arguments; by ``GRADIENTFLOW_MEET``,
    ``GRADIENTFLOW_RANK`` and ``GRADIENTFLOW_SIZE``; through MPI, if its launcher has started this process; by the
    variables of ``torchrun``; by the variables of a Slurm step. If none applies, this process is the only rank.

    In a job with ranks that only serve, started by ``gradientflow run --servers``, the communicator has the ranks that
    compute. On a rank that serves, `init` does not return: it serves until all ranks that compute have closed their
    communicators, and then ends the process with status 0.

    Parameters
    ----------
    comm : mpi4py.MPI.Intracomm, optional
        Ranks that take part; by default all ranks of the job. The communicator is duplicated, so that messages never
        mix.
    config : Config, optional
        Settings; by default from the environment and the settings file.
    transport : {"auto", "mpi", "tcp"}, optional
        Transport of messages between nodes; by default the setting of that name. ``auto`` is TCP, except in MPI jobs
        inside one host or with an RDMA device on every host: these use MPI. With ``tcp``, ranks started by MPI meet
        through MPI.
    meet : str, optional
        Address where the ranks meet: ``host:port``, at which rank 0 listens, several with commas, or ``file:///path``
        in a folder that all hosts share. Needs `rank` and `size`.
    rank, size : int, optional
        Rank of this process, and number of ranks.
    store : object, optional
        Store through which the ranks meet, in place of `meet`: a store of PyTorch, or any object with the same
        ``set``, ``add`` and ``compare_set``.

    Returns
    -------
    Communicator
        Closed by `Communicator.close`, by a ``with`` block, or else at exit.

    Raises
    ------
    gradientflow.errors.ArgumentError
        If arguments or environment variables contradict each other or are incomplete; or if a setting is unknown or
        its value is not accepted.
    gradientflow.errors.MPILibraryError
        If MPI is to be used and any of these holds: GradientFlow was built without it; mpi4py or the MPI library is
        missing; mpi4py and GradientFlow use different libraries; or another library's launcher started the program, so
        that every process would be alone.
    gradientflow.errors.CommunicationTimeoutError
        If some ranks have not called `init` within GRADIENTFLOW_TIMEOUT; the ranks that called it can retry.
    gradientflow.errors.MismatchError
        If a setting that all ranks must share differs between them.
    """
    given = InitArguments(comm is not None, store is not None, meet, rank, size, mpi_size())
    plan = find_plan(os.environ, given, asked_transport(config) if transport is None else transport)
    if plan.name == ALONE and plan.by_mpi and find_mpi() is None:
        plan = replace(plan, transport="tcp", by_mpi=False)
    mpi = _mpi_of_job(comm) if plan.by_mpi else None
    if servers_of(os.environ) > 0:
        if comm is None or mpi == load_mpi().COMM_WORLD:
            return _split_job(plan, mpi, config, store).communicator(config)
        if _job is None:
            raise ArgumentError("in a job with ranks that only serve, init() without a communicator comes first")
    return _make(plan, mpi, config, store)


def computing_ranks(plan: MeetingPlan) -> Any:
    """Return the ranks of the job that compute. Does not return on a rank that serves.

    Collective if some ranks serve.

    Returns
    -------
    mpi4py.MPI.Intracomm or RankAndSize
        MPI's communicator of these ranks; without MPI, this process's rank among them and their number.
    """
    mpi = _mpi_of_job(None) if plan.by_mpi else None
    servers = servers_of(os.environ)
    if servers == 0:
        return plan.place if mpi is None else mpi
    computing = _split_job(plan, mpi, None, None).computing
    return RankAndSize(computing.rank, computing.size) if mpi is None else computing.mpi


def asked_transport(config: Mapping[str, str] | None = None) -> str:
    """Return the transport asked for by settings, environment or settings file. Does not load the core."""
    found = config.get("transport") if isinstance(config, Mapping) else None
    return found or os.environ.get("GRADIENTFLOW_TRANSPORT") or str(settings_file().settings.get("transport", "auto"))


def mpi_size() -> int | None:
    """Return the number of MPI ranks if this program has initialized MPI already; else None."""
    mpi = sys.modules.get("mpi4py.MPI")
    if mpi is None or not mpi.Is_initialized() or mpi.Is_finalized():
        return None
    return int(mpi.COMM_WORLD.size)


def _mpi_of_job(comm: object) -> object:
    """Return the given MPI communicator, or by default that of all ranks; check that the launcher fits the library."""
    MPI = load_mpi()  # noqa: N806
    found = MPI.COMM_WORLD if comm is None else comm
    start_mpi(MPI)
    if isinstance(found, MPI.Intracomm) and not MPI.Is_finalized():
        mismatch = core.launcher_mismatch(MPI._addressof(found))
        if mismatch:
            raise MPILibraryError(mismatch)
    return found


def admission_at(plan: MeetingPlan, settings: Mapping[str, str]) -> Admission:
    """Return the `Admission` through which processes join a job whose ranks met at a store."""
    with reaching() if plan.has_store_server else nullcontext():
        found = open_store(plan, float(settings["timeout"]))
        core.own_address(near(plan), dict(settings))
    answer_at(found, plan.prefix, ",".join(plan.at))
    place = plan.place if plan.has_store_server and plan.rank is not None else None
    return Admission(found, plan.prefix, near(plan), place, outlives_ranks=plan.agent)


def _make(plan: MeetingPlan, mpi: object, config: Mapping[str, str] | None, store: object) -> Communicator:
    """Make a communicator of all ranks that meet by the given plan. Collective."""
    chosen = settings(config)
    address = None if mpi is None else address_of(mpi)
    admission = admission_at(plan, chosen) if plan.at and mpi is None and store is None else None
    if admission is not None and plan.has_store_server and (why := admission.missing_reason(float(chosen["timeout"]))):
        raise PeerError(why)
    made = Communicator(meet_ranks(plan, chosen, store=store, mpi=address), chosen, mpi=mpi)
    if admission is not None:
        made._admission = admission
        admission.note_running()
    return made


class _SplitJob:
    """A job with ranks that only serve, as seen by a rank that computes."""

    def __init__(self, everyone: Communicator, computing: Communicator) -> None:
        self.computing = computing
        self._servers = ServerRanks(everyone, computing.size)
        self._users = 0  # open communicators
        self._has_ended = False

    def communicator(self, config: Mapping[str, str] | None) -> Communicator:
        """Make a communicator of the ranks that compute. If all earlier ones have closed, it has no servers."""
        made = self.computing._again(config)
        if not self._has_ended:
            self._users += 1
            made.server_ranks = _Use(self._servers, self._release)
        return made

    def _release(self) -> None:
        self._users -= 1
        if self._users == 0:
            self.end()

    def end(self) -> None:
        """Tell the servers that this rank no longer needs them."""
        self._has_ended = True
        self._servers.close()


class _Use:
    """One communicator's use of the ranks that serve."""

    def __init__(self, servers: ServerRanks, release: Callable[[], None]) -> None:
        self.everyone, self.count = servers.everyone, servers.count
        self.start = servers.start
        self._release = release
        self._closed = False

    def close(self) -> None:
        """End the use. Closing twice is harmless."""
        if not self._closed:
            self._closed = True
            self._release()


_job: _SplitJob | None = None  # one per process


def _split_job(plan: MeetingPlan, mpi: object, config: Mapping[str, str] | None, store: object) -> _SplitJob:
    """Split the job into ranks that compute and ranks that serve. Does not return on ranks that serve. Collective."""
    global _job
    if _job is None:
        everyone = _make(plan, mpi, config, store)
        servers = servers_of(os.environ)
        workers = everyone.size - servers
        if workers < 1:
            message = f"{SERVERS} is {servers}, and the job has {everyone.size} ranks: none is left to compute"
            raise ArgumentError(message)
        computing = everyone.split(0 if everyone.rank < workers else None)
        if computing is None:
            try:
                with everyone:
                    serve(everyone, workers)
            except PeerError as error:
                sys.exit(f"gradientflow: rank {everyone.rank}, which only serves, ends: {error}")
            sys.exit(0)
        _job = _SplitJob(everyone, computing)
    return _job


@atexit.register
def _end_servers() -> None:
    """Let the servers end, even if no communicator has used them."""
    if _job is not None:
        _job.end()


__all__ = ["asked_transport", "computing_ranks", "init", "mpi_size"]
