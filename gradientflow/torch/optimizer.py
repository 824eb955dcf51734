"""An optimizer whose gradients are averaged over the ranks while backpropagation runs."""

from __future__ import annotations

import itertools
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any

import numpy as np
import torch

from gradientflow.base_pool import RangeReport
from gradientflow.communicator import Communicator, init
from gradientflow.errors import (
    ArgumentError,
    ArgumentTypeError,
    ClosedError,
    GradientFlowError,
    NonFiniteError,
)
from gradientflow.optimizers import LossScale
from gradientflow.pool import GradientPool
from gradientflow.sparse_pool import SparseGradientPool
from gradientflow.strategies import CSC, Dense, Explanation, Strategy

from . import checkpoint, devices
from .agreement import raise_together, require_same
from .fused_step import FusedStep, check_can_step, momentum_of, why_fused
from .gradients import PooledGradients, pool_device
from .parameters import broadcast_optimizer_state, broadcast_parameters, require_same_values
from .trained import trained_parameters

_NO_TASK = -1

_Optimizer: Any = torch.optim.Optimizer
_current_task: Callable[[], int] = torch._C._current_graph_task_id  # which backward pass runs in this thread
_current_node: Callable[[], Any] = torch._C._current_autograd_node
_queue_callback: Callable[[Callable[[], None]], None] = torch.autograd.Variable._execution_engine.queue_callback

_numbers = itertools.count()


class _Flushed(threading.local):
    """The optimizers whose gradients are on their way at the end of a backward pass of this thread."""

    def __init__(self) -> None:
        self.optimizers: list[DistributedOptimizer] = []


_flushed = _Flushed()

# The optimizer that a parameter, by its id, belongs to.
_owners: weakref.WeakValueDictionary[int, DistributedOptimizer] = weakref.WeakValueDictionary()


