"""DDP with ranks that die and come back, for PyTorch 2.14 or newer.

``gradientflow run -n 3 --min-ranks 1 --restart -- python reconfigure_ddp.py``
"""

import io
import os
import signal
import time

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import gradientflow as gf

STEPS, BATCH = 200, 96
comm = gf.join()
is_new = comm.recovered_from is not None  # the others have begun without this process
victim = comm.rank == 1 and not is_new  # in this example rank 1 dies, and comes back

torch.manual_seed(0)
x = torch.randn(4000, 20)
y = (x[:, :10].sum(1) > x[:, 10:].sum(1)).long()
network = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 2))
optimizer = torch.optim.SGD(network.parameters(), lr=0.1, momentum=0.9)
dist.init_process_group("gradientflow", store=dist.HashStore(), rank=0, world_size=1, enable_reconfigure=True)


def caught_up(step: int) -> int:
    """Return the latest step that a rank has reached, with its weights and state of the optimizer. Collective."""
    steps = comm.allgather(np.array([step])).ravel()
    if steps.min() < steps.max():  # one died in the middle of a step, which some have made; or one has come
        leader, state = int(steps.argmax()), io.BytesIO()
        torch.save((network.state_dict(), optimizer.state_dict()), state)
        size = comm.broadcast(np.array([len(state.getvalue())]), leader)[0]
        data = np.frombuffer(state.getvalue(), np.uint8).copy() if comm.rank == leader else np.empty(size, np.uint8)
        weights, of_optimizer = torch.load(io.BytesIO(comm.broadcast(data, leader).tobytes()))
        network.load_state_dict(weights)
        optimizer.load_state_dict(of_optimizer)
    return int(steps.max())


def in_group(network: nn.Module) -> nn.Module:
    """Give the process group the ranks of `comm`, and wrap the model. Collective."""
    uuid = int(comm.broadcast(np.array([time.time_ns()]), 0)[0])
    handle = dist._get_reconfigure_handle().encode()
    longest = f"S{comm.allreduce(np.array([len(handle)]), 'max')[0]}"
    handles = comm.allgather(np.array([handle], longest).view(np.uint8)).view(longest).ravel()
    dist._reconfigure(uuid, [each.decode() for each in handles]).wait()
    return DistributedDataParallel(network)


step, model = -1 if is_new else 0, None
while True:
    try:
        if model is None:
            step = caught_up(step)
            model = in_group(network)
        if step == STEPS:
            comm.barrier()  # a rank that is behind needs one that is not
            break
        if (wider := comm.admit(min_ranks=1)) is not comm:
            comm, model = wider, None
            continue
        if victim and step == STEPS // 4:
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(0.05)  # in this example steps take long enough for rank 1 to come back
        numbers = np.random.default_rng(step).integers(len(x), size=BATCH)[comm.rank :: comm.size]  # this rank's part
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x[numbers]), y[numbers]).backward()
        optimizer.step()
        step += 1
    except RuntimeError:  # as which PyTorch passes on the errors of gradientflow
        comm, model = comm.recover(min_ranks=1), None
        if not comm.lost:
            raise  # it has another cause

accuracy = (network(x).argmax(1) == y).float().mean()
weights = sum(parameter.sum().item() for parameter in network.parameters())
print(f"rank {comm.rank} of {comm.size}: accuracy {accuracy:.3f}, sum of the weights {weights!r}")
dist.destroy_process_group()
comm.close()
