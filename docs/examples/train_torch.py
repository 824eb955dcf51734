"""Data-parallel training with DistributedOptimizer: ``gradientflow run -n 2 -- python train_torch.py``."""

import torch
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import gradientflow as gf
import gradientflow.torch as gft

torch.manual_seed(0)
x = torch.randn(4000, 20)
y = (x[:, :10].sum(1) > x[:, 10:].sum(1)).long()
data = TensorDataset(x, y)

with gf.init() as comm:
    model = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 2))
    optimizer = gft.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), model, comm)

    sampler = DistributedSampler(data, num_replicas=comm.size, rank=comm.rank)  # every rank has a part of the data
    batches = DataLoader(data, batch_size=32, sampler=sampler)
    for epoch in range(3):
        sampler.set_epoch(epoch)
        for inputs, labels in batches:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(inputs), labels)
            loss.backward()  # gradients are averaged over the ranks meanwhile
            optimizer.step()

    accuracy = (model(x).argmax(1) == y).float().mean()
    if comm.rank == 0:
        print(f"accuracy {accuracy:.3f}")
