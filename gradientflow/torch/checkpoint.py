"""State dict of a DistributedOptimizer: the wrapped optimizer's, plus the state of strategy and core."""

from __future__ import annotations

import itertools
from collections import ChainMap, UserDict
from collections.abc import Iterable, Mapping
from contextlib import nullcontext
from functools import cached_property
from typing import Any, SupportsIndex

import numpy as np
import torch

from gradientflow.agreement import failing_together
from gradientflow.annotations import State, StateDict, TensorLike
from gradientflow.communicator import Communicator
from gradientflow.errors import ArgumentError
from gradientflow.memory import numpy_dtype
from gradientflow.strategies import Strategy
from gradientflow.strategies.exchange.pending import Pending
from gradientflow.training import consolidated, of_any_rank
from gradientflow.training.moving import Settled, check_choice, settle
from gradientflow.training.state import TrainingState, check_origin, is_of_another, strategy_of

from .bound_model import BoundModel
from .fused_step import FusedStep, settings_of_group
from .gradients import layout_of
from .moving import Moved, move, with_momentum
from .named_state import named, states_of
from .plain_tensors import from_plain, to_plain

_BUFFERS = ("momentum_buffer", "exp_avg", "exp_avg_sq")  # float32 tensors in the state of a parameter
_KEY = "gradientflow"  # key in a state dict and in the state of a parameter; PyTorch's optimizers ignore it
_NO_STATE: dict[str, Any] = {"momentum": {}, "master_weights": {}}  # empty state of the core
_COMMON, _OWN = "common", "own"  # named tensors equal on all ranks, and this rank's


