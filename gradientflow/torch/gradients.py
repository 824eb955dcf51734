"""The gradients of one dtype in a gradient pool, and a few numbers that travel with them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from gradientflow.communicator import Communicator
from gradientflow.errors import ArgumentError
from gradientflow.pool import GradientPool


class PooledGradients:
    """Where the gradients of parameters lie, one place in the pool for each.

    The last tensor of the pool is the status. It has an element for each parameter, 1 if it has a gradient on this
    rank; then 1 if some have none; then 1 unless this rank is out of batches. Its mean says on every rank what is so
    on any of them, without a call of its own: a mean of zeros is exactly 0, and no other is.

    Parameters
    ----------
    comm : Communicator
        Whose ranks take part.
    parameters : sequence of (str, torch.Tensor)
        Names and parameters of one dtype, in the order in which they shall lie in memory.
    fusion_threshold, wire
        See `GradientPool`.

    Attributes
    ----------
    pool : GradientPool
        The pool.
    order : list of int
        Indices of the pool's tensors that are ready in this iteration, in the order in which they became so.
    used : list of bool
        Which parameters have got a gradient since all were zeroed.
    bytes_copied : int
        Bytes of gradients that lay elsewhere, and were copied to their places.
    """

    def __init__(
        self,
        comm: Communicator,
        parameters: Sequence[tuple[str, torch.Tensor]],
        fusion_threshold: float | str,
        wire: str | None,
    ) -> None:
        self.names = [name for name, _ in parameters]
        self.parameters = [parameter for _, parameter in parameters]
        self._dtype = self.parameters[0].dtype
        count = len(self.parameters)
        self.pool = GradientPool(
            comm,
            [*(parameter.numel() for parameter in self.parameters), count + 2],
            str(self._dtype).removeprefix("torch."),
            fusion_threshold,
            wire,
        )
        flat = torch.frombuffer(self.pool.memory, dtype=self._dtype)
        places = [offset // self._dtype.itemsize for offset in self.pool.offsets]
        self._gradients = flat[: places[-1]]
        self.views = [
            flat.as_strided(parameter.shape, _strides(parameter), place)
            for parameter, place in zip(self.parameters, places, strict=False)
        ]
        self._addresses = [view.data_ptr() for view in self.views]
        self._status = flat[places[-1] : places[-1] + count + 2]
        self._summary = self._status[count:]
        self._full_status = torch.tensor([1.0] * count + [0.0, 1.0], dtype=self._dtype)
        self.order: list[int] = []
        self.used = [False] * count
        self.bytes_copied = 0

    def reordered(
        self, comm: Communicator, order: Sequence[int], fusion_threshold: float | str, wire: str | None
    ) -> PooledGradients:
        """Return a new pool in another order that holds the same, and close this one."""
        parameters = [(self.names[i], self.parameters[i]) for i in order]
        new = PooledGradients(comm, parameters, fusion_threshold, wire)
        for place, i in zip(new.views, order, strict=True):
            place.copy_(self.views[i])
            if self.parameters[i].grad is self.views[i]:
                self.parameters[i].grad = place
        new.used[:] = [self.used[i] for i in order]
        new.bytes_copied = self.bytes_copied
        self.pool.close()
        return new

    # ---- from backpropagation ------------------------------------------------------------------------------------

    def store(self, index: int) -> None:
        """Write a gradient that lies elsewhere to its place, which becomes the parameter's ``grad``."""
        parameter, view = self.parameters[index], self.views[index]
        gradient: Any = parameter.grad
        if gradient.layout is not torch.strided:
            gradient = gradient.to_dense()
        try:
            view.copy_(gradient.detach() if gradient.requires_grad else gradient)
            parameter.grad = view
            self.used[index] = True
            self.bytes_copied += view.nbytes
        except RuntimeError:
            self._raise_changed(index)
            raise

    def explain(self, index: int, error: ArgumentError) -> ArgumentError:
        """Return what to raise where the pool refused gradient `index`."""
        if type(error) is not ArgumentError:
            return error
        return ArgumentError(
            f"the gradient of {self.names[index]} became final twice before it was averaged: call zero_grad() after a "
            "backward pass that failed, and run a pass that reaches a parameter repeatedly under no_sync()"
        )

    # ---- averaging -----------------------------------------------------------------------------------------------

    def check(self) -> None:
        """Raise unless parameters and gradients are what and where they were."""
        complete = len(self.order) == len(self.parameters)
        for index, (parameter, view, address) in enumerate(
            zip(self.parameters, self.views, self._addresses, strict=True)
        ):
            if view.data_ptr() != address:
                self._raise_changed(index)
            if parameter.grad is not view and index in self.order:
                message = f"the gradient of {self.names[index]} was replaced while it was being averaged"
                raise ArgumentError(message)
            if not complete and (parameter.dtype is not self._dtype or not parameter.requires_grad):
                self._raise_changed(index)

    def flush(self, active: bool) -> None:
        """Hand over what backpropagation has not: gradients kept from earlier passes or set by hand, and the status.

        Parameters without a gradient contribute zeros.
        """
        if len(self.order) == len(self.parameters):
            self._status.copy_(self._full_status)
        else:
            final = set(self.order)
            for index, (parameter, view) in enumerate(zip(self.parameters, self.views, strict=True)):
                if index in final:
                    continue
                if parameter.grad is None:
                    view.zero_()
                    self.used[index] = False
                elif parameter.grad is not view:
                    self.store(index)
                elif not self.used[index]:
                    self.used[index] = bool(view.any())  # written to by hand
            self._write_status(active)
        self.pool.ready()
        self.order.append(len(self.parameters))

    def wait(self) -> bool:
        """Wait for the means; parameters that have a gradient on no rank get none. Say whether any rank is active."""
        try:
            self.pool.wait()
        finally:
            self.order.clear()
        incomplete, active = self._summary.tolist()
        if incomplete:
            for parameter, view, used in zip(self.parameters, self.views, self._status.tolist(), strict=False):
                parameter.grad = view if used else None
        return bool(active)

    def abandon(self) -> None:
        """End an iteration that backpropagation has begun, here or in the pool of another dtype, and not ended."""
        if len(self.parameters) not in self.order:
            self._write_status(True)
            self.pool.ready(len(self.parameters))
        self.order.clear()
        self.pool.abandon()

    def attach(self) -> None:
        """Make the places in the pool the parameters' gradients, and write to them what gradients there are."""
        for index, (parameter, view) in enumerate(zip(self.parameters, self.views, strict=True)):
            if parameter.grad is None:
                parameter.grad = view
            elif parameter.grad is not view:
                self.store(index)

    @property
    def replaced(self) -> bool:
        """Whether a gradient has been set by hand."""
        return any(
            parameter.grad is not view and parameter.grad is not None
            for parameter, view in zip(self.parameters, self.views, strict=True)
        )

    def detach_unused(self) -> None:
        """Leave parameters that have no gradient without one."""
        for parameter, view, used in zip(self.parameters, self.views, self.used, strict=True):
            if parameter.grad is view and not used:
                parameter.grad = None

    def zero(self, forget: bool) -> None:
        """Zero all gradients at once; forget which parameters had some, or let these count as used."""
        self._gradients.zero_()
        if forget:
            self.used[:] = [False] * len(self.used)
        for parameter, view in zip(self.parameters, self.views, strict=True):
            if parameter.grad is not view:
                parameter.grad = view

    # ---- helpers -------------------------------------------------------------------------------------------------

    def _write_status(self, active: bool) -> None:
        self._status.copy_(torch.tensor([*self.used, True, active], dtype=self._dtype))

    def _raise_changed(self, index: int) -> None:
        parameter = self.parameters[index]
        change = "is frozen now" if not parameter.requires_grad else f"has {parameter.dtype} or memory of its own now"
        message = (
            f"{self.names[index]} {change}: a model must not change after DistributedOptimizer has been made; change "
            "it first, or close the optimizer and make a new one"
        )
        raise ArgumentError(message)


def _strides(parameter: torch.Tensor) -> tuple[int, ...]:
    """Return the strides of a gradient: those of the parameter, if it is dense."""
    strides: tuple[int, ...] = torch.empty_like(parameter, device="meta").stride()
    return strides
