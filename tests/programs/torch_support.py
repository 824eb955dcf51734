"""What rank programs for PyTorch share: models, batches, an optimizer, comparisons; each rank has one thread."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from support import communicator
from torch import nn

import gradientflow as gf

torch.set_num_threads(1)

Tensor = torch.Tensor


class Net(nn.Module):
    """Backpropagation comes to its parameters in the reverse of their order."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(6, 16), nn.Linear(16, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.tanh(self.first(x)))


class Turned(Net):
    """Backpropagation comes to its parameters in another order, so that the pools are laid out anew."""

    def __init__(self, width: int = 16) -> None:
        nn.Module.__init__(self)
        self.last, self.first = nn.Linear(width, 5), nn.Linear(6, width)


class Branches(nn.Module):
    """Branches of which a forward pass uses those it is told to."""

    def __init__(self, branches: int = 3, width: int = 4, bias: bool = True) -> None:
        super().__init__()
        self.branches = nn.ModuleList(nn.Linear(width, 1, bias=bias) for _ in range(branches))

    def forward(self, x: Tensor, *used: int) -> Tensor:
        return sum((self.branches[i](x) for i in used), torch.zeros(1)).sum()


def seeded(make: Callable[[], nn.Module], seed: int = 7) -> Any:
    torch.manual_seed(seed)
    return make()


def batch_of(rank: int, step: int, width: int = 6, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(4, width, generator=torch.Generator().manual_seed(100 * step + rank), dtype=dtype)


def loss_of(model: nn.Module, x: Tensor) -> Tensor:
    parameter = next(model.parameters())
    x = x.to(parameter.device)
    return (model(x.to(parameter.dtype)).float() - x[:, :5].sin()).square().mean()


def sgd(model: nn.Module, lr: float = 0.1, momentum: float = 0.9, decay: float = 0.01) -> torch.optim.SGD:
    return torch.optim.SGD(model.parameters(), lr=lr, momentum=momentum, weight_decay=decay)


def assert_close(left: nn.Module, right: nn.Module, tolerance: float = 1e-6) -> None:
    for (name, one), other in zip(left.named_parameters(), right.parameters(), strict=True):
        assert torch.allclose(one, other, rtol=tolerance, atol=tolerance), f"{name}: {(one - other).abs().max()}"


def saved(state: Any, **options: Any) -> Any:
    """Return what torch.save writes of a state, read again."""
    stream = io.BytesIO()
    torch.save(state, stream)
    stream.seek(0)
    return torch.load(stream, **{"weights_only": True, **options})


@contextmanager
def with_process_group(settings: Mapping[str, Any]) -> Iterator[tuple[gf.Communicator]]:
    """Make a process group, and a communicator for a check."""
    dist.init_process_group("gradientflow", timeout=timedelta(seconds=60))
    try:
        with communicator(settings) as given:
            yield given
    finally:
        dist.destroy_process_group()
