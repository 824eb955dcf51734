"""Gloo as a peer, through PyTorch's process groups, which is how it is used in practice."""

from __future__ import annotations

import os
import shutil
import socket
import tempfile
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.distributed

from .collectives import ROOT, Case
from .contestants import Contestant, NotServedError, then_divide

if TYPE_CHECKING:
    from mpi4py import MPI

dist: Any = torch.distributed  # its annotations leave out the stores

# The names since PyTorch 2.13, where the older ones warn.
_gather = getattr(dist, "all_gather_single", dist.all_gather_into_tensor)
_reduce_scatter = getattr(dist, "reduce_scatter_single", dist.reduce_scatter_tensor)
_OPERATIONS = {"max": dist.ReduceOp.MAX, "min": dist.ReduceOp.MIN, "prod": dist.ReduceOp.PRODUCT}


class GlooPeer:
    """Gloo's collectives on CPU tensors.

    The ranks find each other through a file where all are on one machine, and then talk over its loopback interface;
    otherwise through a port of rank 0's host, over the interface that the host's name leads to (``GLOO_SOCKET_IFNAME``
    overrides it).

    Parameters
    ----------
    comm : mpi4py communicator
        Whose ranks take part; all have to call this together.
    """

    def __init__(self, comm: MPI.Comm) -> None:
        torch.set_num_threads(1)  # one thread a rank, like every other contestant
        folder = None
        rank, size = comm.Get_rank(), comm.Get_size()
        if len(set(comm.allgather(socket.gethostname()))) == 1:
            os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
            folder = comm.bcast(tempfile.mkdtemp(prefix="gradientflow-gloo-") if rank == ROOT else None, ROOT)
            store = dist.FileStore(os.path.join(folder, "store"), size)
        else:
            address = comm.bcast(socket.gethostbyname(socket.gethostname()), ROOT)
            server = dist.TCPStore(address, 0, size, is_master=True, wait_for_workers=False) if rank == ROOT else None
            port = comm.bcast(server.port if server is not None else None, ROOT)
            store = server if server is not None else dist.TCPStore(address, port, size)
        dist.init_process_group("gloo", store=store, rank=rank, world_size=size, timeout=timedelta(minutes=5))
        dist.barrier()
        if folder is not None and rank == ROOT:
            shutil.rmtree(folder, ignore_errors=True)  # they have met

    def contestant(self, case: Case) -> Contestant:
        """Make it ready to run a case."""
        source = np.empty(case.input_count, case.dtype)
        result = source
        tensor = torch.from_numpy(source)
        operation = _OPERATIONS.get(case.op, dist.ReduceOp.SUM)
        call: Callable[[], object] = dist.barrier
        if case.collective == "allreduce":
            call = partial(dist.all_reduce, tensor, operation)
        elif case.collective == "broadcast":
            call = partial(dist.broadcast, tensor, ROOT)
        elif case.collective == "reduce":
            call = partial(dist.reduce, tensor, ROOT, operation)
        elif case.collective == "allgather":
            result = np.empty(case.result_count, case.dtype)
            call = partial(_gather, torch.from_numpy(result), tensor)
        elif case.collective == "reduce-scatter":
            if case.input_count % case.ranks:
                raise NotServedError("gloo's reduce-scatter needs a size that divides evenly among the ranks")
            result = np.empty(case.result_count, case.dtype)
            call = partial(_reduce_scatter, torch.from_numpy(result), tensor, operation)
        reduced = case.collective in ("allreduce", "reduce-scatter") or (
            case.collective == "reduce" and case.rank == ROOT
        )
        if case.op == "mean" and reduced:
            call = then_divide(call, result, case.ranks)
        return Contestant("gloo", "gloo", "array", source, result, call)

    def close(self) -> None:
        """End the process group."""
        dist.barrier()
        dist.destroy_process_group()
