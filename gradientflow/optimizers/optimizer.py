"""Momentum SGD, LARS, Adam and AdamW on the gradients of a pool or of a training loop."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np

from gradientflow._location import core
from gradientflow.annotations import State, StateDict, TensorLike
from gradientflow.arguments import checked_list, checked_mapping, checked_nonnegative
from gradientflow.communicator import Communicator
from gradientflow.device import DeviceArray
from gradientflow.errors import ArgumentError, ArgumentTypeError
from gradientflow.memory import aligned_offsets
from gradientflow.pools.base import BasePool, stream_number
from gradientflow.pools.gradient import GradientPool
from gradientflow.pools.sparse import SparseGradientPool
from gradientflow.strategies import Settings
from gradientflow.strategies.update import AdamSettings
from gradientflow.training import ArrayLoop, LossScale

from .source import LoopSource, PoolSource

Gradients = GradientPool | SparseGradientPool | ArrayLoop
Rate = float | Callable[[int], float]


def state_array(native: core.Optimizer, name: str, index: int) -> TensorLike:
    """Return the "momentum", "mean_square" or "master" array of tensor `index`, in the native optimizer's memory.

    The array is a NumPy array, or a `DeviceArray` on a device.
    """
    floats = getattr(native, name)(index)
    if isinstance(floats, np.ndarray):
        return floats
    return DeviceArray(floats, 0, (floats.size,), "float32", floats.device)


def _copied(array: TensorLike) -> TensorLike:
    """Return a copy in host memory."""
    return array.copy() if isinstance(array, np.ndarray) else array.get()


def _overwrite(array: TensorLike, values: TensorLike) -> None:
    if isinstance(array, np.ndarray):
        array[...] = values
    else:
        array.set(values)


class _Optimizer:
    """Common base of SGD, LARS, Adam and AdamW, whose docstrings describe the parameters."""

    _arrays: tuple[str, ...] = ("momentum",)  # arrays per tensor, besides master weights
    _counts: tuple[str, ...] = ()  # counts per tensor in the state
    _numbers: tuple[str, ...] = ("lr", "momentum", "weight_decay")  # numbers that can be changed

    def __init__(
        self,
        gradients: Gradients,
        parameters: Sequence[TensorLike],
        lr: Rate,
        momentum: float,
        weight_decay: float,
        trust: float,
        correction: bool,
        loss_scale: LossScale | float | str | None,
    ) -> None:
        for name, number in (("momentum", momentum), ("weight_decay", weight_decay), ("trust", trust)):
            checked_nonnegative(name, number)
        self.lr = lr
        self.momentum = momentum
        self.weight_decay = weight_decay
        self.steps = 0
        self._trust = trust
        self.rate_at(0)
        if isinstance(gradients, ArrayLoop):
            self._source: LoopSource | PoolSource = LoopSource(gradients, loss_scale)
        elif isinstance(gradients, BasePool):
            self._source = PoolSource(gradients, correction, loss_scale)
        else:
            raise ArgumentTypeError(
                f"the gradients are a {type(gradients).__name__}: what is needed is a GradientPool, a "
                "SparseGradientPool or a training.ArrayLoop"
            )
        source = self._source
        parameters = checked_list("parameters", parameters, "arrays")
        if len(parameters) != len(source.shapes):
            message = f"there are {len(parameters)} parameters, and gradients of {len(source.shapes)} tensors"
            raise ArgumentError(message)
        if any(dtype == "float64" for dtype, _ in source.groups):
            raise ArgumentTypeError("gradients are float32, float16 or bfloat16, not float64")
        self._rate_inside = trust > 0 or source.rate_in_momentum
        self.parameters = list(parameters)
        counts = [int(np.prod(shape)) for shape in source.shapes]
        self._places: dict[
            int, tuple[TensorLike, int]
        ] = {}  # (native optimizer, index there) by index of the parameter
        self._natives = []
        for _, indices in source.groups:
            native = core.Optimizer([counts[index] for index in indices], self._rate_inside, source.device)
            self._natives.append(native)
            for place, index in enumerate(indices):
                native.set_parameter(place, self.parameters[index])
                self._places[index] = native, place
        source.start(self, lambda index: self._of(index, self._setting()))

    def rate_at(self, step: int) -> float:
        """Return the learning rate of a step.

        Raises
        ------
        gradientflow.errors.ArgumentError
            If the rate is negative or not finite.
        """
        return checked_nonnegative("a learning rate", self.lr(step) if callable(self.lr) else self.lr)

    def _setting(self) -> Settings:
        """Return the settings of all tensors in the next step."""
        return Settings(self.rate_at(self.steps), self.momentum, self.weight_decay, self._trust)

    def _of(self, index: int, setting: Settings) -> Settings:
        """Return the settings of a tensor, based on the settings for all tensors."""
        return setting

    def _note_updates(self, indices: Iterable[int]) -> None:
        """Record that a step has changed these tensors."""

    @property
    def loss_scale(self) -> LossScale | None:
        """The loss scale, if there is one."""
        return self._source.loss_scale

    @loss_scale.setter
    def loss_scale(self, scale: LossScale | None) -> None:
        self._source.loss_scale = scale

    @property
    def overflows(self) -> int:
        """Number of steps skipped because a gradient was not finite; only with a loss scale."""
        return 0 if self.loss_scale is None else self.loss_scale.overflows

    def step(self, stream: object = None) -> bool:
        """Make a step with the gradients, after `wait` of the pool or loop. Return True if the step was made.

        If no rank called ready for a tensor in a loop, the tensor and its momentum or Adam's moments stay as they are.

        With a loss scale, all ranks alike skip a step whose gradients are not finite. If the strategy has already
        written the weights, the step counts as made.

        On a CUDA device the step is enqueued in a stream, and the host does not wait for it. The host does wait for the
        norms that `LARS` needs, and on a dense pool with a loss scale for the count of values that are not finite.

        Parameters
        ----------
        stream : optional
            Only for a pool on a CUDA device: the stream given to the pool's `wait`, or a stream ordered after it. A
            number, or a stream of CuPy or PyTorch; by default the device's default stream.
        """
        number = stream_number(stream)
        updates, kind = self._source.updates(stream)
        skipped = kind == "skipped"
        setting = self._setting()
        scale = 1.0 if self.loss_scale is None else 1.0 / self.loss_scale.value
        for native, gradients, (_, indices) in zip(self._natives, updates, self._source.groups, strict=bool(updates)):
            if skipped:
                native.skip(gradients)
            else:
                moved = [index for index in indices if self._source.has_gradient(index)]
                of_moved = {index: self._of(index, setting) for index in moved}
                native.step(gradients, [of_moved.get(index) for index in indices], scale, stream=number)
                self._note_updates(moved)
        self.steps += not skipped
        self._source.stepped(skipped)
        return not skipped

    def state_dict(self) -> StateDict:
        """Return copies of momentum or Adam's moments, and of master weights, with the loss scale and step count.

        Arrays are NumPy arrays, also for an optimizer on a CUDA device. Only 16-bit parameters have master weights.

        Save the state together with the parameters; if the parameters are equal on all ranks, the state is, too. The
        residuals of a sparse pool are in the state of the pool.
        """
        return self._state(_copied)

    def live_state(self) -> StateDict:
        """Return the state itself, valid until the next step: arrays in host memory are not copied."""
        return self._state(lambda array: array if isinstance(array, np.ndarray) else array.get())

    def _state(self, shown: Callable[[TensorLike], TensorLike]) -> StateDict:
        count = len(self.parameters)
        return {
            "steps": self.steps,
            "rate_inside": self._rate_inside,
            **{name: [shown(self._array(name, i)) for i in range(count)] for name in (*self._arrays, "master")},
            "loss_scale": None if self.loss_scale is None else self.loss_scale.state_dict(),
        }

    def consolidated_state_dict(self) -> StateDict:
        """Return a state equal on all ranks, which any number of ranks can load. Collective.

        If the strategy of a loop lets each rank train by itself, arrays are means over the ranks.
        """
        return self._source.consolidated(self.state_dict())

    def load_state_dict(self, state: State) -> None:
        """Load a state. 16-bit parameters are set to the rounded master weights.

        Raises
        ------
        gradientflow.errors.ArgumentError
            If the state is from another model or kind of optimizer; or from a strategy that has the learning rate
            inside of momentum, if that is 0 now. Nothing has changed then.
        """
        self._check_state_dict(state)
        moved = state["rate_inside"] != self._rate_inside
        for index, master in enumerate(state["master"]):
            for name in self._arrays:
                _overwrite(self._array(name, index), state[name][index])
            if np.size(master):
                _overwrite(self._array("master", index), master)
                native, place = self._places[index]
                native.round_master(place)
        self.steps = int(state["steps"])
        if moved:
            self.set_velocities(dict(enumerate(state["momentum"])), has_rate=not self._rate_inside)
        if self.loss_scale is not None and state["loss_scale"] is not None:
            self.loss_scale.load_state_dict(state["loss_scale"])
            self._source.set_scale()

    @property
    def hyperparameters(self) -> StateDict:
        """The numbers that can be changed; without the learning rate if it is a function of the step."""
        return {name: value for name in self._numbers if not callable(value := getattr(self, name))}

    @hyperparameters.setter
    def hyperparameters(self, numbers: Mapping[str, object]) -> None:
        for name, value in numbers.items():
            setattr(self, name, value)

    @property
    def masters(self) -> dict[int, TensorLike]:
        """The master weights, by the index of their 16-bit parameter, empty parameters included."""
        found = {index: self._array("master", index) for index in range(len(self.parameters))}
        return {
            index: master for index, master in found.items() if master.size or not self._array("momentum", index).size
        }

    def round_masters(self) -> None:
        """Set the 16-bit parameters to their rounded master weights."""
        for native, place in self._places.values():
            if state_array(native, "master", place).size:
                native.round_master(place)

    def update_masters(self) -> None:
        """Set each master weight that does not round to its 16-bit parameter to the parameter."""
        for index, master in self.masters.items():
            parameter = np.asarray(self.parameters[index]).reshape(-1)
            np.copyto(master, parameter, where=master.astype(parameter.dtype) != parameter)

    def velocities(self) -> dict[int, TensorLike]:
        """Return copies of the momentum of SGD without the learning rate, or of LARS, by the index of the tensor."""
        if "momentum" not in self._arrays or "mean_square" in self._arrays:
            return {}
        rate = self._rate_in_momentum
        return {
            index: self._array("momentum", index) / np.float32(rate or 1.0) for index in range(len(self.parameters))
        }

    def check_velocities(self, has_rate: bool) -> None:
        """Raise if `set_velocities` cannot take the learning rate out of the momentum."""
        if has_rate and self.rate_at(self.steps) == 0:
            raise ArgumentError(
                "the momentum in the state has the learning rate inside, and that is 0 at this step: load a state of a "
                "step whose learning rate is above 0"
            )

    def set_velocities(self, velocities: Mapping[int, TensorLike], has_rate: bool) -> None:
        """Set the momentum; `has_rate`: the learning rate of SGD is inside of `velocities`."""
        if "mean_square" in self._arrays:
            return
        factor = self._rate_in_momentum / (self.rate_at(self.steps) if has_rate else 1.0)
        for index, velocity in velocities.items():
            _overwrite(self._array("momentum", index), np.float32(factor) * np.asarray(velocity).reshape(-1))

    def step_with(self, gradients: Mapping[int, TensorLike], has_momentum: bool) -> None:
        """Make a step with these gradients, by the index of the tensor; all other tensors stay as they are."""
        setting = self._setting()
        setting = setting if has_momentum else setting._replace(momentum=0.0)
        for native, (_, indices) in zip(self._natives, self._source.groups, strict=True):
            *offsets, nbytes = aligned_offsets([4 * int(np.prod(self._source.shapes[index])) for index in indices])
            memory = np.zeros(nbytes // 4, np.float32)
            moved = [index for index in indices if index in gradients]
            for index, offset in zip(indices, offsets, strict=True):
                if index in gradients:
                    memory[offset // 4 : offset // 4 + np.size(gradients[index])] = gradients[index]
            of_moved = {index: self._of(index, setting) for index in moved}
            update = core.Update(memory.view(np.uint8), "float32", offsets)
            native.step(update, [of_moved.get(index) for index in indices], 1.0)
            self._note_updates(moved)

    @property
    def _rate_in_momentum(self) -> float:
        """The learning rate if the momentum of SGD has it inside; otherwise, and for LARS, 1."""
        return self.rate_at(self.steps) if self._rate_inside and not self._trust else 1.0

    def broadcast_state(self, comm: Communicator, root: int) -> None:
        """Broadcast the root's momentum or Adam's moments, master weights and step count. Collective."""
        for index in range(len(self.parameters)):
            for name in self._arrays:
                comm.broadcast(self._array(name, index), root)
        for master in self.masters.values():
            comm.broadcast(master, root)
        self.steps = int(comm.broadcast(np.array([self.steps]), root)[0])

    def _array(self, name: str, index: int) -> TensorLike:
        native, place = self._places[index]
        return state_array(native, name, place)

    def _check_state_dict(self, state: State) -> None:
        keys = {"steps", "rate_inside", *self._arrays, *self._counts, "master", "loss_scale"}
        if set(checked_mapping("a state", state)) != keys:
            has = ", ".join(sorted(keys))
            message = f"this is not the state of {type(self).__name__} of gradientflow.optimizers, which has {has}"
            raise ArgumentError(message)
        if state["rate_inside"] != self._rate_inside:
            if self._trust:
                message = "the state is that of SGD with the learning rate outside of momentum, and this is LARS"
                raise ArgumentError(message)
            if state["rate_inside"] and self.rate_at(int(state["steps"])) == 0:
                raise ArgumentError(
                    "the momentum in the state has the learning rate inside, and that is 0 here: load it at a learning "
                    "rate above 0"
                )
        for what in (*self._arrays, "master"):
            sizes = [np.size(each) for each in state[what]]
            if sizes != [self._array(what, index).size for index in range(len(self.parameters))]:
                raise ArgumentError(f"the state is that of another model: its {what} has other sizes")


class SGD(_Optimizer):
    """SGD with momentum, on the gradients of a pool or of a training loop.

    With ``direction = gradient + weight_decay * weight``, the step on a `gradientflow.GradientPool` is PyTorch's:
    ``v = momentum * v + direction; weight -= lr * v``. On a `gradientflow.SparseGradientPool`, with momentum correction
    (GradientFlow paper, algorithm 1), it is ``v = momentum * v + lr * direction; weight -= v``, only where gradients
    were sent; elsewhere weight and v stay as they are. The two formulas differ only where the learning rate changes.

    Parameters
    ----------
    gradients : GradientPool, SparseGradientPool or gradientflow.training.ArrayLoop
        The source of the gradients: a training loop, which has a strategy, or a pool, whose `wait` the caller calls.
    parameters : sequence of arrays
        The weights, in the order of the gradients, changed in place: NumPy arrays, or arrays with DLPack, the CUDA
        array interface or the buffer protocol. They are contiguous, of float32, float16 or bfloat16, and all on the
        device of the pool: in CPU memory, or on its CUDA device. Steps on 16-bit weights use float32 master weights.
    lr : float or callable
        The learning rate, or a function of the step, 0, 1, ..., such as `LinearWarmup`.
    momentum, weight_decay : float, default 0
        See above. A step with a momentum of 0 leaves v as it is, like a step of PyTorch.
    correction : bool, default True
        True to use momentum correction on a sparse pool, see above; in a training loop the strategy decides. False
        makes PyTorch's step for all entries, in which gradients that were not sent count as zeros: for comparison.
    loss_scale : float, "dynamic" or LossScale, optional
        The factor that the loss was multiplied by: a power of two. Steps divide gradients by this factor, and are
        skipped if the gradients are not finite. A training loop has its own loss scale.

    Attributes
    ----------
    lr, momentum, weight_decay
        The given values; they can be changed.
    steps : int
        Number of steps made.
    loss_scale : LossScale or None
        Multiply the loss by its `value`.

    Raises
    ------
    gradientflow.errors.ArgumentError
        If the parameters do not match the gradients, are on another device, or a number is out of range.
    gradientflow.errors.ArgumentTypeError
        If a parameter has another dtype.
    """

    def __init__(
        self,
        gradients: Gradients,
        parameters: Sequence[TensorLike],
        lr: Rate,
        momentum: float = 0.0,
        weight_decay: float = 0.0,
        *,
        correction: bool = True,
        loss_scale: LossScale | float | str | None = None,
    ) -> None:
        super().__init__(gradients, parameters, lr, momentum, weight_decay, 0.0, correction, loss_scale)


class LARS(_Optimizer):
    """Layer-wise adaptive rate scaling, for large batches (You et al., 2017; GradientFlow paper, section 4.2).

    Each tensor has its own learning rate: ``local = trust * |w| / (|g| + weight_decay * |w|)``, 1 where a norm is zero;
    ``v = momentum * v + lr * local * (g + weight_decay * w); w -= v``. On a sparse pool ``|g|`` is the norm of the
    gradients that were sent, and only weights with such gradients are changed.

    Parameters
    ----------
    gradients, parameters, lr, loss_scale
        Same as for `SGD`.
    momentum : float, default 0.9
        See above.
    weight_decay : float, default 0
        See above.
    trust : float, default 0.001
        The trust coefficient.
    """

    def __init__(
        self,
        gradients: Gradients,
        parameters: Sequence[TensorLike],
        lr: Rate,
        momentum: float = 0.9,
        weight_decay: float = 0.0,
        trust: float = 0.001,
        *,
        loss_scale: LossScale | float | str | None = None,
    ) -> None:
        if not checked_nonnegative("trust", trust) > 0:
            raise ArgumentError(f"trust is more than 0, not {trust}")
        super().__init__(gradients, parameters, lr, momentum, weight_decay, trust, True, loss_scale)


class Adam(_Optimizer):
    """Adam, as in `torch.optim.Adam`, on the gradients of a pool or of a training loop.

    With ``g = gradient + weight_decay * weight``: ``m = beta_1 * m + (1 - beta_1) * g``,
    ``v = beta_2 * v + (1 - beta_2) * g * g``, ``weight -= lr * m' / (sqrt(v') + eps)``, where m' and v' are m and v
    after bias correction.

    Parameters
    ----------
    gradients, parameters, loss_scale
        Same as for `SGD`, but neither a SparseGradientPool nor a training loop whose strategy is for momentum SGD only.
    lr : float or callable, default 0.001
        Same as for `SGD`.
    betas : pair of float, default (0.9, 0.999)
        See above; from 0 to below 1.
    eps : float, default 1e-8
        See above.
    weight_decay : float, default 0
        See above.

    Attributes
    ----------
    lr, betas, eps, weight_decay
        The given values; they can be changed.
    """

    _arrays = ("momentum", "mean_square")
    _counts = ("updates",)
    _numbers = ("lr", "betas", "eps", "weight_decay")
    _decoupled = False

    def __init__(
        self,
        gradients: Gradients,
        parameters: Sequence[TensorLike],
        lr: Rate = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        *,
        loss_scale: LossScale | float | str | None = None,
    ) -> None:
        self.betas = tuple(checked_nonnegative("beta", beta) for beta in checked_list("betas", betas, "numbers"))
        if len(self.betas) != 2 or max(self.betas) >= 1:
            raise ArgumentError(f"betas are two numbers from 0 to below 1, not {betas}")
        self.eps = checked_nonnegative("eps", eps)
        if isinstance(gradients, ArrayLoop):
            strategy = gradients.strategy
            is_possible = strategy.step != "core_rate_in_momentum" and strategy.gradients != "consumed"
            name = strategy.name
        else:
            is_possible, name = not getattr(gradients, "corrects_momentum", False), type(gradients).__name__
        if not is_possible:
            raise ArgumentError(f"{name} is for gradients of momentum SGD, and does not go with {type(self).__name__}")
        self._updates = Counter[int]()  # number of updates of each tensor
        super().__init__(gradients, parameters, lr, 0.0, weight_decay, 0.0, False, loss_scale)

    def _of(self, index: int, setting: Settings) -> Settings:
        beta_1, beta_2 = self.betas
        return setting._replace(adam=AdamSettings(beta_1, beta_2, self.eps, self._decoupled, self._updates[index] + 1))

    def _note_updates(self, indices: Iterable[int]) -> None:
        self._updates.update(indices)

    def _state(self, shown: Callable[[TensorLike], TensorLike]) -> StateDict:
        return {**super()._state(shown), "updates": [self._updates[index] for index in range(len(self.parameters))]}

    def load_state_dict(self, state: State) -> None:  # noqa: D102
        super().load_state_dict(state)
        self._updates = Counter(dict(enumerate(map(int, state["updates"]))))

    def broadcast_state(self, comm: Communicator, root: int) -> None:  # noqa: D102
        super().broadcast_state(comm, root)
        updates = np.array([self._updates[index] for index in range(len(self.parameters))], np.int64)
        self._updates = Counter(dict(enumerate(comm.broadcast(updates, root).tolist())))


class AdamW(Adam):
    """AdamW, as in `torch.optim.AdamW`: weight decay is decoupled from the gradient.

    It is `Adam` with ``g = gradient``, after ``weight -= lr * weight_decay * weight``.

    Parameters
    ----------
    gradients, parameters, lr, betas, eps, loss_scale
        Same as for `Adam`.
    weight_decay : float, default 0.01
        See above.
    """

    _decoupled = True

    def __init__(
        self,
        gradients: Gradients,
        parameters: Sequence[TensorLike],
        lr: Rate = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.01,
        *,
        loss_scale: LossScale | float | str | None = None,
    ) -> None:
        super().__init__(gradients, parameters, lr, betas, eps, weight_decay, loss_scale=loss_scale)


__all__ = ["LARS", "SGD", "Adam", "AdamW"]
