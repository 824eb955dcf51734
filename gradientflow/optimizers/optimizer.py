"""Momentum SGD and LARS over the gradients of a pool."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from gradientflow._location import load_core
from gradientflow.arguments import mapping, nonnegative, sequence
from gradientflow.base_pool import stream_number
from gradientflow.device import DeviceArray
from gradientflow.errors import ArgumentError, ArgumentTypeError
from gradientflow.pool import GradientPool
from gradientflow.sparse_pool import SparseGradientPool

from .loss_scale import LossScale

Rate = float | Callable[[int], float]


def state_array(native: Any, name: str, index: int) -> Any:
    """Return "momentum" or "master" weights of a native optimizer: a NumPy array or a `DeviceArray` over its memory."""
    floats = getattr(native, name)(index)
    if isinstance(floats, np.ndarray):
        return floats
    return DeviceArray(floats, 0, (floats.size,), "float32", floats.device)


def _copied(array: Any) -> Any:
    """Return a copy in memory of the host."""
    return array.copy() if isinstance(array, np.ndarray) else array.get()


def _overwrite(array: Any, values: Any) -> None:
    if isinstance(array, np.ndarray):
        array[...] = values
    else:
        array.set(values)


class _PoolOptimizer:
    """What SGD and LARS have in common; see there."""

    def __init__(
        self,
        pool: GradientPool | SparseGradientPool,
        parameters: Sequence[Any],
        lr: Rate,
        momentum: float,
        weight_decay: float,
        trust: float,
        correction: bool,
        loss_scale: LossScale | float | str | None,
    ) -> None:
        if not isinstance(pool, GradientPool | SparseGradientPool):
            message = f"the pool is a {type(pool).__name__}: what is needed is a GradientPool or SparseGradientPool"
            raise ArgumentTypeError(message)
        parameters = sequence("parameters", parameters, "arrays")
        if len(parameters) != len(pool.offsets):
            message = f"there are {len(parameters)} parameters, and the pool has {len(pool.offsets)} tensors"
            raise ArgumentError(message)
        if pool.dtype == "float64":
            message = "gradients are float32, float16 or bfloat16, not float64"
            raise ArgumentTypeError(message)
        for name, number in (("momentum", momentum), ("weight_decay", weight_decay), ("trust", trust)):
            nonnegative(name, number)
        self.pool = pool
        self.lr = lr
        self.momentum = momentum
        self.weight_decay = weight_decay
        self.steps = 0
        self.loss_scale = LossScale.of(loss_scale)
        self._trust = trust
        is_sparse = isinstance(pool, SparseGradientPool)
        self._everywhere = (True,) if is_sparse and not correction else ()
        self._rate_inside = trust > 0 or (is_sparse and correction)
        self.rate_at(0)
        counts = [int(np.prod(shape)) for shape in pool.shapes]
        self._native = load_core().Optimizer(counts, self._rate_inside, pool.device)
        for index, parameter in enumerate(parameters):
            self._native.set_parameter(index, parameter)
        self.parameters = list(parameters)
        if self.loss_scale is None:
            return
        if isinstance(pool, SparseGradientPool) and not pool.skip_nonfinite:
            message = "with a loss scale the pool has to skip what is not finite: give it skip_nonfinite=True"
            raise ArgumentError(message)
        self.loss_scale.bind(self)
        self._scale_pool()

    def _scale_pool(self) -> None:
        """Tell a sparse pool how its gradients are scaled."""
        if self.loss_scale is not None and isinstance(self.pool, SparseGradientPool):
            self.pool.loss_scale = self.loss_scale.value

    def rate_at(self, step: int) -> float:
        """Return the learning rate of a step.

        Raises
        ------
        gradientflow.errors.ArgumentError
            If it is negative or not finite.
        """
        return nonnegative("a learning rate", self.lr(step) if callable(self.lr) else self.lr)

    @property
    def overflows(self) -> int:
        """How many steps were skipped because a gradient was not finite; only with a loss scale."""
        return 0 if self.loss_scale is None else self.loss_scale.overflows

    def step(self, stream: Any = None) -> bool:
        """Make a step with the gradients for which the pool has waited. Say whether it was made.

        With a loss scale, a step whose gradients are not finite is skipped, on all ranks alike.

        On a CUDA device the step is put into a stream, and the host does not wait for it; but it waits for the norms
        that `LARS` needs, and for the count of what is not finite of a dense pool with a loss scale.

        Parameters
        ----------
        stream : optional
            For a pool on a CUDA device: the stream that the pool was waited for with, or one behind it. A number, or a
            stream of CuPy or PyTorch; by default the device's default stream.

        Raises
        ------
        gradientflow.errors.ArgumentError
            If the pool has no averaged gradients, because tensors have become ready since the last `wait`, or that one
            failed, or there was none; or if this optimizer has made its step with them already. Several optimizers may
            each make one.
        """
        number = stream_number(stream)
        overflowed = self.loss_scale is not None and self._overflowed(stream)
        if overflowed:
            self._native.skip(self.pool._native)
        else:
            scale = 1.0 if self.loss_scale is None else self.loss_scale.value
            setting = (self.rate_at(self.steps), self.momentum, self.weight_decay, self._trust)
            settings = [setting] * len(self.parameters)
            self._native.step(self.pool._native, settings, 1.0 / scale, *self._everywhere, stream=number)
            self.steps += 1
        if self.loss_scale is not None:
            self.loss_scale.update(overflowed)
            self._scale_pool()
        return not overflowed

    def _overflowed(self, stream: Any) -> bool:
        if isinstance(self.pool, SparseGradientPool):
            return self.pool.overflowed
        return self.pool.count_nonfinite(stream) > 0

    def state_dict(self) -> dict[str, Any]:
        """Return momentum, master weights of parameters of 16 bits, loss scale and number of steps: copies.

        They are NumPy arrays, also where the optimizer is on a CUDA device.

        It is the same on all ranks, and goes with the parameters. What a sparse pool holds back is the pool's state.
        """
        count = len(self.parameters)
        return {
            "steps": self.steps,
            "rate_inside": self._rate_inside,
            "momentum": [_copied(self._momentum(i)) for i in range(count)],
            "master": [_copied(self._master(i)) for i in range(count)],
            "loss_scale": None if self.loss_scale is None else self.loss_scale.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a state. Parameters of 16 bits become what the master weights round to.

        Raises
        ------
        gradientflow.errors.ArgumentError
            If it is the state of another model, or of another kind of optimiser: before anything is changed.
        """
        self._check_state_dict(state)
        for index, (momentum, master) in enumerate(zip(state["momentum"], state["master"], strict=True)):
            _overwrite(self._momentum(index), momentum)
            if np.size(master):
                _overwrite(self._master(index), master)
                self._native.round_master(index)
        self.steps = int(state["steps"])
        if self.loss_scale is not None and state["loss_scale"] is not None:
            self.loss_scale.load_state_dict(state["loss_scale"])
            self._scale_pool()

    def _momentum(self, index: int) -> Any:
        return state_array(self._native, "momentum", index)

    def _master(self, index: int) -> Any:
        return state_array(self._native, "master", index)

    def _check_state_dict(self, state: Mapping[str, Any]) -> None:
        if not {"steps", "rate_inside", "momentum", "master", "loss_scale"} <= set(mapping("a state", state)):
            message = "this is not the state of an optimiser of gradientflow.optimizers"
            raise ArgumentError(message)
        if state["rate_inside"] != self._rate_inside:
            message = "the state is that of an optimiser whose momentum has the learning rate on the other side"
            raise ArgumentError(message)
        for what, mine in (("momentum", self._momentum), ("master", self._master)):
            sizes = [np.size(each) for each in state[what]]
            if sizes != [mine(index).size for index in range(len(self.parameters))]:
                message = f"the state is that of another model: its {what} has other sizes"
                raise ArgumentError(message)


