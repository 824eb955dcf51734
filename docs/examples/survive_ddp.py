"""DDP that goes on when ranks die: ``gradientflow run -n 4 --transport tcp --min-ranks 1 -- python survive_ddp.py``."""

import io
import os
import signal
import socket

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import gradientflow as gf

STEPS, BATCH = 200, 96
comm = gf.init()
victim = comm.rank == 1  # in this example rank 1 dies

torch.manual_seed(0)
x = torch.randn(4000, 20)
y = (x[:, :10].sum(1) > x[:, 10:].sum(1)).long()
network = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 2))
optimizer = torch.optim.SGD(network.parameters(), lr=0.1, momentum=0.9)


def shared(data: bytes, root: int) -> bytes:
    """Return what the root has given. Collective."""
    size = comm.broadcast(np.array([len(data)]), root)[0]
    array = np.frombuffer(data, np.uint8).copy() if comm.rank == root else np.empty(size, np.uint8)
    return comm.broadcast(array, root).tobytes()


def caught_up(step: int) -> int:
    """Return the latest step that a rank has reached, with its weights and state of the optimizer. Collective."""
    steps = comm.allgather(np.array([step])).ravel()
    if steps.min() < steps.max():  # one died in the middle of a step, which some have made
        leader, state = int(steps.argmax()), io.BytesIO()
        torch.save((network.state_dict(), optimizer.state_dict()), state)
        weights, of_optimizer = torch.load(io.BytesIO(shared(state.getvalue(), leader)))
        network.load_state_dict(weights)
        optimizer.load_state_dict(of_optimizer)
    return int(steps.max())


def in_group(network: nn.Module) -> nn.Module:
    """Begin a process group of the ranks of `comm`, and wrap the model. Collective."""
    host = socket.gethostname()
    if comm.rank == 0:
        store = dist.TCPStore(host, 0, is_master=True, wait_for_workers=False)  # on a port that is free
        shared(f"{host}:{store.port}".encode(), 0)
    else:
        host, port = shared(b"", 0).decode().split(":")
        store = dist.TCPStore(host, int(port))
    dist.init_process_group("gradientflow", store=store, rank=comm.rank, world_size=comm.size)
    return DistributedDataParallel(network)


step, model = 0, None
while True:
    try:
        if model is None:
            step = caught_up(step)
            model = in_group(network)
        if step == STEPS:
            comm.barrier()  # a rank that is behind needs one that is not
            break
        if victim and step == STEPS // 2:
            os.kill(os.getpid(), signal.SIGKILL)
        numbers = np.random.default_rng(step).integers(len(x), size=BATCH)[comm.rank :: comm.size]  # this rank's part
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x[numbers]), y[numbers]).backward()
        optimizer.step()
        step += 1
    except RuntimeError:  # as which PyTorch passes on the errors of gradientflow
        if dist.is_initialized():
            dist.destroy_process_group()
        comm, model = comm.recover(), None
        if not comm.lost:
            raise  # it has another cause

accuracy = (network(x).argmax(1) == y).float().mean()
weights = sum(parameter.sum().item() for parameter in network.parameters())
print(f"rank {comm.rank} of {comm.size}: accuracy {accuracy:.3f}, sum of the weights {weights!r}")
dist.destroy_process_group()
