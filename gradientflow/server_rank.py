"""Ranks that serve only: what workers tell them, and what they do until all workers have closed."""

from __future__ import annotations

import pickle
import threading
import time
from typing import Any

import numpy as np

from ._location import load_core
from .communicator import Communicator
from .errors import CommunicationTimeoutError, GradientFlowError, PeerError

_TAG = 7341  # of commands, and of the answers to them
_NAP = 0.002  # seconds between looks
_LAST_WORDS = 5.0  # seconds for the end of what workers have left open
_LOOK = 0.2  # seconds between looks for ranks that have died


class ServerRanks:
    """The ranks that serve the workers of a communicator.

    Attributes
    ----------
    everyone : Communicator
        Workers and servers, workers first.
    count : int
        How many ranks serve.
    """

    def __init__(self, everyone: Communicator, workers: int) -> None:
        self.everyone = everyone
        self.count: int = everyone.size - workers
        self.workers = workers
        self._closed = False

    def start(self, comm: Communicator, arguments: tuple[Any, ...]) -> None:
        """Have all servers make a parameter server. Collective over the workers; then they make it, too.

        Raises
        ------
        gradientflow.errors.GradientFlowError
            On every worker, if a server cannot: for example because it does not know the class of a policy.
        """
        trouble = b""
        if comm.rank == 0:
            try:
                self._tell(pickle.dumps(("make", arguments)))
                trouble = "; ".join(filter(None, self._answers())).encode()
            except Exception as error:
                trouble = str(error).encode()
        said = comm.allgatherv(np.frombuffer(trouble, np.uint8))
        if said.size:
            raise GradientFlowError(said.tobytes().decode())

    def close(self) -> None:
        """Tell the servers that this worker has closed. Twice is harmless."""
        from mpi4py import MPI

        if not self._closed and not MPI.Is_finalized():
            self._closed = True
            self._tell(pickle.dumps(("close", ())))

    def _tell(self, command: bytes) -> None:
        mpi = self.everyone.mpi
        for server in range(self.workers, self.everyone.size):
            mpi.send(command, server, _TAG)

    def _answers(self) -> list[str]:
        answers: list[str] = []
        for server in range(self.workers, self.everyone.size):
            _await(self.everyone, server)
            answers.append(self.everyone.mpi.recv(source=server, tag=_TAG))
        return answers


def _await(everyone: Communicator, source: int) -> None:
    timeout = float(everyone.describe()["settings"]["timeout"])
    deadline = time.monotonic() + timeout
    while not everyone.mpi.iprobe(source=source, tag=_TAG):
        time.sleep(_NAP)
        if not everyone._native.is_alive(source):
            message = f"rank {source} has died, which serves"
            raise PeerError(message)
        if time.monotonic() > deadline:
            message = f"rank {source}, which serves, has not answered within {timeout:g} s"
            raise CommunicationTimeoutError(message)


def serve(everyone: Communicator, workers: int) -> None:
    """Serve the workers until all of them have closed. A rank that serves only calls this.

    Parameters
    ----------
    everyone : Communicator
        Workers and servers, workers first.
    workers : int
        How many.

    Raises
    ------
    gradientflow.errors.PeerError
        If a worker has died.
    """
    mpi = everyone.mpi
    open_ = set(range(workers))
    threads: list[threading.Thread] = []
    natives: list[Any] = []
    looked = time.monotonic()
    while open_:
        if mpi.iprobe(tag=_TAG):
            from mpi4py import MPI

            status = MPI.Status()
            command = mpi.recv(tag=_TAG, status=status)
            source = status.Get_source()
            try:
                kind, arguments = pickle.loads(command)  # from a rank of the same job
            except Exception as error:
                mpi.send(f"rank {everyone.rank} serves, and cannot read what is to be made: {error}", source, _TAG)
                continue
            if kind == "close":
                open_.discard(source)
                continue
            mpi.send("", source, _TAG)
            try:
                native = make_native(everyone, workers, arguments)
            except GradientFlowError:
                continue  # the workers have it, too
            natives = [each for each in natives if not each.closed]
            threads = [each for each in threads if each.is_alive()]
            natives.append(native)
            threads.append(threading.Thread(target=_run, args=(native,), daemon=True))
            threads[-1].start()
            continue
        time.sleep(_NAP)
        if time.monotonic() > looked + _LOOK:
            looked = time.monotonic()
            for rank in sorted(open_):
                if not everyone._native.is_alive(rank):
                    for native in natives:
                        native.close(False)
                    message = f"rank {rank} has died while rank {everyone.rank} served it"
                    raise PeerError(message)
    for thread in threads:
        thread.join(_LAST_WORDS)
    for native in natives:
        native.close(True)


def make_native(everyone: Communicator, workers: int | None, arguments: tuple[Any, ...]) -> Any:
    """Make a parameter server of the core. Collective over workers and servers."""
    counts, servers, threshold, wire, names, policy, optimizer = arguments
    return load_core().ParameterServer(
        everyone._native,
        counts,
        workers,
        servers,
        threshold,
        wire,
        names,
        repr(policy),
        policy.start,
        *optimizer,  # the last ones
    )


def _run(native: Any) -> None:
    try:
        native.serve()
    except GradientFlowError:
        pass  # the workers have been told
    finally:
        native.close(True)


__all__ = ["ServerRanks", "make_native", "serve"]