class SGD(_PoolOptimizer):
    """SGD with momentum, of the gradients in a pool.

    ``direction = gradient + weight_decay * weight``; on a `gradientflow.GradientPool`, as PyTorch has it,
    ``v = momentum * v + direction; weight -= lr * v``. On a `gradientflow.SparseGradientPool`, with momentum correction
    (GradientFlow paper, algorithm 1), ``v = momentum * v + lr * direction; weight -= v``, and only where gradients were
    sent: elsewhere weight and v stay as they are. The two differ only where the learning rate changes.

    Parameters
    ----------
    pool : GradientPool or SparseGradientPool
        Whose gradients it takes.
    parameters : sequence of arrays
        The weights, in the order of the pool's tensors: NumPy arrays, or whatever has DLPack, the CUDA array interface
        or the buffer protocol, contiguous, of float32, float16 or bfloat16, all where the pool is: in CPU memory, or on
        its CUDA device. They are changed in place. Those of 16 bits get master weights of float32, with which the steps
        are made.
    lr : float or callable
        The learning rate, or a function of the step, 0, 1, ..., such as `LinearWarmup`.
    momentum, weight_decay : float, default 0
        See above.
    correction : bool, default True
        Momentum correction on a sparse pool, see above. Without it the step is PyTorch's, everywhere, with zeros for
        what was not sent; as for `gradientflow.strategies.CSC`, for comparison.
    loss_scale : float, "dynamic" or LossScale, optional
        What the loss was multiplied by: a power of two. The steps undo it, and skip gradients that are not finite.

    Attributes
    ----------
    lr, momentum, weight_decay
        As given; they can be changed.
    steps : int
        How many steps were made.
    loss_scale : LossScale or None
        Its `value` is what to multiply the loss by.

    Raises
    ------
    gradientflow.errors.ArgumentError
        If the parameters are not those of the pool, or not where it is, or a number is out of range.
    gradientflow.errors.ArgumentTypeError
        If a parameter is of another dtype.
    """

    def __init__(
        self,
        pool: GradientPool | SparseGradientPool,
        parameters: Sequence[Any],
        lr: Rate,
        momentum: float = 0.0,
        weight_decay: float = 0.0,
        *,
        correction: bool = True,
        loss_scale: LossScale | float | str | None = None,
    ) -> None:
        super().__init__(pool, parameters, lr, momentum, weight_decay, 0.0, correction, loss_scale)


