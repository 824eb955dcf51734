"""Train a small network with DistributedDataParallel, save checkpoints, and resume from them.

A script as PyTorch's tutorials write it: it knows nothing of GradientFlow but the name of the backend.
"""

import argparse
import os

import torch
import torch.distributed as dist
import torch.nn.functional as F  # noqa: N812
from torch.nn.parallel import DistributedDataParallel as DDP  # noqa: N817
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler


class Trainer:
    def __init__(
        self, model: torch.nn.Module, data: DataLoader, optimizer: torch.optim.Optimizer, path: str, device: str
    ) -> None:
        self.rank = dist.get_rank()
        self.device = device
        self.data = data
        self.optimizer = optimizer
        self.path = path
        self.first_epoch = 0
        if os.path.exists(path):
            snapshot = torch.load(path, map_location=device)
            model.load_state_dict(snapshot["model"])
            optimizer.load_state_dict(snapshot["optimizer"])
            self.first_epoch = snapshot["epoch"] + 1
        self.model = DDP(model)

    def save(self, epoch: int) -> None:
        torch.save(
            {"model": self.model.module.state_dict(), "optimizer": self.optimizer.state_dict(), "epoch": epoch},
            self.path,
        )

    def run_epoch(self, epoch: int) -> float:
        self.data.sampler.set_epoch(epoch)
        total = torch.zeros(1, device=self.device)
        for inputs, targets in self.data:
            self.optimizer.zero_grad()
            loss = F.cross_entropy(self.model(inputs.to(self.device)), targets.to(self.device))
            loss.backward()
            self.optimizer.step()
            total += loss.detach()
        dist.all_reduce(total, op=dist.ReduceOp.SUM)
        return total.item() / (len(self.data) * dist.get_world_size())

    def train(self, epochs: int) -> None:
        for epoch in range(self.first_epoch, epochs):
            loss = self.run_epoch(epoch)
            if self.rank == 0:
                print(f"epoch {epoch} loss {loss:.7f}", flush=True)
                self.save(epoch)
            dist.barrier()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("backend")
    parser.add_argument("checkpoint")
    parser.add_argument("epochs", type=int)
    parser.add_argument("--device", default="cpu")
    arguments = parser.parse_args()

    dist.init_process_group(arguments.backend)
    torch.manual_seed(0)
    inputs = torch.randn(512, 20)
    targets = (inputs @ torch.randn(20, 4)).argmax(dim=1)
    dataset = TensorDataset(inputs, targets)
    model = torch.nn.Sequential(torch.nn.Linear(20, 64), torch.nn.ReLU(), torch.nn.Linear(64, 4)).to(arguments.device)
    data = DataLoader(dataset, batch_size=16, sampler=DistributedSampler(dataset))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    Trainer(model, data, optimizer, arguments.checkpoint, arguments.device).train(arguments.epochs)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
