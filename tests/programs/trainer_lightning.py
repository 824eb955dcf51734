"""Lightning over the process group, beside Gloo, and with strategies: ``FOLDER LAUNCHER``."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from lightning import LightningModule, Trainer, seed_everything
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.strategies import DDPStrategy
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from gradientflow.torch.integrations.lightning import GradientFlowStrategy

FOLDER, LAUNCHER = Path(sys.argv[1]), sys.argv[2]
models: dict[str, LightningModule] = {}


class Net(LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 2))

    def _loss(self, batch: list[torch.Tensor]) -> torch.Tensor:
        return nn.functional.cross_entropy(self.layers(batch[0]), batch[1])

    def training_step(self, batch: list[torch.Tensor], _: int) -> torch.Tensor:
        return self._loss(batch)

    def validation_step(self, batch: list[torch.Tensor], _: int) -> None:
        self.log("loss", self._loss(batch), sync_dist=True)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9)


def trained(
    name: str, strategy: DDPStrategy, epochs: int = 4, resume: str | None = None, other: str | None = None
) -> tuple[bytes, Any]:
    """Train, with accumulation, clipping, validation and checkpoints, which have no random state of Lightning."""
    seed_everything(0, verbose=False)
    x = torch.randn(96, 20)
    data = DataLoader(TensorDataset(x, (x.sum(1) > 0).long()), batch_size=8, shuffle=True)
    model = models[name] if resume else Net()
    models[name] = model
    trainer = Trainer(
        strategy=strategy,
        accelerator="cpu",
        devices=2,
        max_epochs=epochs,
        accumulate_grad_batches=2,
        gradient_clip_val=0.5,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[ModelCheckpoint(FOLDER / name, "{epoch}", save_top_k=-1)],
    )
    trainer.fit(model, data, data, ckpt_path=resume and FOLDER / name / resume)
    assert trainer.world_size == 2
    loss = trainer.callback_metrics["loss"]
    if LAUNCHER not in ("spawn", "fork") and name != "rescue":  # where ranks have ended, or never exchanged weights
        trainer.save_checkpoint(FOLDER / name / "after.ckpt")
        trainer.validate(model, data, verbose=False)
        torch.testing.assert_close(trainer.callback_metrics["loss"], loss)  # sums of batches in another order
    if other:
        kept = torch.load(FOLDER / name / other, weights_only=False)["state_dict"]
        trainer.validate(model, data, ckpt_path=FOLDER / name / other, verbose=False)
        assert all(torch.equal(each, kept[key]) for key, each in model.state_dict().items())
    return b"".join(each.detach().numpy().tobytes() for each in model.parameters()), loss


def main() -> None:
    if LAUNCHER in ("spawn", "fork"):
        expected = trained("ddp", DDPStrategy(process_group_backend="gradientflow", start_method=LAUNCHER))
        assert trained("dense", GradientFlowStrategy("dense", start_method=LAUNCHER)) == expected
    else:
        expected = trained("gloo", DDPStrategy(process_group_backend="gloo"))
        dist.destroy_process_group()
        assert trained("ddp", DDPStrategy(process_group_backend="gradientflow")) == expected
        assert dist.get_backend() == "gradientflow"
        assert trained("ddp", GradientFlowStrategy("dense")) == expected
        for strategy in ("dense", "csc(density=0.3, chunk_size=64)", "top_k(ratio=8)", "local_sgd(period=3)"):
            folder = strategy.partition("(")[0]
            expected = trained(folder, GradientFlowStrategy(strategy))
            assert trained(folder, GradientFlowStrategy(strategy), resume="epoch=1.ckpt") == expected, strategy
        try:
            raise FileNotFoundError  # an exception of the caller, not of the training
        except FileNotFoundError:
            own, _ = trained("rescue", GradientFlowStrategy("local_sgd(period=100)"), epochs=1)
        trained("other", GradientFlowStrategy("local_sgd(period=3)"), epochs=2, other="epoch=0.ckpt")
        both: list[Any] = [None, None]
        dist.all_gather_object(both, own)
        assert both == [own, own]
    if int(os.environ.get("LOCAL_RANK", 0)) == 0:
        print("trained")


if __name__ == "__main__":
    main()