class LARS(_PoolOptimizer):
    """Layer-wise adaptive rate scaling, for large batches (You et al., 2017; GradientFlow paper, section 4.2).

    Each tensor has a learning rate of its own: ``local = trust * |w| / (|g| + weight_decay * |w|)``, 1 where a norm is
    zero; ``v = momentum * v + lr * local * (g + weight_decay * w); w -= v``. On a sparse pool the norm is that of the
    gradients that were sent, and only what was sent is changed.

    Parameters
    ----------
    pool, parameters, lr, loss_scale
        As in `SGD`.
    momentum : float, default 0.9
        See above.
    weight_decay : float, default 0
        See above.
    trust : float, default 0.001
        The trust coefficient.
    """

    def __init__(
        self,
        pool: GradientPool | SparseGradientPool,
        parameters: Sequence[Any],
        lr: Rate,
        momentum: float = 0.9,
        weight_decay: float = 0.0,
        trust: float = 0.001,
        *,
        loss_scale: LossScale | float | str | None = None,
    ) -> None:
        if not nonnegative("trust", trust) > 0:
            message = f"trust is more than 0, not {trust}"
            raise ArgumentError(message)
        super().__init__(pool, parameters, lr, momentum, weight_decay, trust, True, loss_scale)


__all__ = ["LARS", "SGD"]
