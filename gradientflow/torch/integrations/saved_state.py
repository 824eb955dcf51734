"""The state of a DistributedOptimizer in a folder beside the checkpoint of a trainer, with a part of each rank."""

from __future__ import annotations

import os

import torch
from torch.distributed import checkpoint
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict, set_optimizer_state_dict

from gradientflow.torch.optimizer import DistributedOptimizer


def save(model: torch.nn.Module, optimizer: DistributedOptimizer, folder: str | os.PathLike[str]) -> None:
    """Save the state. Collective. All ranks write to the folder, which all hosts share."""
    state = get_optimizer_state_dict(model, optimizer)
    checkpoint.save({"optimizer": state}, storage_writer=checkpoint.FileSystemWriter(folder, overwrite=True))


def load(model: torch.nn.Module, optimizer: DistributedOptimizer, folder: str | os.PathLike[str]) -> None:
    """Load the state, saved by any number of ranks; the same number continues bit for bit. Collective."""
    state = get_optimizer_state_dict(model, optimizer)
    checkpoint.load({"optimizer": state}, checkpoint_id=folder)
    set_optimizer_state_dict(model, optimizer, optim_state_dict=state)


__all__ = ["load", "save"]