class Checkpoint:
    """Checkpoints of a bound model and its optimizer, with the state of the core if the core makes the step."""

    def __init__(self, bound: BoundModel, optimizer: torch.optim.Optimizer, fused_step: FusedStep | None) -> None:
        self._bound = bound
        self._loop = bound.loop
        self._optimizer = optimizer
        self._fused_step = fused_step
        strategy = bound.loop.strategy
        rate = "inside" if strategy.step == "core_rate_in_momentum" else "outside"
        remark = f"the learning rate {rate} of momentum"
        self._training = TrainingState(bound.loop, type(optimizer).__name__, remark)

    def own(self, by_name: bool) -> StateDict:
        """Return this rank's state dict. Does not communicate.

        With `by_name`, the state of a parameter also holds the states of strategy and core, as named tensors, not
        copied. PyTorch's `get_state_dict` passes on only parameter groups and the states of parameters.
        """
        state, of_core, own = self._of_optimizer(), self._of_core(), with_tensors(self._training.own())
        own |= of_core
        whole = self._with(state, own)
        if by_name and self._has_more:
            whole["state"] = self._with_names(state["state"], own)
        return whole

    def common(self) -> StateDict:
        """Return the part of the state dict that is equal on all ranks. Does not communicate."""
        return self._with(self._of_optimizer(), with_tensors(self._training.common()) | self._of_core())

    def consolidated(self) -> StateDict:
        """Return a state dict equal on all ranks, which any number of ranks can load. Collective."""
        state, of_core = self._of_optimizer(), self._of_core()
        own = self._training.consolidated()
        if self._loop.writes_weights:
            state, of_core = _consolidated(self._loop.comm, state, of_core)
        return self._with(state, with_tensors(own) | of_core)

    def load(self, state_dict: dict[str, object], pending: str | None = None) -> None:
        """Load a state dict. Collective if the strategy has a state, or the state's strategy keeps gradients."""
        problem: ArgumentError | None = None
        try:
            state_dict = _without_names(self._loop.comm, self._optimizer, self._names, state_dict)
        except ArgumentError as error:
            problem = error  # raised after the remaining ranks have heard of it
        own = _own(state_dict)

        momentum: Mapping[str, TensorLike] = {}

        def check() -> None:
            nonlocal state_dict, momentum
            if problem is not None:
                raise problem
            self._check(state_dict, own)
            self._bound.check_weights()
            if moves:
                _check_groups(self._optimizer, state_dict)
                return
            parameters, strategy = self._bound.gradients.by_name, self._loop.strategy
            if own is None and (strategy.gradients == "consumed" or not strategy.profile().takes_momentum):
                _check_groups(self._optimizer, state_dict)
                moved = move(self._optimizer, parameters, strategy, state_dict, {}, Pending(), Settled(), True)
                state_dict, momentum = moved.state, moved.momentum
            elif own is not None and (self._fused_step is None or self._fused_step.momentum_in_state):
                state_dict = with_momentum(self._optimizer, parameters, state_dict, own, Pending())

        moves = own is not None and problem is None and self._training.moves(own)
        settled = Settled() if moves else None
        if self._strategy_has_state or (moves and own is not None and Pending.may_be_in(own["synchronizer"])):
            settled = self._training.load(own, check, pending)
            if settled is None:
                self._loop.synchronizer.take_momentum(momentum)
            self._bound.weights_are_written()
        else:
            check_choice(pending)
            check()
        if settled is None or own is None:
            self._load(state_dict, own)
        else:
            self._move(state_dict, own, settled)

    def _move(self, state_dict: StateDict, own: StateDict, settled: Settled) -> None:
        """Load another strategy's checked state. Collective if something is pending, or this strategy has a state."""
        found, loop = self._training.pending_in(own), self._loop
        is_collective = self._strategy_has_state or not found.is_empty
        parameters, fused = self._bound.gradients.by_name, self._fused_step
        with failing_together(loop.comm) if is_collective else nullcontext():
            moved = _moved(
                loop.comm, self._optimizer, parameters, loop.strategy, state_dict, own, settled, found, fused
            )
            groups = zip(moved.state["param_groups"], self._optimizer.param_groups, strict=True)
            group_of = {id(parameter): group for group, mine in groups for parameter in mine["params"]}
            each = [settings_of_group(group_of[id(parameter)]) for parameter in self._bound.gradients.parameters]
            loop.synchronizer.check_settings(each.__getitem__)
        moved.write(parameters)
        if fused is not None and fused.shared_model is not None:
            fused.shared_model.accept()
        if is_collective:
            self._training.begin(settled)
            loop.synchronizer.take_momentum(moved.momentum)
            self._bound.weights_are_written()
        self._load(moved.state, moved.own)

    def check_common(self, state_dict: dict[str, object]) -> None:
        """Raise unless `load_common` can load a state dict. Changes nothing."""
        _check_groups(self._optimizer, state_dict)
        self._check(state_dict, _own(state_dict))

    def load_common(self, state_dict: dict[str, object]) -> None:
        """Load a state dict, except for the state of the strategy. Does not communicate."""
        own = _own(state_dict)
        self._check(state_dict, own)
        self._load(state_dict, own)

    def _of_optimizer(self) -> StateDict:
        if self._fused_step is not None:
            self._fused_step.check_whole()
        state: StateDict = self._optimizer.state_dict()
        return state

    def _of_core(self) -> StateDict:
        return _NO_STATE if self._fused_step is None else self._fused_step.state()

    def _with(self, state: dict[str, object], own: dict[str, object]) -> StateDict:
        """Return the optimizer's state, with the states of core and strategy if there are any."""
        if self._fused_step is None and not own["synchronizer"]:
            return state
        return {**state, _KEY: own}

    # ---- by name -------------------------------------------------------------------------------------------------

    @cached_property
    def _names(self) -> dict[int, str]:
        """The names of the trained parameters, by their ids."""
        gradients = self._bound.gradients
        return {id(parameter): name for name, parameter in zip(gradients.names, gradients.parameters, strict=True)}

    @cached_property
    def _holder(self) -> str:
        """The name of the parameter whose state also holds the named tensors."""
        return min(self._names.values())

    @cached_property
    def _strategy_has_state(self) -> bool:
        return bool(self._loop.synchronizer.has_state)

    @property
    def _has_more(self) -> bool:
        """True if there is more to save than the state of the optimizer."""
        return self._strategy_has_state or self._loop.loss_scale is not None or any(self._of_core().values())

    def is_holder(self, parameter: torch.Tensor) -> bool:
        """Tell if the state of this parameter also holds the named tensors."""
        return self._names.get(id(parameter)) == self._holder and self._has_more

    def prepare(self) -> None:
        """Create momentum, moments and master weights with their initial values. Does not communicate."""
        if self._loop.strategy.gradients == "consumed":
            return  # nothing is left for the optimizer
        if self._fused_step is not None:
            self._fused_step.prepare()
            return
        decays = [(group, group["weight_decay"]) for group in self._optimizer.param_groups if "weight_decay" in group]
        try:
            for group, _ in decays:
                group["weight_decay"] = 0.0  # otherwise weight decay would enter momentum and moments
            self._optimizer.step()
        finally:
            for group, decay in decays:
                group["weight_decay"] = decay
        for of_one in self._optimizer.state.values():
            if "step" in of_one:
                of_one["step"] = of_one["step"] * 0

    def _with_names(self, of_each: Mapping[int, Any], own: StateDict) -> dict[int, Any]:
        """Return the states of parameters, with `own` as named tensors in the holder's state.

        Usually only the strategy's state differs between ranks. If the strategy lets each rank train by itself, all
        state differs: the states of parameters then come from one rank, and the named tensors hold the state of each
        rank.
        """
        names = _names_by(itertools.count(), self._optimizer, self._names)
        mine = {"synchronizer"} if own["synchronizer"] else set()
        if self._loop.writes_weights:
            mine |= {*_NO_STATE, "loss_scale", "optimizer"}
            parameters = self._bound.gradients.by_name
            there = {name: of_each[number] for number, name in names.items() if number in of_each}
            own = {**own, "optimizer": _of_all(there, {name: parameters[name] for name in names.values()})}
        entries = {_COMMON: named({key: value for key, value in own.items() if key not in mine})}
        if mine:
            comm = self._loop.comm
            entries[_OWN] = named({key: value for key, value in own.items() if key in mine}, comm.rank, comm.size)
        # If any parameter has a state, PyTorch expects a state of every parameter.
        whole = {**{number: {} for number in names}, **of_each}
        holder = next(number for number, name in names.items() if name == self._holder)
        return {**whole, holder: {**whole[holder], _KEY: entries}}

    # ---- loading -------------------------------------------------------------------------------------------------

    def _check(self, state_dict: dict[str, object], own: dict[str, object] | None) -> None:
        """Raise unless a state dict can be loaded."""
        if self._fused_step is not None:
            _check_groups(self._optimizer, state_dict)
        if own is not None:
            self._training.check(own)

    def _load(self, state_dict: dict[str, object], own: StateDict | None) -> None:
        """Load a checked state dict, except for the state of the strategy."""
        load_alone(self._optimizer, state_dict)
        self._training.load_loss_scale(own)
        if self._fused_step is not None:
            for parameter, name, buffer in _buffers(self._optimizer, state_dict):
                self._optimizer.state[parameter][name] = buffer.to(parameter.device, torch.float32, copy=True)
            self._fused_step.load(_NO_STATE if own is None else own)


