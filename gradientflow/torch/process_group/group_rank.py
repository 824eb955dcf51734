"""The rank of a process in its group, and checks of arguments that depend on it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch

from gradientflow.errors import ArgumentError

from .options import Options
from .tensors import checked


class GroupRank(NamedTuple):
    """The rank of this process in its group, and the number of ranks there."""

    rank: int
    size: int

    def check_rank(self, rank: int) -> None:
        """Raise unless the group has this rank."""
        if not 0 <= rank < self.size:
            raise ArgumentError(f"rank {rank} is not in the group: its ranks are 0 to {self.size - 1}")

    def root_of(self, options: Options) -> int:
        """Check the root in the options of a call, and return it."""
        root: int = options.rootRank
        self.check_rank(root)
        return root

    def parts(self, tensors: Sequence[torch.Tensor], call: str) -> list[torch.Tensor]:
        """Check that there is one tensor for each rank, and check each tensor. Return the list."""
        if len(tensors) != self.size:
            message = f"{call} takes a list of one tensor for each of the {self.size} ranks, not of {len(tensors)}"
            raise ArgumentError(message)
        return [checked(tensor) for tensor in tensors]

    def blocks(self, tensor: torch.Tensor, sizes: Sequence[int], what: str) -> list[torch.Tensor]:
        """Cut a tensor into one block of rows for each rank."""
        rows = tensor.shape[0] if tensor.dim() else 1
        if not sizes:
            sizes = [rows // self.size] * self.size
        if len(sizes) != self.size or sum(sizes) != rows:
            message = f"the {what} has {rows} rows, which are not {list(sizes)} for each of the {self.size} ranks"
            raise ArgumentError(message)
        return list(torch.split(tensor, list(sizes)))
