"""The job: which of its ranks compute, and which only serve the others."""

from __future__ import annotations

import atexit
import os
import sys
from collections.abc import Callable, Mapping
from typing import Any

from ._location import load_core
from .communicator import Communicator
from .errors import ArgumentError, MPILibraryError
from .meeting import SERVERS
from .mpi_library import load_mpi
from .server import ServerRanks, serve


def init(comm: Any = None, config: Mapping[str, str] | None = None) -> Communicator:
    """Make a communicator. Collective over its ranks.

    In a job with ranks that only serve, started by ``gradientflow run --servers``, the communicator has the ranks that
    compute. On a rank that serves, `init` does not return: it serves until all ranks that compute have closed their
    communicators, and then ends the process with status 0.

    Parameters
    ----------
    comm : mpi4py.MPI.Intracomm, optional
        Whose ranks take part; by default all of the job. It is duplicated, so that messages never mix.
    config : Config, optional
        Settings; by default those of the environment.

    Returns
    -------
    Communicator
        To be closed by `Communicator.close` or a ``with`` block, or else at exit.

    Raises
    ------
    gradientflow.errors.MPILibraryError
        If the MPI library is missing, mpi4py and GradientFlow use two different ones, or the program was started by
        another library's launcher or by PyTorch's ``torchrun``, so that every process would be alone.
    gradientflow.errors.CommunicationTimeoutError
        If some ranks have not called `init` within GRADIENTFLOW_TIMEOUT; the others can try again.
    gradientflow.errors.MismatchError
        If a setting that all ranks must share differs between them.
    """
    MPI, core = load_mpi(), load_core()  # noqa: N806
    mpi = MPI.COMM_WORLD if comm is None else comm
    if isinstance(mpi, MPI.Intracomm) and MPI.Is_initialized() and not MPI.Is_finalized():
        mismatch = core.launcher_mismatch(MPI._addressof(mpi))
        if mismatch:
            raise MPILibraryError(mismatch)
    if _servers() > 0:
        if mpi == MPI.COMM_WORLD:
            return _split_job(config).communicator(config)
        if _job is None:
            message = "in a job with ranks that only serve, init() without a communicator comes first"
            raise ArgumentError(message)
    return Communicator(mpi, config)


def computing_ranks() -> Any:
    """Return the MPI communicator of the ranks that compute. Collective; does not return on a rank that serves."""
    MPI = load_mpi()  # noqa: N806
    if not MPI.Is_initialized():
        MPI.Init_thread(MPI.THREAD_MULTIPLE)
    return MPI.COMM_WORLD if _servers() == 0 else _split_job(None).computing.mpi


class _SplitJob:
    """A job with ranks that only serve, as seen by a rank that computes."""

    def __init__(self, everyone: Communicator, computing: Communicator) -> None:
        self.computing = computing
        self._servers = ServerRanks(everyone, computing.size)
        self._users = 0  # communicators that have not been closed
        self._has_ended = False

    def communicator(self, config: Mapping[str, str] | None) -> Communicator:
        """Make a communicator of the ranks that compute; after all were closed, a new one has no servers."""
        made = Communicator(self.computing.mpi, config)
        if not self._has_ended:
            self._users += 1
            made.server_ranks = _Use(self._servers, self._release)
        return made

    def _release(self) -> None:
        self._users -= 1
        if self._users == 0:
            self.end()

    def end(self) -> None:
        """Tell the servers that this rank does not need them any more."""
        self._has_ended = True
        self._servers.close()


class _Use:
    """The use of the ranks that serve by one communicator."""

    def __init__(self, servers: ServerRanks, release: Callable[[], None]) -> None:
        self.everyone, self.count = servers.everyone, servers.count
        self.start = servers.start
        self._release = release
        self._closed = False

    def close(self) -> None:
        """End the use. Twice is harmless."""
        if not self._closed:
            self._closed = True
            self._release()


_job: _SplitJob | None = None  # one per process


def _split_job(config: Mapping[str, str] | None) -> _SplitJob:
    """Split the job into ranks that compute and ranks that serve, where this does not return. Collective."""
    global _job
    if _job is None:
        from mpi4py import MPI

        everyone = Communicator(MPI.COMM_WORLD, config)
        workers = everyone.size - _servers()
        if workers < 1:
            message = f"{SERVERS} is {_servers()}, and the job has {everyone.size} ranks: none is left to compute"
            raise ArgumentError(message)
        computing = everyone.split(0 if everyone.rank < workers else None)
        if computing is None:
            with everyone:
                serve(everyone, workers)
            sys.exit(0)
        _job = _SplitJob(everyone, computing)
    return _job


@atexit.register
def _end_servers() -> None:
    """Let the servers end, even if no communicator has used them."""
    if _job is not None:
        _job.end()


def _servers() -> int:
    text = os.environ.get(SERVERS, "") or "0"
    if not text.isdecimal():
        message = f"{SERVERS} is {text!r}: it is a number of ranks"
        raise ArgumentError(message)
    return int(text)


__all__ = ["computing_ranks", "init"]