class NamedState(UserDict[torch.Tensor, Any]):
    """The state of an optimizer, as seen by PyTorch's functions for checkpoints by name.

    If the state is false, these functions make a step to initialize it. They take names from states of single
    parameters.

    Parameters
    ----------
    optimizer : torch.optim.Optimizer
        The optimizer that has the state.
    checkpoint : Checkpoint
        The optimizer's checkpoints.
    is_new : bool
        True if nothing was trained yet.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, checkpoint: Checkpoint, is_new: bool) -> None:
        self.data = optimizer.state
        self._checkpoint = checkpoint
        self._is_new = is_new

    def __reduce_ex__(self, protocol: SupportsIndex) -> str | tuple[object, ...]:
        """Reduce to the plain state of the optimizer, for copies and pickles."""
        return self.data.__reduce_ex__(protocol)

    def __bool__(self) -> bool:
        """Tell if there is a state, in the optimizer or elsewhere."""
        return bool(self.data) or not self._is_new

    def __getitem__(self, parameter: torch.Tensor) -> Any:
        """Return the state of a parameter; the holder's state also has the key of state kept elsewhere."""
        of_one = self.data[parameter]
        return ChainMap(of_one, {_KEY: {}}) if self._checkpoint.is_holder(parameter) else of_one

    def items(self) -> Any:
        """Return the parameters and their states."""
        return self.data.items()

    def values(self) -> Any:
        """Return the states of the parameters."""
        return self.data.values()


def load_unbound(
    optimizer: torch.optim.Optimizer,
    parameters: Mapping[str, torch.Tensor],
    strategy: Strategy,
    comm: Communicator,
    state_dict: StateDict,
    pending: str | None,
) -> None:
    """Load a state dict on a single rank whose strategy has nothing to do."""
    check_choice(pending)
    names = {id(parameter): name for name, parameter in parameters.items()}
    state_dict = _without_names(comm, optimizer, names, state_dict)
    own = _own(state_dict)
    if own is None or not is_of_another(own, strategy.name):
        load_alone(optimizer, state_dict)
        return
    _check_groups(optimizer, state_dict)
    layout, source = layout_of(parameters), strategy_of(own)
    check_origin(own, layout, strategy.name, type(optimizer).__name__)
    found = Pending.of(own["synchronizer"], source, layout, comm)
    settled = settle(comm, found, pending, (source, strategy.name), takes_residuals=False)
    moved = _moved(comm, optimizer, parameters, strategy, state_dict, own, settled, found, None)
    moved.write(parameters)
    load_alone(optimizer, moved.state)


