"""A model whose parameters lie in one copy for all ranks of a node: who may write them, and whether they are whole."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch

from gradientflow.errors import ArgumentError
from gradientflow.strategies import NodeWeights

from . import devices

_living: weakref.WeakSet[SharedModel] = weakref.WeakSet()


class _Hook:
    """Calls a function without arguments, whatever it is called with; copies of the model call nothing."""

    def __init__(self, function: Callable[[], object] = lambda: None) -> None:
        self._function = function

    def __call__(self, *_: object) -> None:
        self._function()

    def __reduce__(self) -> Any:
        return _Hook, ()


class SharedModel:
    """Moves parameters to memory of the node, and watches over them from then on.

    Only steps may write them, and what writes the same on all ranks: `load_state_dict` of the model or of a module of
    it, and `broadcast_parameters`. Anything else would be done by each rank anew, to the same weights. Where a step was
    not completed, forward passes and state dicts of the model are errors.

    Parameters
    ----------
    model : torch.nn.Module
        The model.
    """

    def __init__(self, model: torch.nn.Module) -> None:
        self._weights: NodeWeights | None = None
        self._known: dict[str, tuple[torch.Tensor, int, int]] = {}  # address and version of each parameter
        register: Any = model.register_forward_pre_hook
        self._hooks = [register(_Hook(self.check_whole))]
        for module in model.modules():
            register = module.register_state_dict_pre_hook
            self._hooks.append(register(_Hook(self.check_whole)))
            register = module.register_load_state_dict_post_hook
            self._hooks.append(register(_Hook(self.accept)))
        _living.add(self)

    def share(
        self,
        weights: NodeWeights,
        group: int,
        names: Sequence[str],
        parameters: Sequence[torch.Tensor],
        strides: Sequence[tuple[int, ...]],
    ) -> None:
        """Move the parameters of a dtype, which are the same on all ranks, to memory of the node. Collective."""
        memory = weights.weights(group)
        begin, end = weights.slices[group]
        places = []
        for parameter, its_strides, offset in zip(parameters, strides, weights.offsets[group], strict=True):
            size, count = parameter.element_size(), parameter.numel()
            flat = devices.tensor_over(memory[offset * size : (offset + count) * size], parameter.dtype)
            first, last = max(begin - offset, 0), min(end - offset, count)
            if first < last:  # this rank's slice of it, so that its pages are near it
                flat[first:last].copy_(parameter.detach().as_strided((count,), (1,))[first:last])
            places.append(flat.as_strided(parameter.shape, its_strides))
        weights.node.barrier()
        for name, parameter, place in zip(names, parameters, places, strict=True):
            parameter.data = place
            self._known[name] = (parameter, parameter.data_ptr(), parameter._version)
        self._weights = weights

    def accept(self) -> None:
        """Take what has been written to parameters for what all ranks have written."""
        self._known = {name: (each, place, each._version) for name, (each, place, _) in self._known.items()}

    def check(self) -> None:
        """Raise unless the weights are whole, and written by nobody but steps."""
        self.check_whole()
        for name, (parameter, place, version) in self._known.items():
            if parameter.data_ptr() != place:
                message = (
                    f"{name} has memory of its own now, and share='node' keeps it in that of the node: a model must "
                    "not change after DistributedOptimizer has been made"
                )
                raise ArgumentError(message)
            if parameter._version != version:
                message = (
                    f"{name} was written outside of step(), and with share='node' each rank would do that anew to the "
                    "same weights: only load_state_dict() of the model and broadcast_parameters() may write them"
                )
                raise ArgumentError(message)

    def check_whole(self) -> None:
        """Raise if a step on the weights has not been completed."""
        if self._weights is not None:
            self._weights.check()

    def close(self) -> None:
        """Give the parameters memory of their own, unless they are torn: then their use goes on to be an error."""
        if self._weights is None or self._weights.is_whole:
            for hook in self._hooks:
                hook.remove()
            for parameter, place, _ in self._known.values():
                if parameter.data_ptr() == place:
                    parameter.data = parameter.detach().clone()
        self._known = {}


def broadcast_done() -> None:
    """Note that parameters were broadcast, as all ranks do it."""
    for each in list(_living):
        each.accept()
