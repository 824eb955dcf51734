"""Lightning over GradientFlow: ``gradientflow run -n 2 -- python train_lightning.py``."""

import os

import torch
import torch.distributed as dist
from lightning import LightningModule, Trainer
from lightning.pytorch.strategies import DDPStrategy
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Net(LightningModule):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 2))

    def forward(self, x):
        return self.layers(x)

    def training_step(self, batch, number):
        inputs, labels = batch
        loss = nn.functional.cross_entropy(self(inputs), labels)
        self.log("loss", loss, sync_dist=True)
        return loss

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9)


torch.manual_seed(0)
x = torch.randn(4000, 20)
y = (x[:, :10].sum(1) > x[:, 10:].sum(1)).long()
data = DataLoader(TensorDataset(x, y), batch_size=32, shuffle=True)

on_node = int(os.environ.get("LOCAL_WORLD_SIZE", 2))  # without a launcher, Lightning starts as many
trainer = Trainer(
    strategy=DDPStrategy(process_group_backend="gradientflow"),  # the only line that is not as for any other backend
    accelerator="cpu",
    devices=on_node,
    num_nodes=int(os.environ.get("WORLD_SIZE", on_node)) // on_node,
    max_epochs=3,
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
)
model = Net()
trainer.fit(model, data)

accuracy = (model(x).argmax(1) == y).float().mean()
if trainer.is_global_zero:
    print(f"accuracy {accuracy:.3f} on {trainer.world_size} ranks over {dist.get_backend()}")