def _moved(
    comm: Communicator,
    optimizer: torch.optim.Optimizer,
    parameters: Mapping[str, torch.Tensor],
    strategy: Strategy,
    state_dict: StateDict,
    own: StateDict,
    settled: Settled,
    found: Pending,
    fused_step: FusedStep | None,
) -> Moved:
    """Return a state as the strategy loads it. Collective if its ranks have trained by themselves."""
    state = {key: value for key, value in without_names(state_dict).items() if key != _KEY}
    if found.weights is not None:
        core = {key: own.get(key) or {} for key in _NO_STATE}
        state, core = _consolidated(comm, state, core)
        own = {**own, **core}
    return move(optimizer, parameters, strategy, state, own, found, settled, fused_step is not None)


def load_alone(optimizer: torch.optim.Optimizer, state_dict: dict[str, object]) -> None:
    """Load a state dict into an optimizer, ignoring the states of strategy and core."""
    state_dict = without_names(state_dict)
    optimizer.load_state_dict({key: value for key, value in state_dict.items() if key != _KEY})


def without_names(state_dict: StateDict) -> StateDict:
    """Return a state dict without named tensors in the states of parameters."""
    states = {
        number: {key: value for key, value in of_one.items() if key != _KEY}
        for number, of_one in state_dict["state"].items()
    }
    return {**state_dict, "state": {number: of_one for number, of_one in states.items() if of_one}}


def _names_by(numbers: Iterable[object], optimizer: torch.optim.Optimizer, names: Mapping[int, str]) -> dict[Any, str]:
    """Return the names of the trained parameters, by the keys that a state dict uses for parameters."""
    parameters = (parameter for group in optimizer.param_groups for parameter in group["params"])
    pairs = zip(numbers, parameters, strict=False)
    return {number: names[id(parameter)] for number, parameter in pairs if id(parameter) in names}


def _without_names(
    comm: Communicator, optimizer: torch.optim.Optimizer, names: Mapping[int, str], state_dict: StateDict
) -> StateDict:
    """Return a state dict with a top-level entry made from its named tensors.

    Collective if another number of ranks has saved it, and ranks have a state of their own in it.
    """
    entries = next((of_one[_KEY] for of_one in state_dict["state"].values() if of_one.get(_KEY)), None)
    alone = without_names(state_dict)
    if entries is None or _KEY in state_dict:
        return alone
    [common], _ = states_of(entries[_COMMON])
    own = {"synchronizer": None, **common}
    if _OWN in entries:
        own |= _own_of(comm, entries[_OWN])
    optimizer_state = own.pop("optimizer", None)
    if optimizer_state is not None:
        numbers = (number for group in state_dict["param_groups"] for number in group["params"])
        by_number = _names_by(numbers, optimizer, names)
        alone["state"] = {
            number: optimizer_state[name] for number, name in by_number.items() if name in optimizer_state
        }
    return {**alone, _KEY: own}


def _own_of(comm: Communicator, entries: Mapping[str, object]) -> StateDict:
    """Return this rank's state in named tensors; if saved by another number of ranks, a state for any number."""
    states, saved_by = states_of(entries)
    if saved_by in (None, comm.size):
        return states[0]  # type: ignore[no-any-return]
    arrays = []
    for state in states:
        array = with_arrays(state)
        if "optimizer" in state:
            array["optimizer"] = _with_means(_of_trained(state["optimizer"]))
        arrays.append(array)
    return with_tensors(from_plain(of_any_rank(comm, to_plain(arrays), saved_by)))  # type: ignore[no-any-return]


def _own(state_dict: StateDict) -> StateDict | None:
    """Return the states of strategy and core in a state dict, the strategy's with arrays."""
    own: StateDict | None = state_dict.get(_KEY)
    return own if own is None else {**own, "synchronizer": with_arrays(own.get("synchronizer"))}


