"""Ranks that only serve: the commands that workers send them, and their loop until all workers have closed."""

from __future__ import annotations

import threading
from contextlib import suppress
from typing import Any

import numpy as np

from gradientflow import waits
from gradientflow._location import core
from gradientflow.communicator import Communicator
from gradientflow.errors import ClosedError, CommunicationTimeoutError, GradientFlowError, PeerError
from gradientflow.mailbox import make_mailbox
from gradientflow.plain import dump, load


class _Channel:
    """Messages of any length among all ranks of a job. Making a channel is collective."""

    def __init__(self, everyone: Communicator) -> None:
        self._mailbox = make_mailbox(everyone, "the job")
        self._tags = self._mailbox.draw_rest()

    def send(self, to: int, message: bytes) -> None:
        """Send to a rank; the message is lost if the rank has ended."""
        memory = np.frombuffer(message, np.uint8)
        self._mailbox.send(memory.ctypes.data, memory.nbytes, memory, to, self._tags.at(0))

    def next(self, source: int | None, timeout: float) -> tuple[int, bytes] | None:
        """Return the next message with its source; None if none comes in time.

        Raises
        ------
        gradientflow.errors.PeerError
            If no message can come any more.
        """
        arrival = self._mailbox.next(self._tags, source, timeout)
        if arrival is None:
            return None
        memory = np.empty(arrival.nbytes, np.uint8)
        self._mailbox.take(arrival, memory.ctypes.data, memory).wait()
        return arrival.source, memory.tobytes()

    def close(self) -> None:
        """Send and receive no more."""
        self._mailbox.close(True)


class ServerRanks:
    """The ranks that serve the workers of a communicator. Collective with these ranks, which call `serve`.

    Attributes
    ----------
    everyone : Communicator
        Workers and servers, workers first.
    count : int
        Number of ranks that serve.
    """

    def __init__(self, everyone: Communicator, workers: int) -> None:
        self.everyone = everyone
        self.count: int = everyone.size - workers
        self._servers = range(workers, everyone.size)
        self._channel = _Channel(everyone)
        self._closed = False

    def start(self, comm: Communicator, arguments: tuple[object, ...]) -> None:
        """Tell all servers to make a parameter server; the workers then make theirs. Collective over the workers.

        Raises
        ------
        gradientflow.errors.GradientFlowError
            On every worker, if a server cannot make it, for example because the server lacks the class of the policy.
        """
        failure = b""
        if comm.rank == 0:
            try:
                self._tell("make", _plain(arguments))
                failure = "; ".join(filter(None, self._answers())).encode()
            except Exception as error:
                failure = str(error).encode()
        reasons = comm.allgatherv(np.frombuffer(failure, np.uint8))
        if reasons.size:
            raise GradientFlowError(reasons.tobytes().decode())

    def close(self) -> None:
        """Tell the servers that this worker has closed. Closing twice is harmless."""
        if not self._closed:
            self._closed = True
            with suppress(ClosedError):  # raised at the end of the process
                self._tell("close", ())
            self._channel.close()

    def _tell(self, kind: str, arguments: tuple[object, ...]) -> None:
        for server in self._servers:
            self._channel.send(server, dump((kind, arguments), f"the parameter server to {kind}"))

    def _answers(self) -> list[str]:
        timeout = float(self.everyone.describe()["settings"]["timeout"])
        answers: list[str] = []
        for server in self._servers:
            found = self._channel.next(server, timeout)
            if found is None:
                raise CommunicationTimeoutError(f"rank {server}, which serves, has not answered within {timeout:g} s")
            answers.append(found[1].decode())
        return answers


def serve(everyone: Communicator, workers: int) -> None:
    """Serve the workers until all of them have closed. Called by a rank that only serves.

    Collective with the workers, which make `ServerRanks`.

    Parameters
    ----------
    everyone : Communicator
        Workers and servers, workers first.
    workers : int
        Number of workers.

    Raises
    ------
    gradientflow.errors.PeerError
        If a worker has died or given up.
    """
    channel = _Channel(everyone)
    open_ = set(range(workers))
    threads: list[threading.Thread] = []
    natives: list[core.ParameterServer] = []
    try:
        while open_:
            found = _next_command(channel, open_)
            if found is None:
                continue
            source, command = found
            try:
                kind, arguments = load(command)
                arguments = _from_plain(arguments) if kind == "make" else arguments
            except Exception as error:
                message = f"rank {everyone.rank} serves, and cannot read what is to be made: {error}"
                channel.send(source, message.encode())
                continue
            if kind == "close":
                open_.discard(source)
                continue
            channel.send(source, b"")
            try:
                native = make_native(everyone, workers, arguments)
            except GradientFlowError:
                continue  # the workers get the same error
            natives = [each for each in natives if not each.closed]
            threads = [each for each in threads if each.is_alive()]
            natives.append(native)
            threads.append(threading.Thread(target=_run, args=(native,), daemon=True))
            threads[-1].start()
    except PeerError:
        _end(threads, natives, orderly=False)
        raise
    _end(threads, natives, orderly=True)
    channel.close()


def _next_command(channel: _Channel, workers: set[int]) -> tuple[int, bytes] | None:
    """Wait a moment for a worker's command. If none comes and a worker has ended, raise PeerError, which names it."""
    try:
        found = channel.next(None, waits.WORKER_DIES.seconds)
    except PeerError:  # all ranks have ended: the loop below names one of them
        found = None
    for worker in sorted(workers):
        found = found or channel.next(worker, 0.0)
    return found


def _end(threads: list[threading.Thread], natives: list[core.ParameterServer], *, orderly: bool) -> None:
    """Close the servers, after a grace period in which they can end by themselves and tell the workers the reason."""
    for thread in threads:
        thread.join(waits.SERVER_ENDS.seconds)
    for native in natives:
        native.close(orderly)


def make_native(everyone: Communicator, workers: int | None, arguments: tuple[Any, ...]) -> core.ParameterServer:
    """Make a parameter server of the core. Collective over workers and servers."""
    counts, servers, threshold, wire, names, shapes, policy, replicas, optimizer = arguments
    return core.ParameterServer(
        everyone._native,
        counts,
        workers,
        servers,
        threshold,
        wire,
        names,
        shapes,
        repr(policy),
        policy.start,
        replicas,
        *optimizer,  # must be last
    )


def _plain(arguments: tuple[Any, ...]) -> tuple[object, ...]:
    """Return the arguments of `make_native` as plain values; the policy becomes its class's name and its settings."""
    from gradientflow.description import plain_of  # imported here, as jobs without servers have no policies

    *others, policy, replicas, optimizer = arguments
    return (*others, plain_of(policy), replicas, optimizer)


def _from_plain(arguments: tuple[Any, ...]) -> tuple[object, ...]:
    from gradientflow.description import from_plain
    from gradientflow.policies import Policy

    *others, policy, replicas, optimizer = arguments
    return (*others, from_plain(Policy, policy), replicas, optimizer)


def _run(native: core.ParameterServer) -> None:
    try:
        native.serve()
    except GradientFlowError:
        pass  # the workers have been told
    finally:
        native.close(True)


__all__ = ["ServerRanks", "make_native", "serve"]
