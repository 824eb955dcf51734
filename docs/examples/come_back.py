"""Ranks that die are started again by ``gradientflow run --min-ranks 2 --restart``."""

import os
import signal

import torch
from torch.utils.data import DataLoader, TensorDataset

import gradientflow as gf
import gradientflow.torch as gft

STEPS, BATCH = 1500, 96

torch.manual_seed(0)
inputs = torch.randn(9600, 20)
labels = (inputs[:, :10].sum(1) > inputs[:, 10:].sum(1)).long()
dataset = TensorDataset(inputs, labels)
model = torch.nn.Sequential(torch.nn.Linear(20, 64), torch.nn.ReLU(), torch.nn.Linear(64, 2))
inner = torch.optim.AdamW(model.parameters(), lr=1e-3)

comm = gf.join()  # the others wait for a rank from here to its first step, so all else comes before
victim = comm.rank == 1 and comm.recovered_from is None  # in this example rank 1 dies
optimizer = gft.DistributedOptimizer(inner, model, comm, on_failure="continue", min_ranks=1)
schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)
sampler = gft.ElasticSampler(dataset, optimizer, batch_size=BATCH)
loader = DataLoader(dataset, batch_sampler=sampler)
for step, (x, y) in sampler.steps(loader, STEPS):
    now = optimizer.membership
    if optimizer.changed and now.rank == 0 and now.joined:
        print(f"step {step}: {now.size} ranks", flush=True)
    if optimizer.changed and now.rank in now.joined:  # this process has just come
        schedule.last_epoch = step
    if victim and step == 100:
        os.kill(os.getpid(), signal.SIGKILL)
    optimizer.zero_grad()
    torch.nn.functional.cross_entropy(model(x), y).backward()
    optimizer.step()
    if not optimizer.membership.dropped:
        schedule.step()
accuracy = (model(inputs).argmax(1) == labels).float().mean()
print(f"rank {optimizer.membership.rank} of {optimizer.membership.size}: accuracy {accuracy:.3f}")
optimizer.close()
comm.close()
