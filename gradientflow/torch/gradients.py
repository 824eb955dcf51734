"""Gradients of parameters, stored in a synchronizer's memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import NoReturn

import torch
from torch.autograd.graph import get_gradient_edge

from gradientflow.annotations import TensorLike
from gradientflow.errors import ArgumentError, ArgumentTypeError
from gradientflow.memory import numpy_dtype
from gradientflow.strategies import Layout, Settings, Synchronizer

from . import devices

_current_task: Callable[[], int] = torch._C._current_graph_task_id  # gives the backward pass that runs in this thread


class ParameterGradients:
    """The `Tensors` of PyTorch's parameters for the training loop: ``parameter.grad`` is a view of a place.

    The place of a gradient is its memory in the synchronizer. Until the first backward pass ``grad`` is None, as
    without GradientFlow.

    Parameters
    ----------
    parameters : mapping of str to torch.Tensor
        Parameters by name, on one device, in the order of the layout.
    settings_of : callable
        ``settings_of(parameter)`` returns the optimizer's settings for a parameter in the next step.

    Attributes
    ----------
    by_name : dict of str to torch.Tensor
        The parameters by name.
    names : list of str
        The names of the parameters, in the order of the layout.
    parameters : list of torch.Tensor
        The parameters, in the same order.
    views : list of torch.Tensor
        Views of the places of their gradients, in the same order.
    device : torch.device
        The device of the parameters.
    bytes_copied : int
        Bytes of gradients copied to their places from other memory.
    """

    def __init__(self, parameters: Mapping[str, torch.Tensor], settings_of: Callable[[torch.Tensor], Settings]) -> None:
        self.by_name = dict(parameters)
        self.names = list(self.by_name)
        self.parameters = list(self.by_name.values())
        self.device = devices.device_of(self.parameters[0])
        self._on_host = self.device == devices.HOST
        self.views: list[torch.Tensor] = []
        self.bytes_copied = 0
        self._settings_of = settings_of
        self._dtypes = {name: parameter.dtype for name, parameter in self.by_name.items()}
        self._addresses: list[int] = []
        self._weight_addresses: list[int] = []
        self._is_new = True  # True until gradients were exchanged
        self._flat: list[torch.Tensor] = []  # flat gradients, by dtype
        self._groups: dict[int, int] = {}  # index in `_flat`, by index of a gradient
        self._versions: list[int] = []  # versions of `_flat` whose content the synchronizer knows; -1: none
        self._synchronizer: Synchronizer | None = None
        self._read_until_wait: list[torch.Tensor | None] = []
        self.indices: dict[int, int] = {}  # indices of the parameters, by their ids
        self._overwritten: list[int | None] = []  # backward pass that writes to each place, until the gradient arrives

    # ---- for the training loop -----------------------------------------------------------------------------------

    @property
    def stream(self) -> int | None:
        """The current stream of the device, in which gradients are written and read; None on the host."""
        return None if self._on_host else devices.stream_number(self.device)

    def default_stream(self) -> AbstractContextManager[object]:
        """Return a context that orders the default stream after the current stream on entry, and before it on exit."""
        return devices.as_default(self.device)

    def attach(self, synchronizer: Synchronizer) -> list[int]:
        """Move the parameters' gradients to their places in a synchronizer.

        Return the indices of gradients that were copied there from other memory.
        """
        stored = []
        before = dict(zip(self.names, self.views, strict=False))
        layout = synchronizer.layout
        self.names = list(layout.names)
        self.parameters = [self.by_name[name] for name in self.names]
        self._synchronizer = synchronizer
        self._read_until_wait.clear()
        self._flat = [
            devices.tensor_over(synchronizer.memory(group), getattr(torch, dtype))
            for group, (dtype, _) in enumerate(layout.groups)
        ]
        self._groups = {index: group for group, (_, indices) in enumerate(layout.groups) for index in indices}
        places: dict[int, torch.Tensor] = {}
        for group, (_, indices) in enumerate(layout.groups):
            flat = self._flat[group]
            for index, offset in zip(indices, synchronizer.offsets(group), strict=False):
                parameter = self.parameters[index]
                places[index] = flat.as_strided(
                    parameter.shape, dense_strides(parameter), offset // flat.element_size()
                )
        self.views = views = [places[index] for index in range(len(places))]
        self._addresses = [view.data_ptr() for view in views]
        self._overwritten = [None] * len(views)
        self.indices = {id(parameter): index for index, parameter in enumerate(self.parameters)}
        self._weight_addresses = [parameter.data_ptr() for parameter in self.parameters]
        for index, (name, parameter, view) in enumerate(zip(self.names, self.parameters, views, strict=True)):
            if name in before:
                view.copy_(before[name])
            if parameter.grad is not None and parameter.grad is before.get(name):
                parameter.grad = view
            elif parameter.grad is not None:
                self.store(index)
                stored.append(index)
        self._versions = [flat._version for flat in self._flat] if not before else [-1] * len(self._flat)
        return stored

    def check(self, final: list[int]) -> None:
        """Raise if parameters have changed, or final gradients have been replaced."""
        complete = len(final) == len(self.parameters)
        for index, (parameter, view, address) in enumerate(
            zip(self.parameters, self.views, self._addresses, strict=True)
        ):
            if view.data_ptr() != address:
                self._raise_changed(index)
            if parameter.grad is not view and index in final:
                raise ArgumentError(f"the gradient of {self.names[index]} was replaced while it was being averaged")
            if not complete and (parameter.dtype is not self._dtypes[self.names[index]] or not parameter.requires_grad):
                self._raise_changed(index)

    def collect(self, index: int, used: bool) -> bool:
        """Put a gradient, or zeros, into its place. Return True if there is a gradient."""
        parameter, view = self.parameters[index], self.views[index]
        if parameter.grad is None:
            view.zero_()
            return False
        if parameter.grad is not view:
            self.store(index)
            return True
        return used or bool(view.any())  # the place was written to by hand

    def set_present(self, index: int, present: bool) -> None:
        """Set a parameter's ``grad`` to its place, or to None."""
        self.parameters[index].grad = self.views[index] if present else None

    def zero(self, set_to_none: bool) -> None:
        """Zero all gradients in their places, and make these the parameters' ``grad``.

        With `set_to_none`, ``grad`` is None if the synchronizer reads gradients elsewhere, or if gradients may
        overwrite any content of their places: backpropagation then need not add to zeros. ``grad`` is also None before
        the first exchange.
        """
        assert self._synchronizer is not None
        self._read_until_wait.clear()
        self._overwritten = [None] * len(self.views)
        leave_all = set_to_none and self.takes_any_content
        for group, flat in enumerate(self._flat):
            if leave_all:
                self._versions[group] = -1  # from here on each place is zeroed or written separately
            elif flat._version == self._versions[group]:
                self._synchronizer.zero(group, self.stream)
            else:
                flat.zero_()
                self._versions[group] = flat._version
        leave_none = leave_all or (set_to_none and (self._reads_elsewhere or self._is_new))
        for parameter, view in zip(self.parameters, self.views, strict=True):
            if leave_none:
                parameter.grad = None
            elif parameter.grad is not view:
                parameter.grad = view

    def exchanged(self) -> None:
        """Record that the gradients are now the result of `Synchronizer.wait`."""
        self._is_new = False
        self._versions = [flat._version for flat in self._flat]
        self._read_until_wait.clear()
        self._overwritten = [None] * len(self.views)

    def settings(self, index: int) -> Settings:
        """Return the optimizer's settings for a parameter in the next step."""
        return self._settings_of(self.parameters[index])

    # ---- for the optimizer ---------------------------------------------------------------------------------------

    @property
    def takes_any_content(self) -> bool:
        """True if gradients may overwrite any content of their places."""
        assert self._synchronizer is not None
        return self._synchronizer.gradient_source == "any_place" and self._on_host

    @property
    def _reads_elsewhere(self) -> bool:
        assert self._synchronizer is not None
        return self._synchronizer.gradient_source in ("elsewhere", "elsewhere_until_wait")

    def has_place_for(self, parameter: torch.Tensor) -> bool:
        """Tell if the model trains this parameter."""
        return id(parameter) in self.indices

    def place_to_overwrite(self, parameter: torch.Tensor, dtype: torch.dtype) -> torch.Tensor | None:
        """Return the place for a gradient that a backward pass now computes; None if the gradient needs other memory.

        The gradient needs other memory if there is already a gradient to add to, if its dtype differs, if the pass uses
        the parameter more than once, or if other code may get the gradient: a hook, `torch.autograd.grad`, or a pass
        that is itself differentiated.
        """
        index = self.indices[id(parameter)]
        view = self.views[index]
        if (
            parameter.grad is not None
            or parameter._backward_hooks
            or self._overwritten[index] is not None
            or dtype is not view.dtype
            or torch.is_grad_enabled()
            or not _is_for_the_parameter(parameter)
        ):
            return None
        self._overwritten[index] = _current_task()
        return view

    def arrive(self, index: int) -> None:
        """Put a gradient that a backward pass has computed into its place."""
        parameter, task = self.parameters[index], self._overwritten[index]
        gradient = parameter.grad
        if gradient is None:  # PyTorch keeps no gradient of a parameter frozen after the forward pass
            self._raise_changed(index)
        if task is None or task == _current_task():
            self._overwritten[index] = None
            if gradient.layout is torch.strided and gradient.data_ptr() == self._addresses[index]:
                parameter.grad = self.views[index]  # already written there
            elif self.takes_any_content or self._is_new:
                self._write(index)
            else:
                self.store(index)
        # Otherwise an outer backward pass has written its gradient to the place. PyTorch will add that gradient to
        # `parameter.grad`, which this inner pass has set.

    def address_elsewhere(self, index: int) -> int | None:
        """Return the address at which the synchronizer can read a gradient; None if it has to be stored first."""
        assert self._synchronizer is not None
        if not self._reads_elsewhere:
            return None
        view, group = self.views[index], self._groups[index]
        gradient = self.parameters[index].grad
        assert gradient is not None
        lies_alike = gradient.layout is torch.strided and gradient.stride() == view.stride()
        is_known = self._flat[group]._version == self._versions[group]  # True if the content of its place is known
        return gradient.data_ptr() if lies_alike and is_known and gradient.dtype is view.dtype else None

    def has_been_read(self, index: int) -> None:
        """Set ``grad`` to its place, after the synchronizer has read the gradient elsewhere."""
        assert self._synchronizer is not None
        if self._synchronizer.gradient_source == "elsewhere_until_wait":
            self._read_until_wait.append(self.parameters[index].grad)
        self.set_present(index, present=True)

    def store(self, index: int) -> None:
        """Copy a gradient to its place, and count the bytes."""
        self._write(index)
        self.bytes_copied += self.views[index].nbytes

    def _write(self, index: int) -> None:
        """Copy a gradient to its place, which becomes the parameter's ``grad``."""
        parameter, view = self.parameters[index], self.views[index]
        gradient = parameter.grad
        assert gradient is not None
        if gradient.layout is not torch.strided:
            gradient = gradient.to_dense()
        try:
            view.copy_(gradient.detach() if gradient.requires_grad else gradient)
            parameter.grad = view
        except RuntimeError:
            self._raise_changed(index)
            raise

    def scale(self, factor: float) -> None:
        """Multiply the gradients of the last update; on a device all gradients, since one launch is cheapest."""
        assert self._synchronizer is not None
        for group, flat in enumerate(self._flat):
            is_known = self._versions[group] == flat._version
            for begin, end in self._synchronizer.spans(group) if self._on_host else [(0, flat.numel())]:
                flat[begin:end].mul_(factor)
            if is_known:
                self._versions[group] = flat._version

    @property
    def replaced(self) -> bool:
        """True if a gradient has been set by hand."""
        return any(
            parameter.grad is not view and parameter.grad is not None
            for parameter, view in zip(self.parameters, self.views, strict=True)
        )

    @property
    def are_zeros_set_by_hand(self) -> bool:
        """True if all gradients have been set by hand, to zeros."""
        pairs = zip(self.parameters, self.views, strict=True)
        return all(each.grad is not None and each.grad is not view and not each.grad.any() for each, view in pairs)

    @property
    def changed(self) -> bool:
        """True if a gradient has been set or changed by hand since the last exchange."""
        versions = zip(self._flat, self._versions, strict=True)
        return self.replaced or any(known not in (-1, flat._version) for flat, known in versions)

    @property
    def weights_have_moved(self) -> bool:
        """True if a parameter has moved in memory since its layout was made."""
        return any(
            parameter.data_ptr() != place
            for parameter, place in zip(self.parameters, self._weight_addresses, strict=True)
        )

    def detach_unused(self, used: list[bool]) -> None:
        """Set ``grad`` to None for parameters that have received no gradient."""
        for parameter, view, is_used in zip(self.parameters, self.views, used, strict=True):
            if parameter.grad is view and not is_used:
                parameter.grad = None

    def _raise_changed(self, index: int) -> NoReturn:
        parameter = self.parameters[index]
        change = "is frozen now" if not parameter.requires_grad else f"has {parameter.dtype} or memory of its own now"
        raise ArgumentError(
            f"{self.names[index]} {change}: a model must not change after DistributedOptimizer has been made; change "
            "it first, or close the optimizer and make a new one"
        )


