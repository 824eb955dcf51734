"""Layers whose backward pass writes the gradient of their weight directly to its place."""

from __future__ import annotations

from typing import Any, ClassVar, SupportsIndex

import torch
from torch.autograd import forward_ad

from .gradients import ParameterGradients

LEAST_BYTES = 1 << 20  # size of a weight below which a Python function costs more than zeroing and adding

_TARGET = "_gradientflow_target"


class DirectLayer:
    """Replacement of an ordinary layer while an optimizer is bound to its weight.

    Subclasses also derive from the class of the ordinary layer. Copies and pickles are ordinary layers again.
    """

    ordinary: ClassVar[Any]  # class of the layer that it replaces
    weight: torch.Tensor

    def serves(self, x: torch.Tensor) -> bool:
        """Tell if `compute` supports this input, with bitwise equal results."""
        raise NotImplementedError

    def compute(self, x: torch.Tensor, gradients: ParameterGradients) -> torch.Tensor:
        """Compute the ordinary layer's output; its backward pass writes to `gradients.place_to_overwrite`."""
        raise NotImplementedError

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Compute the ordinary layer's output."""
        if torch.compiler.is_compiling() or not (self._is_plain(input) and self.serves(input)):
            return self.ordinary.forward(self, input)  # type: ignore[no-any-return]
        return self.compute(input, self.__dict__[_TARGET])

    def _is_plain(self, x: torch.Tensor) -> bool:
        return (
            torch.is_grad_enabled()
            and type(x) is torch.Tensor
            and self.weight.requires_grad
            and self.__dict__[_TARGET].has_place_for(self.weight)  # false for a replaced weight, as in functional_call
            and not torch.is_autocast_enabled("cpu")
            and not torch.jit.is_tracing()
            and not torch._C._are_functorch_transforms_active()
            and forward_ad._current_level < 0
        )

    def _get_name(self) -> str:
        return str(self.ordinary.__name__)

    def _ordinary(self) -> dict[str, object]:
        return {name: value for name, value in self.__dict__.items() if name != _TARGET}

    def __reduce_ex__(self, protocol: SupportsIndex) -> tuple[object, ...]:
        """Reduce to an ordinary layer with the same parameters, for copies and pickles."""
        return self.ordinary.__new__, (self.ordinary,), self._ordinary()

    def __prepare_scriptable__(self) -> object:
        """Give `torch.jit.script` an ordinary layer with the same parameters."""
        layer = self.ordinary.__new__(self.ordinary)
        layer.__dict__.update(self._ordinary())
        return layer


def write_directly(model: torch.nn.Module, gradients: ParameterGradients, kinds: tuple[type[DirectLayer], ...]) -> None:
    """Make a model's large layers of these kinds write the gradients of their weights directly."""
    trained = {id(parameter) for parameter in gradients.parameters}
    direct = {kind.ordinary: kind for kind in kinds}
    module: Any
    for module in model.modules():
        weight = module._parameters.get("weight")
        kind = type(module) if isinstance(module, DirectLayer) else direct.get(type(module))
        if kind is None or weight is None or id(weight) not in trained:
            continue
        if weight.nbytes >= LEAST_BYTES and weight.is_contiguous():
            module.__dict__[_TARGET] = gradients
            module.__class__ = kind


def restore_layers(model: torch.nn.Module) -> None:
    """Make the layers of a model ordinary layers again."""
    for module in model.modules():
        if isinstance(module, DirectLayer):
            module.__class__ = module.ordinary
            del module.__dict__[_TARGET]
