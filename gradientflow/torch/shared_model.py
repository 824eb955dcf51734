"""A model with one copy of its parameters per node: checks that only steps write them, and completely."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence

import torch

from gradientflow.errors import ArgumentError
from gradientflow.strategies import NodeWeights

from . import devices

_living: weakref.WeakSet[SharedModel] = weakref.WeakSet()


class _Hook:
    """Calls a function without arguments, whatever it is called with; in copies of the model it does nothing."""

    def __init__(self, function: Callable[[], object] = lambda: None) -> None:
        self._function = function

    def __call__(self, *_: object) -> None:
        self._function()

    def __reduce__(self) -> tuple[object, ...]:
        return _Hook, ()


class SharedModel:
    """Moves parameters to node memory, and checks all later writes.

    Steps may write parameters, and so may calls that write the same on all ranks: `load_state_dict` of the model or a
    module in it, and `broadcast_parameters`. Any other write would be repeated by each rank, on the same weights. After
    an incomplete step, forward passes and state dicts of the model raise.

    Parameters
    ----------
    model : torch.nn.Module
        The model.
    """

    def __init__(self, model: torch.nn.Module) -> None:
        self._weights: NodeWeights | None = None
        self._known: dict[str, tuple[torch.Tensor, int, int]] = {}  # parameter, address and version by name
        self._hooks = [model.register_forward_pre_hook(_Hook(self.check_whole))]
        for module in model.modules():
            self._hooks.append(module.register_state_dict_pre_hook(_Hook(self.check_whole)))
            self._hooks.append(module.register_load_state_dict_post_hook(_Hook(self.accept)))
        _living.add(self)

    def share(
        self,
        weights: NodeWeights,
        group: int,
        names: Sequence[str],
        parameters: Sequence[torch.Tensor],
        strides: Sequence[tuple[int, ...]],
    ) -> None:
        """Move the parameters of a dtype, which are equal on all ranks, to node memory. Collective."""
        memory = weights.weights(group)
        begin, end = weights.slices[group]
        places = []
        for parameter, its_strides, offset in zip(parameters, strides, weights.offsets[group], strict=True):
            size, count = parameter.element_size(), parameter.numel()
            flat = devices.tensor_over(memory[offset * size : (offset + count) * size], parameter.dtype)
            first, last = max(begin - offset, 0), min(end - offset, count)
            if first < last:  # each rank writes its slice, so that its pages are local to it
                flat[first:last].copy_(parameter.detach().as_strided((count,), (1,))[first:last])
            places.append(flat.as_strided(parameter.shape, its_strides))
        weights.node.barrier()
        for name, parameter, place in zip(names, parameters, places, strict=True):
            parameter.data = place
            self._known[name] = (parameter, parameter.data_ptr(), parameter._version)
        self._weights = weights

    def accept(self) -> None:
        """Accept the present parameters as written alike by all ranks."""
        self._known = {name: (each, place, each._version) for name, (each, place, _) in self._known.items()}

    def check(self) -> None:
        """Raise if a step is incomplete, or parameters were moved or written outside of steps."""
        self.check_whole()
        for name, (parameter, place, version) in self._known.items():
            if parameter.data_ptr() != place:
                raise ArgumentError(
                    f"{name} has memory of its own now, and share='node' keeps it in that of the node: a model must "
                    "not change after DistributedOptimizer has been made"
                )
            if parameter._version != version:
                raise ArgumentError(
                    f"{name} was written outside of step(), and with share='node' each rank would do that anew to the "
                    "same weights: only load_state_dict() of the model and broadcast_parameters() may write them"
                )

    def check_whole(self) -> None:
        """Raise if a step on the weights is incomplete."""
        if self._weights is not None:
            self._weights.check()

    def close(self) -> None:
        """Give the parameters separate memory, unless a step is incomplete: then their use remains an error."""
        if self._weights is None or self._weights.is_whole:
            for hook in self._hooks:
                hook.remove()
            for parameter, place, _ in self._known.values():
                if parameter.data_ptr() == place:
                    parameter.data = parameter.detach().clone()
        self._known = {}


def accept_broadcast() -> None:
    """Accept the parameters of all models: a broadcast has written them, alike on all ranks."""
    for each in list(_living):
        each.accept()
