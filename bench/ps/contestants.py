"""Contestants of ``gradientflow bench ps``: each worker pushes a gradient, and pulls the new weights.

The servers apply ``w = w - (mean of the gradients + w)``, so that the right weights depend only on the present
exchange: the negative mean.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

import gradientflow as gf
from gradientflow.strategies import Settings

from ..core.case import Case, block
from ..core.data import Values
from ..core.peers import OURS, NotServedError
from .plan import ARRAY, IN_PLACE

if TYPE_CHECKING:
    from mpi4py import MPI

    from gradientflow.communicator import Communicator

_SETTINGS = Settings(rate=1.0, weight_decay=1.0)
_PUSH, _PULL = 1, 2  # message tags


@dataclass
class ServerContestant:
    """One way to exchange gradients for weights.

    Attributes
    ----------
    backend, memory, wire : str
        Names in results.
    gradient : array
        This worker's gradient; in place, buffers alternate with each call.
    weights : array
        The pulled weights; in place, another array with each call.
    mean : array
        The negative weights, after `pull`.
    call : callable
        The exchange.
    close : callable
        Releases its resources. Collective.
    """

    backend: str
    memory: str
    wire: str
    gradient: Values
    weights: Values
    mean: Values
    call: Callable[[], object]
    close: Callable[[], object] = lambda: None
    turn: int = 0
    """Index of the present gradient buffer: 0 or 1."""

    @property
    def name(self) -> str:
        """The contestant in words."""
        return self.backend if self.backend != OURS else f"ours ({self.memory}, {self.wire})"

    @property
    def inputs(self) -> list[Values]:
        """The arrays for input values."""
        return [self.gradient]

    @property
    def results(self) -> list[Values]:
        """The arrays with the means."""
        return [self.mean]

    def push(self) -> None:
        """Do nothing: the gradient is in place."""

    def pull(self) -> None:
        """Compute the mean from the weights."""
        np.negative(self.weights, out=self.mean)


def owner(server: int, servers: int, ranks: int) -> int:
    """Return the rank of a server."""
    return server * ranks // servers


def our_contestant(comm: Communicator, case: Case, servers: int, wire: str) -> ServerContestant:
    """Make our contestant on ordinary arrays, with a wire dtype."""
    gradient, weights, mean = (np.zeros(case.count, case.dtype) for _ in range(3))
    server = gf.ParameterServer(comm, [weights], policy="bsp", optimizer="sgd", servers=servers, wire=wire)

    def call() -> None:
        _, pull = server.push_pull(_SETTINGS, gradients=[gradient])
        pull.take_all([weights])

    return ServerContestant(OURS, ARRAY, wire, gradient, weights, mean, call, server.close)


def in_place_contestant(comm: Communicator, case: Case, servers: int, wire: str) -> ServerContestant:
    """Make our contestant with gradients and weights in place, in memory that servers read and write."""
    if wire == "bfloat16" and importlib.util.find_spec("ml_dtypes") is None:
        raise NotServedError("NumPy arrays of bfloat16 in place need the package ml_dtypes")
    weights, mean = np.zeros(case.count, case.dtype), np.zeros(case.count, case.dtype)
    server = gf.ParameterServer(comm, [weights], policy="bsp", optimizer="sgd", servers=servers, wire=wire)

    def call() -> None:
        _, pull = server.push_pull(_SETTINGS, gradients=[found.gradient])
        found.weights = pull.weights(0)
        found.gradient = server.gradients()[0]
        found.turn ^= 1

    found = ServerContestant(OURS, IN_PLACE, wire, server.gradients()[0], weights, mean, call, server.close)
    return found


class MpiServers:
    """The exchange written with MPI: every message is started at once, and gradients are added as they arrive."""

    def __init__(self, comm: MPI.Comm) -> None:
        self._comm = comm

    def contestant(self, case: Case, servers: int) -> ServerContestant:
        """Make a contestant with this number of servers."""
        from mpi4py import MPI

        comm, ranks = self._comm, case.ranks
        gradient, weights, mean = (np.zeros(case.count, case.dtype) for _ in range(3))
        shards = [slice(*block(case.count, servers, server)) for server in range(servers)]
        own = [server for server in range(servers) if owner(server, servers, ranks) == case.rank]
        pushed = {server: np.zeros((ranks, shards[server].stop - shards[server].start), case.dtype) for server in own}

        def call() -> None:
            here, requests = [], []
            for server in own:
                here += [comm.Irecv(part, worker, _PUSH) for worker, part in enumerate(pushed[server])]
            for server, shard in enumerate(shards):
                place = owner(server, servers, ranks)
                requests.append(comm.Irecv(weights[shard], place, _PULL))
                requests.append(comm.Isend(gradient[shard], place, _PUSH))
            for server in own:
                MPI.Request.Waitall(here[:ranks])
                del here[:ranks]
                parts = pushed[server]
                for part in parts[1:]:
                    parts[0] += part
                parts[0] /= -ranks
                requests += [comm.Isend(parts[0], worker, _PULL) for worker in range(ranks)]
            MPI.Request.Waitall(requests)

        return ServerContestant("mpi", ARRAY, case.dtype, gradient, weights, mean, call)

    def close(self) -> None:
        """Do nothing: the communicator belongs to the caller."""
