"""Accelerate over GradientFlow: ``gradientflow run -n 2 -- python train_accelerate.py``."""

import torch
import torch.distributed as dist
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

dist.init_process_group("gradientflow")  # first: the Accelerator takes the group that it finds
accelerator = Accelerator(cpu=True)

torch.manual_seed(0)
x = torch.randn(4000, 20)
y = (x[:, :10].sum(1) > x[:, 10:].sum(1)).long()

model = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
batches = DataLoader(TensorDataset(x, y), batch_size=32, shuffle=True)
model, optimizer, batches = accelerator.prepare(model, optimizer, batches)

for _ in range(3):
    for inputs, labels in batches:
        optimizer.zero_grad()
        accelerator.backward(nn.functional.cross_entropy(model(inputs), labels))
        optimizer.step()

accuracy = (model(x).argmax(1) == y).float().mean()
accelerator.print(f"accuracy {accuracy:.3f} on {accelerator.num_processes} ranks over {dist.get_backend()}")
accelerator.end_training()
