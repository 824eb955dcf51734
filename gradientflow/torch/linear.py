"""Linear layers whose backward pass writes the gradient of their weight straight into its place."""

from __future__ import annotations

from typing import Any

import torch
from torch.autograd import forward_ad
from torch.nn import functional

from .gradients import ParameterGradients

LEAST_BYTES = 1 << 20  # of a weight: below, a function in Python costs more than zeroing and adding

_Function: Any = torch.autograd.Function
_is_tracing: Any = torch.jit.is_tracing  # type: ignore[attr-defined]
_Linear: Any = torch.nn.Linear
_TARGET = "_gradientflow_target"


class _Direct(_Function):  # type: ignore[misc]
    """What `torch.nn.functional.linear` computes, with the same bits.

    The bias comes before the weight, as in PyTorch: so their gradients become final in the same order.
    """

    @staticmethod
    def forward(ctx: Any, x: Any, bias: Any, weight: Any, gradients: ParameterGradients) -> Any:
        ctx.save_for_backward(x, weight if ctx.needs_input_grad[0] else None)
        ctx.weight, ctx.gradients = weight, gradients
        return functional.linear(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> tuple[Any, ...]:
        x, weight = ctx.saved_tensors
        flat, rows = gradient.reshape(-1, gradient.shape[-1]), x.reshape(-1, x.shape[-1])
        of_x = flat.mm(weight).view(x.shape) if ctx.needs_input_grad[0] else None
        of_bias = flat.sum(0) if ctx.needs_input_grad[1] else None
        of_weight = None
        if ctx.needs_input_grad[2]:
            place = ctx.gradients.place_to_overwrite(ctx.weight, flat.dtype)
            of_weight = flat.t().mm(rows) if place is None else torch.mm(flat.t(), rows, out=place).detach()
        return of_x, of_bias, of_weight, None


class _DirectLinear(_Linear):  # type: ignore[misc]
    """A `torch.nn.Linear` for the time being. A copy of it, also a pickled one, is an ordinary one again."""

    def forward(self, x: Any) -> Any:
        if torch.compiler.is_compiling() or not self._is_plain(x):
            return super().forward(x)
        return _Direct.apply(x, self.bias, self.weight, self.__dict__[_TARGET])

    def _is_plain(self, x: Any) -> bool:
        return (
            torch.is_grad_enabled()
            and type(x) is torch.Tensor
            and x.is_contiguous()
            and x.dim() > 1
            and x.dtype is self.weight.dtype
            and self.weight.requires_grad
            and not torch.is_autocast_enabled("cpu")
            and not _is_tracing()
            and not torch._C._are_functorch_transforms_active()
            and forward_ad._current_level < 0
        )

    def _get_name(self) -> str:
        return str(_Linear.__name__)

    def _ordinary(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != _TARGET}

    def __reduce_ex__(self, protocol: Any) -> Any:
        return torch.nn.Linear.__new__, (torch.nn.Linear,), self._ordinary()

    def __prepare_scriptable__(self) -> Any:
        """Give `torch.jit.script` an ordinary layer with the same parameters."""
        layer = _Linear.__new__(_Linear)
        layer.__dict__.update(self._ordinary())
        return layer


def write_directly(model: torch.nn.Module, gradients: ParameterGradients) -> None:
    """Let the large linear layers of a model write the gradients of their weights to their places."""
    trained = {id(parameter) for parameter in gradients.parameters}
    module: Any
    for module in model.modules():
        weight = module._parameters.get("weight")
        if type(module) not in (torch.nn.Linear, _DirectLinear) or weight is None or id(weight) not in trained:
            continue
        if weight.nbytes >= LEAST_BYTES and weight.is_contiguous():
            module.__dict__[_TARGET] = gradients
            module.__class__ = _DirectLinear


def write_as_usual(model: torch.nn.Module) -> None:
    """Leave the linear layers of a model to themselves."""
    module: Any
    for module in model.modules():
        if type(module) is _DirectLinear:
            module.__class__ = _Linear
            del module.__dict__[_TARGET]
