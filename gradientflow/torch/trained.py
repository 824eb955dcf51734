"""The parameters of a model that an optimizer trains."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Mapping

import torch
from torch.nn.parameter import is_lazy

from gradientflow.errors import ArgumentError, ArgumentTypeError

from . import devices

_DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)

# The DistributedOptimizer of each parameter, by the id of the parameter.
_owners: weakref.WeakValueDictionary[int, object] = weakref.WeakValueDictionary()


def reserve(parameters: Iterable[torch.Tensor], owner: object) -> None:
    """Reserve parameters for a DistributedOptimizer."""
    _owners.update({id(parameter): owner for parameter in parameters})


def release(owner: object) -> None:
    """End the reservations of a DistributedOptimizer."""
    for key in [key for key, each in _owners.items() if each is owner]:
        del _owners[key]


def trained_parameters(
    optimizer: torch.optim.Optimizer, model: torch.nn.Module, owner: object
) -> dict[str, torch.Tensor]:
    """Return the parameters to train by name.

    Raises unless all of them can be trained, are in the optimizer, and belong to no DistributedOptimizer other than
    `owner`. Raises also if the optimizer has parameters outside the model.
    """
    named: dict[str, torch.Tensor] = dict(model.named_parameters())
    names = {id(parameter): name for name, parameter in named.items()}
    optimized: set[int] = set()
    for number, group in enumerate(optimizer.param_groups):
        for index, parameter in enumerate(group["params"]):
            optimized.add(id(parameter))
            if id(parameter) not in names:
                place = f"parameter {index} of group {number}, of shape {tuple(parameter.shape)},"
                raise ArgumentError(f"{place} is in the optimizer but not in the model")
    trained = {name: parameter for name, parameter in named.items() if parameter.requires_grad}
    missing = [name for name, parameter in trained.items() if id(parameter) not in optimized]
    if missing:
        message = f"in the model but not in the optimizer: {', '.join(missing)}; requires_grad_(False) freezes them"
        raise ArgumentError(message)
    if not trained:
        raise ArgumentError("the model has no parameter that requires gradients")
    _check_parameters(trained)
    for name, parameter in trained.items():
        if _owners.get(id(parameter), owner) is not owner:
            raise ArgumentError(f"{name} belongs to another DistributedOptimizer already: close() that one first")
    return trained


def _check_parameters(parameters: Mapping[str, torch.Tensor]) -> None:
    for name, parameter in parameters.items():
        if devices.device_of(parameter).type not in devices.KINDS or parameter.layout is not torch.strided:
            where = f"a {parameter.layout} tensor on {parameter.device}"
            raise ArgumentTypeError(f"{name} is {where}: only dense ones in CPU memory and on a CUDA device can go")
        if is_lazy(parameter):
            raise ArgumentTypeError(f"{name} has no shape yet: run the model once first")
        if parameter.dtype not in _DTYPES:
            message = f"{name} is {parameter.dtype}: float16, bfloat16, float32 and float64 can be averaged"
            raise ArgumentTypeError(message)
    places = {name: devices.device_of(parameter) for name, parameter in parameters.items()}
    first = next(iter(places.values()))
    others = [f"{name} on {place}" for name, place in places.items() if place != first]
    if others:
        raise ArgumentError(
            f"{next(iter(places))} is on {first}, but there are also {', '.join(others)}: the parameters that an "
            "optimizer trains have to be on one device"
        )
