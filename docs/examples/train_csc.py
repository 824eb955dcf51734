"""Training in float16 that sends a sixth of the gradients: ``gradientflow run -n 2 -- python train_csc.py``."""

import torch
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import gradientflow as gf
import gradientflow.torch as gft
from gradientflow.strategies import CSC

torch.manual_seed(0)
x = torch.randn(4000, 20)
y = (x[:, :10].sum(1) > x[:, 10:].sum(1)).long()
data = TensorDataset(x, y)

with gf.init() as comm:
    model = nn.Sequential(nn.Linear(20, 256), nn.ReLU(), nn.Linear(256, 2)).half()
    optimizer = gft.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9),  # its step is made with float32 master weights
        model,
        comm,
        strategy=CSC(density=1 / 6, chunk_size=256, warmup=100),  # of a large model: chunks of 32768
        loss_scale="dynamic",
    )

    sampler = DistributedSampler(data, num_replicas=comm.size, rank=comm.rank)  # every rank has a part of the data
    batches = DataLoader(data, batch_size=32, sampler=sampler)
    for epoch in range(5):
        sampler.set_epoch(epoch)
        for inputs, labels in batches:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(inputs.half()).float(), labels)
            optimizer.scale(loss).backward()  # the important chunks are averaged over the ranks meanwhile
            optimizer.step()  # skipped on all ranks where a gradient is not finite

    accuracy = (model(x.half()).argmax(1) == y).float().mean()
    if comm.rank == 0:
        sent = len(optimizer.pools[0].sent) / optimizer.pools[0].chunks
        print(f"sent {sent:.0%} of the gradients; {optimizer.overflows} steps were skipped")
        print(f"accuracy {accuracy:.3f}")