def with_tensors(state: object) -> Any:
    """Return the state with tensors in place of arrays."""
    if isinstance(state, np.ndarray):
        if state.dtype.name == "bfloat16":
            return torch.from_numpy(state.view(np.int16).copy()).view(torch.bfloat16)
        return torch.from_numpy(np.array(state))
    if isinstance(state, Mapping):
        return {key: with_tensors(value) for key, value in state.items()}
    if isinstance(state, list | tuple):
        return [with_tensors(value) for value in state]
    return state


def with_arrays(state: object) -> Any:
    """Return the state with arrays, on the host, in place of tensors."""
    if isinstance(state, torch.Tensor):
        on_host = state.detach().cpu()
        if on_host.dtype is torch.bfloat16:
            return on_host.view(torch.int16).numpy().view(numpy_dtype("bfloat16"))
        return on_host.numpy()
    if isinstance(state, Mapping):
        return {key: with_arrays(value) for key, value in state.items()}
    if isinstance(state, list | tuple):
        return [with_arrays(value) for value in state]
    return state


def _consolidated(comm: Communicator, state: dict[str, object], of_core: dict[str, object]) -> tuple[Any, Any]:
    """Return an optimizer's state, and the core's part of it, equal on all ranks. Collective.

    Floating-point tensors except "step", such as momentum, are means over the ranks; the rest is rank 0's.
    """
    mine = {**state, "state": _with_means(state["state"]), _KEY: _with_means(of_core)}
    those = from_plain(consolidated(comm, to_plain(mine), means=True))
    core = those.pop(_KEY)
    return {**those, "state": with_tensors(those["state"])}, with_tensors(core)


def _with_means(state: object, key: object = None) -> Any:
    """Return the state with arrays in place of the tensors to average: all floating-point tensors except "step"."""
    if isinstance(state, Mapping):
        return {name: _with_means(value, name) for name, value in state.items()}
    if not isinstance(state, torch.Tensor):
        return state
    on_host = state.detach().cpu()
    if key == "step" or not on_host.is_floating_point():
        return on_host
    return (on_host if on_host.dtype is torch.float64 else on_host.float()).numpy()


def _of_all(states: State, parameters: Mapping[str, torch.Tensor]) -> StateDict:
    """Return states, with zeros for each parameter that has no state: other ranks may have trained this parameter."""
    if not states:
        return {}
    name, pattern = next(iter(states.items()))

    def zeros(value: object, parameter: torch.Tensor) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        is_like_parameter = value.shape == parameters[name].shape
        return torch.zeros_like(parameter, dtype=value.dtype) if is_like_parameter else torch.zeros_like(value)

    return {
        each: states.get(each) or {key: zeros(value, parameter) for key, value in pattern.items()}
        for each, parameter in parameters.items()
    }


def _of_trained(states: State) -> StateDict:
    """Return the states that are not all zeros."""

    def has_been_trained(state: Mapping[str, object]) -> bool:
        return any(bool(value.any()) for value in state.values() if isinstance(value, torch.Tensor))

    return {name: state for name, state in states.items() if has_been_trained(state)}


def _check_groups(optimizer: torch.optim.Optimizer, state_dict: State) -> None:
    """Raise unless a PyTorch optimizer can load this state dict."""
    saved = [group["params"] for group in state_dict["param_groups"]]
    wanted = [group["params"] for group in optimizer.param_groups]
    if [len(group) for group in saved] != [len(group) for group in wanted]:
        message = f"the state is of another model, with {sum(map(len, saved))} parameters in {len(saved)} groups"
        raise ArgumentError(message)
    for parameter, name, buffer in _buffers(optimizer, state_dict):
        if buffer.shape != parameter.shape:
            shapes = f"{tuple(buffer.shape)}, and the parameter {tuple(parameter.shape)}"
            raise ArgumentError(f"the state is of another model: a {name} has shape {shapes}")


def _buffers(optimizer: torch.optim.Optimizer, state_dict: State) -> list[tuple[torch.Tensor, str, torch.Tensor]]:
    """Return (parameter, name, tensor) of each momentum, and each moment of Adam, in this state dict."""
    saved = [number for group in state_dict["param_groups"] for number in group["params"]]
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    return [
        (parameter, name, state_dict["state"][number][name])
        for parameter, number in zip(parameters, saved, strict=True)
        for name in _BUFFERS
        if state_dict["state"].get(number, {}).get(name) is not None
    ]
