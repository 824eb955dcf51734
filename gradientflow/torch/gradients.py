"""The gradients of one dtype in a gradient pool, and a few numbers that travel with them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Any

import numpy as np
import torch

from gradientflow.communicator import Communicator
from gradientflow.errors import ArgumentError, GradientFlowError, NonFiniteError
from gradientflow.pool import GradientPool
from gradientflow.sparse_pool import SparseGradientPool
from gradientflow.strategies import CSC, Strategy

from . import devices


class PooledGradients:
    """Where the gradients of parameters lie, one place in the pool for each.

    Behind the gradients comes the status: the last tensor of a dense pool, the extra numbers of a sparse one. It has an
    element for each parameter, 1 if it has a gradient on this rank; then 1 if some have none; then 1 unless this rank
    is out of batches. Its mean says on every rank what is so on any of them, without a call of its own: a mean of zeros
    is exactly 0, and no other is. Where a dense pool is on a device, the status is in a small pool of its own on the
    host, because the host reads it in every iteration, and must not wait for the device to do so.

    Parameters
    ----------
    comm : Communicator
        Whose ranks take part.
    parameters : sequence of (str, torch.Tensor)
        Names and parameters of one dtype and on one device, in the order in which they shall lie in memory.
    strategy : gradientflow.strategies.Dense or CSC
        Makes the pool.
    momentum : float
        Of the optimizer.
    skip_nonfinite : bool
        Whether a sparse pool drops an iteration with gradients that are not finite, in place of an error.
    first_iteration : int
        The number of the next iteration of a sparse pool.

    Attributes
    ----------
    pool : GradientPool or SparseGradientPool
        The pool.
    names, parameters : list
        Of the parameters, in their order.
    views : list of torch.Tensor
        Their gradients.
    device : torch.device
        Where they are.
    ready : callable
        ``ready(index)`` says that a gradient is final, once all is done that is in the current stream.
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
        strategy: Strategy,
        *,
        momentum: float = 0.0,
        skip_nonfinite: bool = False,
        first_iteration: int = 0,
    ) -> None:
        self.names = [name for name, _ in parameters]
        self.parameters = [parameter for _, parameter in parameters]
        self._dtype = self.parameters[0].dtype
        self.device = devices.device_of(self.parameters[0])
        self._strategy, self._momentum, self._skip_nonfinite = strategy, momentum, skip_nonfinite
        self.pool = self._make_pool(comm, first_iteration)
        flat = devices.tensor_over(self.pool.memory, self._dtype)
        places = [offset // self._dtype.itemsize for offset in self.pool.offsets]
        count = len(self.parameters)
        self.views = [
            flat.as_strided(parameter.shape, dense_strides(parameter), place)
            for parameter, place in zip(self.parameters, places, strict=False)
        ]
        self._status_pool: GradientPool | None = None
        self.ready: Callable[[int], None] = self.pool.ready
        if self.device != devices.HOST:
            self.ready = self._ready_in_stream
        if isinstance(self.pool, SparseGradientPool):
            self._gradients, self._status = flat, torch.from_numpy(self.pool.extra)
        elif self.device != devices.HOST:
            self._status_pool = GradientPool(comm, [count + 2])
            self._gradients, self._status = flat, torch.from_numpy(self._status_pool.views[0])
        else:
            self._gradients, self._status = flat[: places[-1]], flat[places[-1] : places[-1] + count + 2]
        self._addresses = [view.data_ptr() for view in self.views]
        self._summary = self._status[count:]
        self._full_status = torch.tensor([1.0] * count + [0.0, 1.0], dtype=self._status.dtype, device=devices.HOST)
        self._version = self._gradients._version  # when all that was not zero lay where the pool knows of it
        self.order: list[int] = []
        self.used = [False] * count
        self.bytes_copied = 0

    def reordered(self, comm: Communicator, order: Sequence[int]) -> PooledGradients:
        """Return a new pool in another order that holds the same, and close this one."""
        parameters = [(self.names[i], self.parameters[i]) for i in order]
        new = PooledGradients(
            comm,
            parameters,
            self._strategy,
            momentum=self._momentum,
            skip_nonfinite=self._skip_nonfinite,
            first_iteration=self.pool.iteration,
        )
        new.hold(self.held)
        for place, i in zip(new.views, order, strict=True):
            place.copy_(self.views[i])
            if self.parameters[i].grad is self.views[i]:
                self.parameters[i].grad = place
        new.pool._native.take_over_means(self.pool._native)
        new.used[:] = [self.used[i] for i in order]
        new.bytes_copied = self.bytes_copied
        self.close()
        return new

    def close(self) -> None:
        """End the pool, after what is on its way."""
        self.end(None, None, None)

    def end(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """End the pool; after an exception without waiting for what is on its way."""
        self.pool.__exit__(kind, value, traceback)
        if self._status_pool is not None:
            self._status_pool.__exit__(kind, value, traceback)

    # ---- from backpropagation ------------------------------------------------------------------------------------

    def _ready_in_stream(self, index: int) -> None:
        self.pool.ready(index, self._stream)

    @property
    def _stream(self) -> int:
        """The current stream of the device, in which gradients are written and read."""
        return devices.stream_number(self.device)

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

    def check_momentum(self, momentum: float) -> None:
        """Raise if what is held back would have to decay in another way from now on."""
        follows = isinstance(self._strategy, CSC) and self._strategy.correction and self._strategy.momentum is None
        if follows and momentum != self._momentum:
            message = (
                f"the momentum of the optimizer is {momentum} now, and CSC holds gradients back with {self._momentum}: "
                "leave it as it is (cycle_momentum=False), or give CSC a momentum"
            )
            raise ArgumentError(message)

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
        self.pool.ready(stream=self._stream)
        if self._status_pool is not None:
            self._status_pool.ready()
        self.order.append(len(self.parameters))

    def wait(self) -> bool:
        """Wait for the means. Say whether any rank is active.

        Parameters that have a gradient on no rank get none, unless some was held back of them and has been sent now.
        """
        try:
            self._wait_for_both()
        except NonFiniteError as error:
            raise self._naming(error) from None
        finally:
            self.order.clear()
            self._version = self._gradients._version
        incomplete, active = self._summary.tolist()
        if incomplete:
            sparse = isinstance(self.pool, SparseGradientPool)
            for parameter, view, used in zip(self.parameters, self.views, self._status.tolist(), strict=False):
                parameter.grad = view if used or (sparse and view.any()) else None
        return bool(active)

    @property
    def overflowed(self) -> bool:
        """Whether the means of the last iteration were not finite, which all ranks see alike."""
        if isinstance(self.pool, SparseGradientPool):
            return self.pool.overflowed
        return self.pool.count_nonfinite(self._stream) > 0

    def scale(self, factor: float) -> None:
        """Multiply the means."""
        is_known = self._version == self._gradients._version
        for begin, end in self._spans():
            self._gradients[begin:end].mul_(factor)
        if is_known:
            self._version = self._gradients._version

    def step(self, native: Any, settings: list[Any], gradient_scale: float, everywhere: bool) -> None:
        """Have an optimizer of the core make a step with the means."""
        if isinstance(self.pool, SparseGradientPool):
            native.step(self.pool._native, settings, gradient_scale, everywhere, stream=self._stream)
        else:
            native.step(self.pool._native, settings, gradient_scale, stream=self._stream)

    @property
    def is_under_way(self) -> bool:
        """Whether an iteration has begun."""
        return bool(self.order) or self.pool.ready_count > 0

    def abandon(self) -> None:
        """End an iteration that backpropagation has begun, here or in the pool of another dtype, and not ended."""
        if self._status_pool is not None:
            self._abandon_both(self._status_pool)
            return
        if len(self.parameters) not in self.order and self.pool.ready_count <= len(self.parameters):
            self._write_status(True)
            self.pool.ready(len(self.parameters))
        self.order.clear()
        self.pool.abandon(self._stream)

    def _wait_for_both(self) -> None:
        """Wait for the gradients, and for the status if it travels apart; both end their iteration, come what may."""
        try:
            self.pool.wait(stream=self._stream)
        except NonFiniteError:  # on all ranks
            if self._status_pool is not None:
                self._status_pool.wait()
            raise
        except GradientFlowError:
            if self._status_pool is not None:
                with contextlib.suppress(GradientFlowError):
                    self._status_pool.abandon()
            raise
        if self._status_pool is not None:
            self._status_pool.wait()

    def _abandon_both(self, status_pool: GradientPool) -> None:
        if status_pool.ready_count == 0:
            self._write_status(True)
            status_pool.ready()
        self.order.clear()
        if self.pool.ready_count > 0:
            self.pool.abandon(self._stream)
        else:  # zeros of this rank, which the other ranks wait for
            self.views[0].zero_()
            self.ready(0)
            self.pool.abandon(self._stream)
        status_pool.abandon()

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
        if isinstance(self.pool, SparseGradientPool) and self._gradients._version == self._version:
            self.pool.zero(self._stream)
        else:
            self._gradients.zero_()
            self._version = self._gradients._version
        if forget:
            self.used[:] = [False] * len(self.used)
        for parameter, view in zip(self.parameters, self.views, strict=True):
            if parameter.grad is not view:
                parameter.grad = view

    # ---- what is held back ---------------------------------------------------------------------------------------

    @property
    def held(self) -> dict[int, Any]:
        """What this rank holds back of each parameter, by its id."""
        if not isinstance(self.pool, SparseGradientPool):
            return {}
        return {id(parameter): held for parameter, held in zip(self.parameters, self.pool.held, strict=True)}

    def hold(self, held: Mapping[int, Any]) -> None:
        """Take over what another pool has held back, of the parameters that are here. Zeroes the gradients."""
        if isinstance(self.pool, SparseGradientPool) and any(each.any() for each in held.values()):
            with devices.as_default(self.device):
                self.pool.hold([held.get(id(p), own) for p, own in zip(self.parameters, self.pool.held, strict=True)])
            self._version = self._gradients._version

    def load(self, state: Mapping[str, Any]) -> None:
        """Go on from the state of a sparse pool. Zeroes the gradients."""
        if isinstance(self.pool, SparseGradientPool):
            with devices.as_default(self.device):
                self.pool.load_state_dict(state)
            self._version = self._gradients._version

    def begin_anew(self) -> None:
        """Forget what is held back, and count iterations from 0. Zeroes the gradients."""
        if isinstance(self.pool, SparseGradientPool):
            state = self.pool.state_dict()
            held = [np.zeros_like(each) for each in state["held"]]
            self.load({**state, "held": held, "iteration": 0, "important": []})

    def put_back(self) -> None:
        """Hold back again what the last iteration has sent, an equal part on each rank, and zero the gradients.

        So nothing is lost where no step follows. An iteration that was dropped has sent nothing.
        """
        if isinstance(self.pool, SparseGradientPool) and not self.pool.overflowed:
            held = [each.copy() for each in self.pool.held]
            for each, view in zip(held, self.views, strict=True):
                each += view.as_strided((view.numel(),), (1,)).float().div(self.pool.loss_scale).cpu().numpy()
            with devices.as_default(self.device):
                self.pool.hold(held)
            self._version = self._gradients._version

    # ---- helpers -------------------------------------------------------------------------------------------------

    def _make_pool(self, comm: Communicator, first_iteration: int) -> GradientPool | SparseGradientPool:
        counts = [parameter.numel() for parameter in self.parameters]
        status = len(counts) + 2
        dtype = str(self._dtype).removeprefix("torch.")
        device = pool_device(self.device)
        if not self._strategy.is_sparse:
            on_host = [status] if device == "cpu" else []
            return self._strategy.make_pool(comm, [*counts, *on_host], dtype, device=device)
        return self._strategy.make_pool(
            comm,
            counts,
            dtype,
            device=device,
            momentum=self._momentum,
            extra=status,
            skip_nonfinite=self._skip_nonfinite,
            first_iteration=first_iteration,
        )

    def _write_status(self, active: bool) -> None:
        self._status.copy_(torch.tensor([*self.used, True, active], dtype=self._status.dtype, device=devices.HOST))

    def _spans(self) -> list[list[int]]:
        """Return where the means are, in elements; on a device everywhere, where one launch costs more than zeros."""
        if isinstance(self.pool, SparseGradientPool) and self.device == devices.HOST:
            return list(self.pool.spans.tolist())
        return [[0, self._gradients.numel()]]

    def _naming(self, error: NonFiniteError) -> NonFiniteError:
        """Return the pool's error with the names of parameters."""
        place = self.pool.nonfinite_tensors if isinstance(self.pool, SparseGradientPool) else None
        if place is None:
            return error
        rank, tensors = place
        names = self.names[tensors.start : tensors.stop]
        which = names[0] if len(names) == 1 else f"{names[0]}, or of a parameter up to {names[-1]},"
        where = f"on rank {rank}" if rank >= 0 else "once averaged"
        return NonFiniteError(
            f"the gradient of {which} is not finite {where}: no weight was changed, and what is held back is as before"
        )

    def _raise_changed(self, index: int) -> None:
        parameter = self.parameters[index]
        change = "is frozen now" if not parameter.requires_grad else f"has {parameter.dtype} or memory of its own now"
        message = (
            f"{self.names[index]} {change}: a model must not change after DistributedOptimizer has been made; change "
            "it first, or close the optimizer and make a new one"
        )
        raise ArgumentError(message)


def pool_device(device: torch.device) -> str | int:
    """Return a device as pools take it."""
    return "cpu" if device == devices.HOST else int(device.index)


def dense_strides(parameter: torch.Tensor) -> tuple[int, ...]:
    """Return the strides of a gradient: those of the parameter, if it is dense."""
    strides: tuple[int, ...] = torch.empty_like(parameter, device="meta").stride()
    return strides
