"""The exchange through torch.distributed.rpc, by functions that answer once all workers have called."""

from __future__ import annotations

import os
import threading
import warnings
from types import ModuleType
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import torch
import torch.distributed.rpc

from ..core.case import ROOT, Case, block
from ..core.objects import from_root
from ..core.plan import PlanError
from ..core.traffic import interface_to_others
from .contestants import ServerContestant, owner
from .plan import ARRAY

if TYPE_CHECKING:
    Answer: TypeAlias = torch.futures.Future[torch.Tensor]
    from gradientflow.communicator import Communicator

rpc: ModuleType = torch.distributed.rpc

_SECONDS = 300.0


class _Shard:
    """A server's part of the weights, and the gradients received for the next round."""

    def __init__(self, elements: int, workers: int) -> None:
        self._lock = threading.Lock()
        self._total = torch.zeros(elements)
        self._workers = workers
        self._arrived = 0
        self._answer: Answer = torch.futures.Future()

    def add(self, gradient: torch.Tensor) -> Answer:
        """Add a gradient; the returned future becomes the new weights once all gradients have arrived."""
        with self._lock:
            answer = self._answer
            self._total += gradient
            self._arrived += 1
            if self._arrived == self._workers:
                weights = self._total / -self._workers
                self._total.zero_()
                self._arrived = 0
                self._answer = torch.futures.Future()
                answer.set_result(weights)
            return answer


_shards: dict[tuple[int, int], _Shard] = {}  # shards by contestant and server


@rpc.functions.async_execution  # type: ignore[untyped-decorator,unused-ignore]
def exchange(key: tuple[int, int], gradient: torch.Tensor) -> Answer:
    """Send a gradient to a shard, and get its new weights."""
    return _shards[key].add(gradient)


class RpcServers:
    """The exchange by remote calls, over TensorPipe."""

    def __init__(self, comm: Communicator) -> None:
        torch.set_num_threads(1)
        found = interface_to_others()
        if found is None:
            raise PlanError("rpc does not know which interface leads to the other hosts: set GLOO_SOCKET_IFNAME")
        os.environ.setdefault("TP_SOCKET_IFNAME", found[0])
        self._comm = comm
        self._made = 0
        rank, size = comm.rank, comm.size
        dist: ModuleType = torch.distributed
        address = from_root(comm, found[1])
        server = dist.TCPStore(address, 0, size, is_master=True, wait_for_workers=False) if rank == ROOT else None
        port = from_root(comm, server.port if server is not None else 0)
        self._server = server
        os.environ["TORCHELASTIC_USE_AGENT_STORE"] = "True"  # rank 0 already has the store
        options = rpc.TensorPipeRpcBackendOptions(
            num_worker_threads=2 * size, rpc_timeout=_SECONDS, init_method=f"tcp://{address}:{port}"
        )
        warnings.filterwarnings("ignore", "You are using a Backend", UserWarning)  # warns of the backend of rpc itself
        rpc.init_rpc(str(rank), rank=rank, world_size=size, rpc_backend_options=options)

    def contestant(self, case: Case, servers: int) -> ServerContestant:
        """Make a contestant with this number of servers."""
        self._made += 1
        number = self._made
        gradient, weights, mean = (np.zeros(case.count, case.dtype) for _ in range(3))
        shards = [slice(*block(case.count, servers, server)) for server in range(servers)]
        places = [str(owner(server, servers, case.ranks)) for server in range(servers)]
        for server, shard in enumerate(shards):
            if places[server] == str(case.rank):
                _shards[number, server] = _Shard(shard.stop - shard.start, case.ranks)
        sent, received = torch.from_numpy(gradient), torch.from_numpy(weights)
        self._comm.barrier()

        def call() -> None:
            answers = [
                rpc.rpc_async(place, exchange, ((number, server), sent[shard]))
                for server, (place, shard) in enumerate(zip(places, shards, strict=True))
            ]
            for shard, answer in zip(shards, answers, strict=True):
                received[shard] = answer.wait()

        return ServerContestant("rpc", ARRAY, case.dtype, gradient, weights, mean, call)

    def close(self) -> None:
        """End rpc, once no rank makes calls any more."""
        rpc.shutdown()
        _shards.clear()