def layout_of(parameters: Mapping[str, torch.Tensor]) -> Layout:
    """Return the layout of parameters on one device, by name."""
    return Layout(
        tuple(parameters),
        tuple(tuple(parameter.shape) for parameter in parameters.values()),
        tuple(str(parameter.dtype).removeprefix("torch.") for parameter in parameters.values()),
        pool_device(devices.device_of(next(iter(parameters.values())))),
        tuple(_weights(parameter) for parameter in parameters.values()),
    )


def _is_for_the_parameter(parameter: torch.Tensor) -> bool:
    """Tell if the running backward pass accumulates into ``grad``, rather than returns the gradient."""
    try:
        return bool(torch._C._will_engine_execute_node(get_gradient_edge(parameter).node))
    except RuntimeError:  # torch.autograd.grad asks for this gradient
        return False


def pool_device(device: torch.device) -> str | int:
    """Return a device in the form that pools take."""
    return "cpu" if device == devices.HOST else int(device.index)


def dense_strides(parameter: torch.Tensor) -> tuple[int, ...]:
    """Return the strides of a gradient: the parameter's, if it is dense."""
    found: tuple[int, ...] = torch.empty_like(parameter, device="meta").stride()
    return found


def _weights(parameter: torch.Tensor) -> TensorLike:
    """Return a flat view of a parameter: on the host a NumPy array, if NumPy has the dtype."""
    flat = parameter.detach().as_strided((parameter.numel(),), (1,))
    if not devices.is_on_host(flat):
        return devices.shared(flat)
    if flat.dtype is not torch.bfloat16:
        return flat.numpy()
    try:
        return flat.view(torch.int16).numpy().view(numpy_dtype("bfloat16"))
    except ArgumentTypeError:  # without the package ml_dtypes
        return flat
