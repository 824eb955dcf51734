"""Weights in parts on the ranks, by DTensor: ``gradientflow run -n 2 -- python train_tensor_parallel.py``."""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

dist.init_process_group("gradientflow")
mesh = init_device_mesh("cpu", (dist.get_world_size(),))


def network():
    torch.manual_seed(0)  # the same weights on all ranks
    return nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 2))


def train(model):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for inputs, labels in zip(x.split(100), y.split(100), strict=True):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(inputs), labels).backward()
        optimizer.step()


torch.manual_seed(1)
x = torch.randn(4000, 20)  # all ranks see the whole batch
y = (x[:, :10].sum(1) > x[:, 10:].sum(1)).long()

whole = network()
train(whole)
# The first layer gives each rank a part of the hidden units; the second adds up their outputs, in an all-reduce.
parted = parallelize_module(network(), mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
train(parted)

for parts, right in zip(parted.parameters(), whole.parameters(), strict=True):
    full = parts.full_tensor() if hasattr(parts, "full_tensor") else parts
    torch.testing.assert_close(full, right, rtol=1e-4, atol=1e-5)
accuracy = (parted(x).argmax(1) == y).float().mean()
if dist.get_rank() == 0:
    print(f"accuracy {accuracy:.3f} on {dist.get_world_size()} ranks over {dist.get_backend()}")
dist.destroy_process_group()
