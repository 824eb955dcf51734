"""Embeddings whose backward pass adds gradients of looked-up rows directly to the weight's gradient.

PyTorch sums these gradients in temporary memory as large as the table. This memory would then have to be copied.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional

from .direct_layer import DirectLayer
from .gradients import ParameterGradients

_backward = torch.ops.aten.embedding_dense_backward


class _Direct(torch.autograd.Function):
    """`torch.nn.functional.embedding` with bitwise equal results: rows are summed in the same order."""

    @staticmethod
    def forward(
        ctx: Any, indices: torch.Tensor, weight: torch.Tensor, padding: int | None, gradients: ParameterGradients
    ) -> torch.Tensor:
        ctx.save_for_backward(indices)
        ctx.weight, ctx.padding, ctx.gradients = weight, padding, gradients
        return functional.embedding(indices, weight, padding)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        (indices,) = ctx.saved_tensors
        place = ctx.gradients.place_to_overwrite(ctx.weight, gradient.dtype)
        if place is None:
            padding = -1 if ctx.padding is None else ctx.padding
            of_weight = _backward(gradient, indices, ctx.weight.shape[0], padding, False)
        else:
            rows = gradient.reshape(-1, gradient.shape[-1])
            of_weight = place.zero_().index_add_(0, indices.reshape(-1), rows)
            if ctx.padding is not None:
                of_weight[ctx.padding] = 0
            of_weight = of_weight.detach()
        return None, of_weight, None, None


class DirectEmbedding(DirectLayer, torch.nn.Embedding):
    """Replacement of a `torch.nn.Embedding`."""

    ordinary = torch.nn.Embedding

    def serves(self, x: torch.Tensor) -> bool:
        """Tell if the gradient is dense, and the plain sum over the looked-up rows."""
        return (
            x.dtype in (torch.int64, torch.int32)
            and self.weight.dtype in (torch.float32, torch.float64)
            and not (self.sparse or self.scale_grad_by_freq or self.max_norm is not None)
        )

    def compute(self, x: torch.Tensor, gradients: ParameterGradients) -> torch.Tensor:
        """Look up rows."""
        return _Direct.apply(x, self.weight, self.padding_idx, gradients)  # type: ignore[no-any-return]
