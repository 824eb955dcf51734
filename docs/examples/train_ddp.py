"""PyTorch's DistributedDataParallel over GradientFlow: ``gradientflow run -n 2 -- python train_ddp.py``."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

dist.init_process_group("gradientflow")  # the only line that is not as for any other backend

torch.manual_seed(0)
x = torch.randn(4000, 20)
y = (x[:, :10].sum(1) > x[:, 10:].sum(1)).long()
data = TensorDataset(x, y)

network = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 2))
model = DistributedDataParallel(network, gradient_as_bucket_view=True)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

sampler = DistributedSampler(data)  # every rank has a part of the data
batches = DataLoader(data, batch_size=32, sampler=sampler)
for epoch in range(3):
    sampler.set_epoch(epoch)
    for inputs, labels in batches:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(inputs), labels)
        loss.backward()  # gradients are averaged over the ranks meanwhile
        optimizer.step()

accuracy = (model(x).argmax(1) == y).float().mean()
if dist.get_rank() == 0:
    print(f"accuracy {accuracy:.3f}")
dist.destroy_process_group()