class DistributedOptimizer(_Optimizer):  # type: ignore[misc]
    """A `torch.optim.Optimizer` that steps with the mean of the gradients of all ranks.

    The gradients lie in gradient pools in node memory, one for each dtype: ``parameter.grad`` is a view of a pool. What
    is complete travels while backpropagation goes on, and when ``backward()`` returns, the gradients are the means. So
    clipping, `torch.amp.GradScaler` and everything else that reads gradients before `step` works as in one process.
    Where the parameters are on a CUDA device, so are the pools, and all that is in the order of PyTorch's current
    streams: when ``backward()`` returns, what is put into the stream around it from then on sees the means.

    It takes the place of the optimizer it is made of: parameter groups, state and state dict are that one's. With one
    rank it does nothing of its own, unless it makes the step itself. Collective: all ranks make it with the same
    arguments and models of the same names, shapes and dtypes. They begin with the parameters and buffers of rank 0.

    With `strategies.CSC` only the important chunks of the gradients are averaged. With it, with a loss scale, with
    `LARS`, or if asked for by `fused`, kernels of the core make the step of momentum SGD or LARS: in one pass over
    memory, and on float32 master weights of parameters of 16 bits.

    Parameters
    ----------
    optimizer : torch.optim.Optimizer
        What makes the step.
    model : torch.nn.Module
        The model it trains. All of its parameters that require gradients must be in the optimizer, and no others.
    comm : Communicator, optional
        Whose ranks take part; by default all of the job, on a communicator that is closed with the optimizer.
    strategy : gradientflow.strategies.Dense or CSC, optional
        What of the gradients is sent, and how; by default everything.
    fusion_threshold : int, float or str, default "auto"
        How many bytes of gradients travel together at least, see `GradientPool`. A strategy has its own.
    wire : {"float32", "float16", "bfloat16"}, optional
        What gradients of float32 are rounded to where they travel between nodes. A strategy has its own.
    accumulation_steps : int, default 1
        Average in every n-th backward pass only; gradients add up in between. It does not divide by n.
    fused : bool, optional
        Whether the core makes the step. By default where it must: with CSC, a loss scale, or LARS.
    loss_scale : float, "dynamic" or gradientflow.optimizers.LossScale, optional
        What `scale` multiplies the loss by, and `step` divides the gradients by; a step with gradients that are not
        finite is skipped then, on all ranks.
    broadcast : bool, default True
        Whether all ranks get the parameters and buffers of rank 0 now, and those of later parameter groups when they
        are added. Without it the parameters have to be the same on all ranks already, bit by bit, which is checked;
        buffers may differ.

    Attributes
    ----------
    comm : Communicator
        Whose ranks take part.
    accumulation_steps : int
        As given.
    strategy : gradientflow.strategies.Strategy
        What of the gradients is sent.
    loss_scale : gradientflow.optimizers.LossScale or None
        The loss scale.

    Raises
    ------
    gradientflow.errors.ArgumentError
        If the optimizer and the model do not have the same parameters, or belong to another one of these, or are on
        several devices; or if the core shall make the step and has none like it.
    gradientflow.errors.ArgumentTypeError
        If a parameter is of another dtype than float16, bfloat16, float32 and float64, or neither in CPU memory nor on
        a CUDA device. Where the core makes the step, float64 is not possible.
    gradientflow.errors.MismatchError
        On every rank, if the models differ in names, shapes or dtypes; without `broadcast` also if they differ in
        values.

    Examples
    --------
    >>> import gradientflow.torch as gft
    >>> optimizer = gft.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model)
    >>> for x, y in batches:
    ...     optimizer.zero_grad()
    ...     loss(model(x), y).backward()
    ...     optimizer.step()
    """

    # Whether GradScaler leaves it to `step` to unscale gradients and look for infinities. Where gradients are scaled
    # otherwise, this is how it is noticed.
    _step_supports_amp_scaling = False

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        model: torch.nn.Module,
        comm: Communicator | None = None,
        *,
        strategy: Strategy | None = None,
        fusion_threshold: float | str = "auto",
        wire: str | None = None,
        accumulation_steps: int = 1,
        fused: bool | None = None,
        loss_scale: LossScale | float | str | None = None,
        broadcast: bool = True,
    ) -> None:
        self._inner = optimizer
        self._number = next(_numbers)
        _check_types(optimizer, model, comm, accumulation_steps)
        self.accumulation_steps = accumulation_steps
        self._model = model
        self._broadcast = broadcast
        self.strategy = _checked_strategy(strategy, fusion_threshold, wire)
        self.loss_scale = LossScale.of(loss_scale)
        if self.loss_scale is not None:
            self.loss_scale.bind(self)
        self._fused_step: FusedStep | None = None
        self._step_supports_amp_scaling = self.strategy.is_sparse or self.loss_scale is not None
        self._parts: list[PooledGradients] = []
        self._hooks: list[Any] = []
        self._model_at_start: list[int] = []
        self._pooled: set[int] = set()  # parameters, by their ids
        self._task = _NO_TASK  # the backward pass that is known
        self._passes = 0  # backward passes since the last step
        self._no_sync = False
        self._overflowed = False  # a mean since then was not finite
        self._unscaled = False  # the gradients
        self._hold = False  # whether the gradients of this pass wait for later ones
        self._flushed = False  # all gradients are on their way
        self._synchronized = False  # all gradients are means
        self._order_known = False
        self._orders: list[list[int]] = []  # those of this rank's gradients, until one is known
        self._bytes_copied = 0  # into pools that there are no more
        self._joining = False
        self._has_batches = True
        self._any_has_batches = True  # on any rank, when gradients were averaged last
        self._rounds = 0  # how often gradients were averaged in which this rank had batches
        self._closed = False
        self._owns_comm = comm is None
        trained = self._trained()
        reason = why_fused(optimizer, self.strategy, self.loss_scale, fused)
        if reason is not None:
            check_can_step(optimizer, trained, self.strategy, reason)
            self._fused_step = FusedStep(optimizer, self.strategy)
            self._hooked_step = _Optimizer.profile_hook_step(self._step_of_core)
        self.comm = init() if comm is None else comm
        try:
            self._make_pools(trained)
        except BaseException:
            self._end(None, None, None)
            raise

    # ---- what torch.optim.Optimizer has --------------------------------------------------------------------------

    def __getattr__(self, name: str) -> Any:
        """Take everything else from the optimizer it is made of."""
        if name == "_inner":
            raise AttributeError(name)
        return getattr(self._inner, name)

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """The parameter groups of the optimizer."""
        groups: list[dict[str, Any]] = self._inner.param_groups
        return groups

    @param_groups.setter
    def param_groups(self, groups: list[dict[str, Any]]) -> None:
        self._inner.param_groups = groups

    @property
    def state(self) -> Any:
        """The state of the optimizer, by parameter."""
        return self._inner.state

    @state.setter
    def state(self, state: Any) -> None:
        self._inner.state = state

    def state_dict(self) -> dict[str, Any]:
        """Return the state dict of the optimizer, which that one can load without this, and the other way round.

        Where the core makes the step, it has an entry "gradientflow" with what only this has. With CSC it is this
        rank's own, because of what is held back: each rank saves and loads its own, or all `consolidated_state_dict`.
        """
        return self._state_dict(SparseGradientPool.state_dict)

    def consolidated_state_dict(self) -> dict[str, Any]:
        """Return a state dict that any number of ranks can load, the same on all ranks. Collective with CSC.

        It has the sum over the ranks of what is held back, of which each rank that loads it takes an equal part.
        """
        self._check_open()
        return self._state_dict(SparseGradientPool.consolidated_state_dict)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a state dict of this, or of the optimizer.

        Without CSC on one rank only, if you like: see `broadcast_optimizer_state`. Collective with CSC. The state of an
        optimizer alone has nothing that is held back, so that CSC begins anew with it.

        Raises
        ------
        gradientflow.errors.ArgumentError
            If it is the state of another model or strategy; with CSC on all ranks, also if it is another rank's. Before
            anything is changed.
        gradientflow.errors.MismatchError
            With CSC, if the ranks load states of different iterations.
        """
        if self._fused_step is not None:
            self._check_open()
        if not self.strategy.is_sparse:
            self._check_state(state_dict)
        else:
            error = None
            try:
                self._check_state(state_dict)
            except GradientFlowError as caught:
                error = caught
            raise_together(self.comm, error)
            own = state_dict.get(checkpoint.KEY)
            without = {"the kind of state": "a state of an optimizer alone"}
            require_same(self.comm, "states", checkpoint.summary(own) if own is not None else without)
            self._abandon()
            self._load_pools(own)
        self._load(state_dict)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add parameters of the model, for example once they are no longer frozen. Collective.

        All ranks get those of rank 0, as when the optimizer was made.
        """
        self._check_open()
        self._inner.add_param_group(param_group)
        try:
            trained = self._trained()
            if self._fused_step is not None:
                check_can_step(self._inner, trained, self.strategy, "add_param_group")
            self._make_pools(trained)
        except BaseException:
            self._inner.param_groups.pop()
            raise

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Begin anew: forget all gradients, also those of a backward pass that failed half-way.

        Parameters
        ----------
        set_to_none : bool, default True
            Whether parameters that the next backward passes do not reach are left alone by `step`, or have zeros for
            gradients. With several ranks ``grad`` stays a view of the pool either way.
        """
        self._check_open()
        self._abandon()
        self._passes = 0
        self._flushed = self._synchronized = self._overflowed = self._unscaled = False
        for part in self._parts:
            part.zero(forget=set_to_none)
        if not self._parts:
            self._inner.zero_grad(set_to_none)

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Make a step with the mean gradients. Collective.

        Parameters
        ----------
        closure : callable, optional
            Evaluates the model anew, and returns the loss; the optimizer gets the mean loss of all ranks.
        """
        self._check_open()
        self._refuse_grad_scaler()
        if not self._parts:
            return self._inner.step() if closure is None else self._inner.step(closure)
        if closure is not None and self._joining:
            message = "step(closure) does not work inside join(): other ranks may be out of batches"
            raise ArgumentError(message)
        if self._fused_step is not None:
            result = self._make_step(closure)
        elif closure is None:
            self.synchronize()
            with self.comm.span("step"):
                result = self._inner.step()
        else:
            result = self._inner.step(lambda: self._evaluate(closure))
        self._synchronized = self._unscaled = False
        self._passes = 0
        return result

    def explain(self, **times: float) -> Explanation:
        """Measure the link, and tell what the strategy will send for this model, and what gain to expect. Collective.

        Parameters
        ----------
        **times
            ``compute_seconds`` and ``backward_seconds``, as in `gradientflow.strategies.Strategy.explain`.
        """
        self._check_open()
        trained = list(self._trained().values())
        parameters = sum(parameter.numel() for parameter in trained)
        widest = max((parameter.dtype for parameter in trained), key=lambda dtype: dtype.itemsize)
        dtype = "float32" if widest is torch.float64 else str(widest).removeprefix("torch.")
        device = pool_device(devices.device_of(trained[0]))
        explanation: Explanation = self.strategy.explain(self.comm, parameters, dtype=dtype, device=device, **times)
        return explanation

    def __repr__(self) -> str:
        """Return what it is made of."""
        return f"DistributedOptimizer over {self._inner!r}"

    def __getstate__(self) -> Any:
        """Refuse to be pickled or copied."""
        message = "a DistributedOptimizer cannot be pickled or copied: take its state_dict()"
        raise ArgumentTypeError(message)

    # ---- loss scale ----------------------------------------------------------------------------------------------

    def scale(self, loss: torch.Tensor) -> torch.Tensor:
        """Return the loss times the loss scale, for ``backward()``; without a loss scale the loss itself."""
        if self.loss_scale is None:
            return loss
        wide = loss.float() if loss.dtype in (torch.float16, torch.bfloat16) else loss
        return wide * self.loss_scale.value

    def unscale_(self) -> None:
        """Divide the mean gradients by the loss scale, for clipping; `step` does not do so again. Collective.

        Gradients of float16 can vanish by that: to clip those by their norm, let them be, and multiply the limit by
        ``optimizer.loss_scale.value``.
        """
        self.synchronize()
        if self.loss_scale is not None and not self._unscaled:
            for part in self._parts:
                part.scale(1 / self.loss_scale.value)
            self._unscaled = True

    @property
    def overflows(self) -> int:
        """Steps that were skipped because a gradient was not finite."""
        return 0 if self.loss_scale is None else self.loss_scale.overflows

    def _update_loss_scale(self) -> None:
        """Note how a step went, on all ranks alike."""
        if self.loss_scale is not None:
            self.loss_scale.update(self._overflowed)
            self._set_loss_scale()

    def _set_loss_scale(self) -> None:
        for part in self._parts:
            if isinstance(part.pool, SparseGradientPool) and self.loss_scale is not None:
                part.pool.loss_scale = self.loss_scale.value

    def _refuse_grad_scaler(self) -> None:
        if "grad_scale" in self.__dict__:  # set by GradScaler for the time of `step`
            del self.grad_scale, self.found_inf
            message = (
                "torch.amp.GradScaler does not go with CSC or loss_scale: use DistributedOptimizer(..., "
                "loss_scale='dynamic') and optimizer.scale(loss).backward() in its place"
            )
            raise ArgumentError(message)

    # ---- the step of the core ------------------------------------------------------------------------------------

    def _make_step(self, closure: Callable[[], Any] | None) -> Any:
        """Make the step, or skip it where gradients are not finite."""
        loss = None
        if closure is None:
            self.synchronize()
        else:
            with torch.enable_grad():
                loss = self._evaluate(closure)
        if not self._overflowed:
            with self.comm.span("step"):
                self._hooked_step(self._inner)
        vars(self._inner)["_opt_called"] = True  # for learning-rate schedulers
        self._update_loss_scale()
        self._overflowed = False
        return loss

    def _step_of_core(self, _: Any) -> None:
        assert self._fused_step is not None
        scale = 1.0 if self.loss_scale is None or self._unscaled else self.loss_scale.value
        self._fused_step.step(1 / scale)

    # ---- averaging -----------------------------------------------------------------------------------------------

    def synchronize(self) -> None:
        """Replace all gradients by their means, if ``backward()`` has not yet done so. Collective.

        Gradients kept by `no_sync` or set by hand are averaged as they are. A parameter that has a gradient on some
        ranks only counts as zeros on the others; one that has none on any rank keeps None.
        """
        self._check_open()
        if not self._parts or (self._synchronized and not any(part.replaced for part in self._parts)):
            return
        with self.comm.span("wait"):
            if not self._flushed:
                self._flush()
            self._wait()

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Let gradients of the backward passes in a ``with`` block add up without averaging them.

        The next pass outside averages the sums; without one, `step` does.
        """
        before, self._no_sync = self._no_sync, True
        try:
            yield
        finally:
            self._no_sync = before

    @contextmanager
    def join(self) -> Iterator[None]:
        """Allow the ranks different numbers of iterations in a ``with`` block. Collective.

        A rank that leaves the block goes on contributing zeros until all have left it. Means are always over all ranks.
        Then all get the parameters and the optimizer state of a rank that had the most iterations. Other collective
        calls in the block are not made for ranks that have left it.
        """
        self._check_open()
        if self._joining:
            message = "join() is already under way"
            raise ArgumentError(message)
        self._joining, self._rounds = True, 0
        try:
            yield
            if self._parts:
                self._take_part_until_all_have_left()
        finally:
            self._joining, self._has_batches = False, True

    @property
    def pools(self) -> tuple[GradientPool | SparseGradientPool, ...]:
        """The gradient pools, one for each dtype; none with one rank, unless the core makes the step."""
        return tuple(part.pool for part in self._parts)

    @property
    def reports(self) -> tuple[RangeReport, ...]:
        """How each range of each pool went when gradients were averaged last."""
        return tuple(report for pool in self.pools for report in pool.reports)

    @property
    def bytes_sent(self) -> int | None:
        """Bytes this rank sent to others in messages when gradients were averaged last; None where it is not known."""
        sent = [report.bytes_sent for report in self.reports]
        return None if None in sent else sum(each for each in sent if each is not None)

    @property
    def bytes_copied(self) -> int:
        """Bytes of gradients that had to be copied into the pools, in all.

        Those that backward passes compute are written there, which counts as no copy; those set by hand are copied.
        """
        return self._bytes_copied + sum(part.bytes_copied for part in self._parts)

    # ---- life ----------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Leave the optimizer it is made of, and the model, to themselves. Closing twice is harmless."""
        self._end(None, None, None)

    def __enter__(self) -> DistributedOptimizer:
        """Return the optimizer itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Close it; after an exception without waiting for what is on its way."""
        self._end(kind, value, traceback)

    # ---- backward passes -----------------------------------------------------------------------------------------

    def _hook(self, part: PooledGradients, index: int) -> Callable[[torch.Tensor], None]:
        """Return what is called when a parameter has got its gradient in a backward pass."""
        view, ready, order, used = part.views[index], part.ready, part.order, part.used

        def has_gradient(parameter: torch.Tensor) -> None:
            if _current_task() != self._task:
                self._begin_pass()
            if parameter.grad is not view:
                part.store(index)
            used[index] = True
            if self._hold:
                return
            try:
                ready(index)
            except ArgumentError as error:
                raise part.explain(index, error) from None
            order.append(index)

        return has_gradient

    def _begin_pass(self) -> None:
        self._task = _current_task()
        self._hold = self._no_sync or self._passes + 1 < self.accumulation_steps
        self._synchronized = False
        _queue_callback(self._end_pass)

    def _end_pass(self) -> None:
        if self._task == _NO_TASK:
            return
        # A pass inside another one, as gradient checkpointing makes them, is not the end unless nothing is left.
        if _current_node() is not None and any(len(part.order) < len(part.parameters) for part in self._parts):
            return
        self._task = _NO_TASK
        self._passes += 1
        if not self._hold:
            self._flush()
            _flushed.optimizers.append(self)
            _queue_callback(_synchronize_flushed)  # which comes after other optimizers have flushed too

    def _flush(self) -> None:
        """Have all gradients on their way."""
        if self._model_now() != self._model_at_start:
            message = (
                "the model has other parameters now: a model must not change after DistributedOptimizer has been made; "
                "change it first, or close the optimizer and make a new one"
            )
            raise ArgumentError(message)
        optimized = (parameter for group in self._inner.param_groups for parameter in group["params"])
        if any(parameter.requires_grad and id(parameter) not in self._pooled for parameter in optimized):
            message = (
                "the optimizer has a parameter that requires gradients now and did not when DistributedOptimizer was "
                "made: close it and make a new one, or leave such parameters out of the optimizer until add_param_group"
            )
            raise ArgumentError(message)
        for part in self._parts:
            part.check_momentum(momentum_of(self._inner, self.strategy))
        for part in self._parts:
            part.check()
        if not self._order_known:
            self._orders = [list(part.order) for part in self._parts]
        for part in self._parts:
            part.flush(self._has_batches)
        self._flushed = True

    def _abandon(self) -> None:
        """End what a backward pass has begun and not ended; the other ranks end it in `_wait`."""
        if not any(part.is_under_way for part in self._parts):
            return
        self._orders = [[index for index in part.order if index < len(part.parameters)] for part in self._parts]
        for part in self._parts:
            part.abandon()
        if not self._order_known:
            self._learn_order()

    def _wait(self) -> None:
        """Wait for the means."""
        self._flushed = False
        failures = [error for part in self._parts if (error := self._wait_for(part)) is not None]
        if failures or (self.loss_scale is not None and any(part.overflowed for part in self._parts)):
            self._overflowed = not failures  # an error is told once, and a later step is another one
            for part in self._parts:
                part.put_back()  # where gradients were finite: no step will use them
        if failures:
            raise failures[0]
        self._rounds += self._has_batches
        if not self._order_known:
            self._learn_order()
        self._synchronized = True

    def _wait_for(self, part: PooledGradients) -> NonFiniteError | None:
        """Wait for the means of one dtype. Return an error that must not keep from waiting for the others."""
        try:
            self._any_has_batches = part.wait()
        except NonFiniteError as error:
            return error
        return None

    def _evaluate(self, closure: Callable[[], Any]) -> Any:
        """Call a closure of the user's, and return the mean loss."""
        loss = closure()
        self.synchronize()
        is_tensor = isinstance(loss, torch.Tensor)
        mean = float(self.comm.allreduce(np.array(loss.item() if is_tensor else float(loss)), "mean"))
        return loss.detach().new_tensor(mean) if is_tensor else mean

    def _take_part_until_all_have_left(self) -> None:
        self._has_batches = False
        while True:
            self.zero_grad()
            self.synchronize()
            if not self._any_has_batches:
                break
            self._update_loss_scale()
        for part in self._parts:
            part.put_back()
        self.zero_grad()
        rounds = self.comm.allgather(np.array([self._rounds])).ravel()
        if rounds.min() < rounds.max():
            root = int(rounds.argmax())
            broadcast_parameters(dict(self._model.named_parameters()), root, comm=self.comm)
            broadcast_optimizer_state(self, root, comm=self.comm)

    # ---- the model and the pools ---------------------------------------------------------------------------------

    def _trained(self) -> dict[str, torch.Tensor]:
        """Return the parameters to train by name, after checking that they are those of the optimizer."""
        trained = trained_parameters(self._inner, self._model)
        for name, parameter in trained.items():
            if _owners.get(id(parameter), self) is not self:
                message = f"{name} belongs to another DistributedOptimizer already: close() that one first"
                raise ArgumentError(message)
        return trained

    def _make_pools(self, trained: dict[str, torch.Tensor]) -> None:
        """Make pools and hooks for the parameters, in place of those there were."""
        entries = {name: f"{parameter.dtype} {tuple(parameter.shape)}" for name, parameter in trained.items()}
        settings = {
            "the device": devices.common_device(list(trained.values())).type,
            "accumulation_steps": str(self.accumulation_steps),
            "strategy": type(self.strategy).__name__,
            "the step": "torch.optim's" if self._fused_step is None else f"the core's {type(self._inner).__name__}",
            "loss_scale": repr(self.loss_scale),
            "broadcast": str(self._broadcast),
        }
        require_same(self.comm, "models", {**entries, **settings})
        self._begin_alike({name: each for name, each in trained.items() if id(each) not in self._pooled})
        held = {number: each for part in self._parts for number, each in part.held.items()}
        iteration = max((pool.iteration for pool in self.pools), default=0)
        self._drop_pools()
        _owners.update({id(parameter): self for parameter in trained.values()})
        if self.comm.size == 1 and self._fused_step is None:
            self.strategy.make_pool(self.comm, []).close()  # checks the settings
            return
        by_dtype: dict[torch.dtype, list[tuple[str, torch.Tensor]]] = {}
        for name, parameter in reversed(trained.items()):  # the order in which backpropagation comes to them, mostly
            by_dtype.setdefault(parameter.dtype, []).append((name, parameter))
        for parameters in by_dtype.values():
            part = PooledGradients(
                self.comm,
                parameters,
                self.strategy,
                momentum=momentum_of(self._inner, self.strategy),
                skip_nonfinite=self.loss_scale is not None,
                first_iteration=iteration,
            )
            part.hold(held)
            part.attach()
            self._parts.append(part)
        self._order_known = False
        self._model_at_start = self._model_now()
        self._pooled = {id(parameter) for parameter in trained.values()}
        self._pools_are_new()

    def _begin_alike(self, added: dict[str, torch.Tensor]) -> None:
        """Give all ranks the same values of what is trained from now on; at first of all that the model has."""
        if self.comm.size == 1:
            return
        if self._broadcast:
            broadcast_parameters(added if self._pooled else self._model, comm=self.comm)
        else:
            require_same_values(added if self._pooled else dict(self._model.named_parameters()), self.comm)

    def _pools_are_new(self) -> None:
        self._register_hooks()
        self._set_loss_scale()
        if self._fused_step is not None:
            self._fused_step.lay_out(self._parts)

    def _drop_pools(self) -> None:
        for hook in self._hooks:
            hook.remove()
        for part in self._parts:
            part.detach_unused()
            part.close()
            self._bytes_copied += part.bytes_copied
        self._hooks, self._parts = [], []
        self._flushed = self._synchronized = False

    def _register_hooks(self) -> None:
        for hook in self._hooks:
            hook.remove()
        self._hooks = []
        for part in self._parts:
            for index, parameter in enumerate(part.parameters):
                register: Any = parameter.register_post_accumulate_grad_hook
                self._hooks.append(register(self._hook(part, index)))

    def _learn_order(self) -> None:
        """Lay the pools out in the order in which the gradients of rank 0 came, once there has been one."""
        counts = [len(part.parameters) for part in self._parts]
        seen = [
            [*order, *(index for index in range(count) if index not in order)]
            for order, count in zip(self._orders, counts, strict=True)
        ]
        everything = np.array([any(self._orders), *(index for each in seen for index in each)], np.int64)
        self.comm.broadcast(everything)
        if not everything[0]:
            return
        self._order_known = True
        begin = 1
        for number, (part, count) in enumerate(zip(self._parts, counts, strict=True)):
            order = everything[begin : begin + count].tolist()
            begin += count
            if order != list(range(count)):
                self._parts[number] = part.reordered(self.comm, order)
        self._pools_are_new()

    def _model_now(self) -> list[int]:
        return [id(parameter) for module in self._model.modules() for parameter in module._parameters.values()]

    # ---- state ---------------------------------------------------------------------------------------------------

    def _state_dict(self, state_of: Callable[[SparseGradientPool], Any] | None) -> dict[str, Any]:
        """Return the state dict; without `state_of` that has nothing of the pools."""
        state: dict[str, Any] = self._inner.state_dict()
        if self._fused_step is None:
            return state
        self._check_open()
        own = {
            "of": self._kind,
            "shapes": checkpoint.shapes_of(self._parts),
            "loss_scale": None if self.loss_scale is None else self.loss_scale.state_dict(),
            "pools": None if state_of is None else checkpoint.pool_states(self._parts, state_of),
            **self._fused_step.state(),
        }
        return {**state, checkpoint.KEY: own}

    @property
    def _kind(self) -> str:
        """What a state is of, and fits."""
        is_corrected = getattr(self.strategy, "correction", True)
        correction = "" if is_corrected else " without momentum correction"
        return f"{type(self.strategy).__name__}{correction} with {type(self._inner).__name__}"

    def _common_state_dict(self) -> dict[str, Any]:
        """Return what of the state is the same on all ranks."""
        return self._state_dict(None)

    def _load_common_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._check_state(state_dict)
        self._load(state_dict)

    def _check_state(self, state_dict: dict[str, Any]) -> None:
        """Raise unless a state dict can be loaded."""
        if self._fused_step is not None:
            checkpoint.check_groups(self._inner, state_dict)
            if checkpoint.KEY in state_dict:
                checkpoint.check(state_dict[checkpoint.KEY], self._kind, self._parts)

    def _load(self, state_dict: dict[str, Any]) -> None:
        """Load a state dict that has been checked, aside from what is held back."""
        self._inner.load_state_dict({key: value for key, value in state_dict.items() if key != checkpoint.KEY})
        if self._fused_step is None:
            return
        for parameter, momentum in checkpoint.momentum_buffers(self._inner, state_dict):
            buffer = momentum.to(parameter.device, torch.float32, copy=True)
            self._inner.state[parameter]["momentum_buffer"] = buffer
        own = state_dict.get(checkpoint.KEY)
        self._fused_step.load(own if own is not None else {"momentum": {}, "master_weights": {}})
        if own is not None and own["loss_scale"] is not None and self.loss_scale is not None:
            self.loss_scale.load_state_dict(own["loss_scale"])
            self._set_loss_scale()

    def _load_pools(self, own: dict[str, Any] | None) -> None:
        """Go on from what sparse pools have held back, in the order that they had. Collective."""
        for number, part in enumerate(self._parts):
            if own is None:
                part.begin_anew()
                continue
            names = own["pools"][part.pool.dtype]["names"]
            if names != part.names:
                part = self._parts[number] = part.reordered(self.comm, [part.names.index(name) for name in names])
            state = checkpoint.pool_state(part, own["pools"])
            part.load(state)
            self._order_known = self._order_known or state["iteration"] > 0
        self._flushed = self._synchronized = self._overflowed = self._unscaled = False
        self._pools_are_new()

    # ---- helpers -------------------------------------------------------------------------------------------------

    def _check_open(self) -> None:
        if self._closed:
            message = "the optimizer is closed"
            raise ClosedError(message)

    def _end(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._closed = True
        if self._fused_step is not None:
            self._fused_step.close()
        for part in self._parts:
            part.end(kind, value, traceback)
        self._drop_pools()
        for key in [key for key, owner in _owners.items() if owner is self]:
            del _owners[key]
        if self.loss_scale is not None:
            self.loss_scale.release()
        if self._owns_comm:
            self.comm.__exit__(kind, value, traceback)


def _synchronize_flushed() -> None:
    """Wait for the means of several optimizers, on all ranks in the same order: that in which they were made."""
    flushed = sorted(_flushed.optimizers, key=lambda optimizer: optimizer._number)
    _flushed.optimizers.clear()
    for optimizer in flushed:
        if optimizer._flushed:
            optimizer.synchronize()


def _check_types(optimizer: Any, model: Any, comm: Any, accumulation_steps: Any) -> None:
    """Check the arguments of DistributedOptimizer, the settings of its pools aside."""
    if not isinstance(optimizer, torch.optim.Optimizer) or isinstance(optimizer, DistributedOptimizer):
        message = f"the optimizer is a {type(optimizer).__name__}: what is needed is an optimizer of torch.optim"
        raise ArgumentTypeError(message)
    if not isinstance(model, torch.nn.Module):
        message = f"the model is a {type(model).__name__}: what is needed is a torch.nn.Module"
        raise ArgumentTypeError(message)
    if comm is not None and not isinstance(comm, Communicator):
        message = f"comm is a {type(comm).__name__}: what is needed is a gradientflow.Communicator"
        raise ArgumentTypeError(message)
    if not isinstance(accumulation_steps, int) or accumulation_steps < 1:
        message = f"accumulation_steps is a number of 1 or more, not {accumulation_steps!r}"
        raise ArgumentError(message)


def _checked_strategy(strategy: Any, fusion_threshold: Any, wire: str | None) -> Any:
    """Return the strategy."""
    if strategy is None:
        return Dense(fusion_threshold=fusion_threshold, wire=wire)
    if not isinstance(strategy, Dense | CSC):
        message = f"the strategy is a {type(strategy).__name__}: what is needed is gradientflow.strategies.Dense or CSC"
        raise ArgumentTypeError(message)
    if fusion_threshold != "auto" or wire is not None:
        message = f"fusion_threshold and wire are settings of the strategy: {type(strategy).__name__}(wire=...)"
        raise ArgumentError(message)
    return strategy
