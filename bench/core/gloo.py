"""Gloo as a peer, through PyTorch's process groups, as in practice."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from contextlib import ExitStack
from datetime import timedelta
from functools import partial
from types import ModuleType
from typing import TYPE_CHECKING

import numpy as np
import torch
import torch.distributed

from gradientflow.launch import scratch_folder

from .case import COLLECTIVES, ROOT, Case
from .data import Values
from .objects import from_all, from_root
from .peers import Contestant, NotServedError, has_reduction, then_divide
from .plan import PlanError
from .traffic import interface_to_others

if TYPE_CHECKING:
    from gradientflow.communicator import Communicator

dist: ModuleType = torch.distributed  # annotations of torch.distributed lack the stores

# Names since PyTorch 2.13, which warns of the older names.
all_gather = getattr(dist, "all_gather_single", dist.all_gather_into_tensor)
reduce_scatter = getattr(dist, "reduce_scatter_single", dist.reduce_scatter_tensor)
_OPERATIONS = {"max": dist.ReduceOp.MAX, "min": dist.ReduceOp.MIN, "prod": dist.ReduceOp.PRODUCT}


class GlooPeer:
    """Gloo's collectives on CPU tensors.

    On one host the ranks find each other through a file, and communicate over the loopback interface. Otherwise they
    find each other through a port of rank 0's host, and communicate over the interface of ``GLOO_SOCKET_IFNAME``, of
    the host name's address, or of the default route.
    """

    def __init__(self, comm: Communicator) -> None:
        torch.set_num_threads(1)  # one thread per rank, as for every other contestant
        self._stack = ExitStack()
        rank, size = comm.rank, comm.size
        if len(set(from_all(comm, socket.gethostname()))) == 1:
            os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
            made = self._stack.enter_context(scratch_folder("gradientflow-gloo-")).path if rank == ROOT else ""
            folder = from_root(comm, made)
            store = dist.FileStore(os.path.join(folder, "store"), size)  # further groups meet there, too
        else:
            found = interface_to_others()
            if found is None:
                raise PlanError(
                    "gloo does not know which interface leads to the other hosts: set GLOO_SOCKET_IFNAME to its name"
                )
            os.environ["GLOO_SOCKET_IFNAME"], own_address = found
            address = from_root(comm, own_address)
            server = dist.TCPStore(address, 0, size, is_master=True, wait_for_workers=False) if rank == ROOT else None
            port = from_root(comm, server.port if server is not None else 0)
            store = server if server is not None else dist.TCPStore(address, port, size)
        dist.init_process_group("gloo", store=store, rank=rank, world_size=size, timeout=timedelta(minutes=5))
        dist.barrier()

    def contestant(self, case: Case, source: Values | None = None) -> Contestant:
        """Make a contestant for a case."""
        source = np.empty(case.input_count, case.dtype) if source is None else source
        result = source if COLLECTIVES[case.collective].in_place else np.empty(case.result_count, case.dtype)
        sent, received = torch.from_numpy(source), torch.from_numpy(result)
        operation = _OPERATIONS.get(case.op, dist.ReduceOp.SUM)
        is_root = case.rank == ROOT
        if case.collective == "reduce-scatter" and case.count % case.ranks:
            raise NotServedError("gloo's reduce-scatter needs a size that divides evenly among the ranks")
        calls: dict[str, Callable[[], object]] = {
            "allreduce": partial(dist.all_reduce, sent, operation),
            "broadcast": partial(dist.broadcast, sent, ROOT),
            "reduce": partial(dist.reduce, sent, ROOT, operation),
            "allgather": partial(all_gather, received, sent),
            "reduce-scatter": partial(reduce_scatter, received, sent, operation),
            "alltoall": partial(dist.all_to_all_single, received, sent),
            "gather": partial(dist.gather, sent, list(received.chunk(case.ranks)) if is_root else None, ROOT),
            "scatter": partial(dist.scatter, received, list(sent.chunk(case.ranks)) if is_root else None, ROOT),
            "barrier": dist.barrier,
        }
        call = calls[case.collective]
        if case.op == "mean" and has_reduction(case):
            call = then_divide(call, result, case.ranks)
        return Contestant("gloo", "gloo", "array", case.dtype, source, result, call)

    def close(self) -> None:
        """End the process group."""
        dist.barrier()
        dist.destroy_process_group()
        self._stack.close()
