"""Linear layers whose backward pass writes the gradient of their weight directly to its place."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional

from .direct_layer import DirectLayer
from .gradients import ParameterGradients


class _Direct(torch.autograd.Function):
    """`torch.nn.functional.linear`, with bitwise equal results.

    The bias precedes the weight, as in PyTorch, so that their gradients become final in the same order.
    """

    @staticmethod
    def forward(
        ctx: Any, x: torch.Tensor, bias: torch.Tensor | None, weight: torch.Tensor, gradients: ParameterGradients
    ) -> torch.Tensor:
        ctx.save_for_backward(x, weight if ctx.needs_input_grad[0] else None)
        ctx.weight, ctx.gradients = weight, gradients
        return functional.linear(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        flat, rows = gradient.reshape(-1, gradient.shape[-1]), x.reshape(-1, x.shape[-1])
        of_x = flat.mm(weight).view(x.shape) if ctx.needs_input_grad[0] else None
        of_bias = flat.sum(0) if ctx.needs_input_grad[1] else None
        of_weight = None
        if ctx.needs_input_grad[2]:
            place = ctx.gradients.place_to_overwrite(ctx.weight, flat.dtype)
            of_weight = flat.t().mm(rows) if place is None else torch.mm(flat.t(), rows, out=place).detach()
        return of_x, of_bias, of_weight, None


class DirectLinear(DirectLayer, torch.nn.Linear):
    """Replacement of a `torch.nn.Linear`."""

    ordinary = torch.nn.Linear

    def serves(self, x: torch.Tensor) -> bool:
        """Tell if x is a contiguous batch of vectors with the dtype of the weight."""
        return bool(x.is_contiguous() and x.dim() > 1 and x.dtype is self.weight.dtype)

    def compute(self, x: torch.Tensor, gradients: ParameterGradients) -> torch.Tensor:
        """Compute ``x @ weight.T + bias``."""
        return _Direct.apply(x, self.bias, self.weight, gradients)  # type: ignore[no-any-return]
