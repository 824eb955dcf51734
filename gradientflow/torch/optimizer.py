"""An optimizer whose gradients are averaged over the ranks while backpropagation runs."""

from __future__ import annotations

import itertools
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Literal

import numpy as np
import torch

from gradientflow.communicator import Communicator
from gradientflow.errors import ArgumentError, ArgumentTypeError, ClosedError, NonFiniteError
from gradientflow.job import init
from gradientflow.pools.base import RangeReport
from gradientflow.strategies import Dense, Explanation, Layout, Settings, Strategy, Synchronizer, as_strategy
from gradientflow.training import Batches, Loop, LossScale, TrainingState, join, require_same

from . import checkpoint, devices
from .direct_layer import write_as_usual, write_directly
from .embedding import DirectEmbedding
from .fused_step import FusedStep, check_can_step, settings_of_group, why_fused
from .gradients import ParameterGradients
from .linear import DirectLinear
from .parameters import broadcast_optimizer_state, broadcast_parameters, require_same_values
from .trained import trained_parameters

_DIRECT_LAYERS = (DirectLinear, DirectEmbedding)
_NO_TASK = -1

_Optimizer: Any = torch.optim.Optimizer
_current_task: Callable[[], int] = torch._C._current_graph_task_id  # which backward pass runs in this thread
_current_node: Callable[[], Any] = torch._C._current_autograd_node
_queue_callback: Callable[[Callable[[], None]], None] = torch.autograd.Variable._execution_engine.queue_callback

_numbers = itertools.count()


class _Flushed(threading.local):
    """The optimizers that have flushed gradients in the current backward pass of this thread."""

    def __init__(self) -> None:
        self.optimizers: list[DistributedOptimizer] = []


_flushed = _Flushed()

# The optimizer of each parameter, by the id of the parameter.
_owners: weakref.WeakValueDictionary[int, DistributedOptimizer] = weakref.WeakValueDictionary()


class DistributedOptimizer(_Optimizer):  # type: ignore[misc]
    """A `torch.optim.Optimizer` that steps with the mean of the gradients of all ranks.

    The gradients lie in gradient pools in node memory, one for each dtype: ``parameter.grad`` is a view of a pool.
    Complete gradients are sent while backpropagation goes on, and when ``backward()`` returns, the gradients are the
    means. So clipping, `torch.amp.GradScaler` and everything else that reads gradients before `step` works as in one
    process. Strategies that do not send gradients as they are support less of this, and refuse the rest.
    If the parameters are on a CUDA device, so are the pools, and all calls are ordered by PyTorch's current streams:
    work enqueued in the current stream after ``backward()`` returns sees the means.

    It replaces the optimizer it is made of, and has its parameter groups, state and state dict. With one rank it does
    nothing of its own, unless the core makes the step or the strategy has an effect on one rank. Collective: all ranks
    construct it with the same arguments and models of the same names, shapes and dtypes. They begin with the parameters
    and buffers of rank 0.

    With ``"csc(density=0.1)"`` only the important chunks of gradients are averaged. With this and some other
    strategies, a loss scale, `LARS` or `fused`, kernels of the core make the step of momentum SGD, LARS, Adam or AdamW:
    in one pass over memory, and on float32 master weights of parameters of 16 bits.

    Parameters
    ----------
    optimizer : torch.optim.Optimizer
        The optimizer to replace.
    model : torch.nn.Module
        The model it trains. All of its parameters that require gradients must be in the optimizer; parameters that are
        not in the model must not.
    comm : Communicator, optional
        Whose ranks take part; by default all of the job, on a communicator that is closed with the optimizer.
    strategy : gradientflow.strategies.Strategy or str, optional
        What is sent, and when: an object, or its words, such as ``"csc(density=0.1)"``. By default `strategies.Dense`,
        all gradients in every iteration.
    fusion_threshold : int, float or str, default "auto"
        The least number of bytes of gradients sent together, see `GradientPool`. A strategy has its own.
    wire : {"float32", "float16", "bfloat16"}, optional
        The dtype to which float32 gradients are rounded between nodes. A strategy has its own.
    accumulation_steps : int, default 1
        Average in every n-th backward pass only; gradients add up in between. The sum is not divided by n.
    fused : bool, optional
        Whether the core makes the step. By default only with LARS, a loss scale, `share`, or strategies that need it,
        such as `csc`.
    share : {"node"}, optional
        With "node" the ranks of a node train on one copy of parameters and optimizer state, of which each rank updates
        a slice in every step, while it averages the gradients of that slice. ``grad`` is then not the mean, and must
        not be changed between ``backward()`` and `step`; and only steps may write parameters. A strategy has its own.
    loss_scale : float, "dynamic" or gradientflow.optimizers.LossScale, optional
        The factor by which `scale` multiplies the loss, and `step` divides the gradients. With it, a step with
        gradients that are not finite is skipped, on all ranks.
    broadcast : bool, default True
        Whether to broadcast rank 0's parameters and buffers now, and the parameters of later groups when they are
        added. Without it the parameters have to be the same on all ranks already, bit by bit, which is checked;
        buffers may differ.

    Attributes
    ----------
    comm : Communicator
        Whose ranks take part.
    accumulation_steps : int
        As given.
    strategy : gradientflow.strategies.Strategy
        The strategy.
    loss_scale : gradientflow.optimizers.LossScale or None
        The loss scale.

    Raises
    ------
    gradientflow.errors.ArgumentError
        If the optimizer and the model do not have the same parameters, or these belong to another
        DistributedOptimizer, or are on several devices; or if the core has to make the step and does not support it.
    gradientflow.errors.ArgumentTypeError
        If a parameter is of another dtype than float16, bfloat16, float32 and float64, or neither in CPU memory nor on
        a CUDA device. Where the core makes the step, float64 is not supported.
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

    # True makes GradScaler leave unscaling and the search for infinities to `step`. Where GradScaler is not supported,
    # `step` notices it by this.
    _step_supports_amp_scaling = False

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        model: torch.nn.Module,
        comm: Communicator | None = None,
        *,
        strategy: Strategy | str | None = None,
        fusion_threshold: float | str = "auto",
        wire: str | None = None,
        accumulation_steps: int = 1,
        fused: bool | None = None,
        share: str | None = None,
        loss_scale: LossScale | float | str | None = None,
        broadcast: bool = True,
    ) -> None:
        self._inner = optimizer
        self._number = next(_numbers)
        _check_types(optimizer, model, comm, accumulation_steps)
        self.accumulation_steps = accumulation_steps
        self._model = model
        self._broadcast = broadcast
        self.strategy = _checked_strategy(strategy, fusion_threshold=fusion_threshold, wire=wire, share=share)
        self.loss_scale = LossScale.of(loss_scale)
        if self.loss_scale is not None:
            self.loss_scale.bind(self)
        self._fused_step: FusedStep | None = None
        # Other strategies may keep gradients, or select by magnitude, and would not know that the scale has changed.
        sends_as_they_are = self.strategy.gradients == "mean" and self.strategy.is_identity_on_one_rank
        is_plain = self.strategy.step == "any" and sends_as_they_are and self.loss_scale is None
        self._step_supports_amp_scaling = not is_plain
        self._loop: Loop | None = None
        self._gradients: ParameterGradients | None = None
        self._hooks: list[Any] = []
        self._model_at_start: list[int] = []
        self._pooled: set[int] = set()  # parameters, by their ids
        self._task = _NO_TASK  # the id of the current backward pass
        self._bytes_copied = 0  # to places of synchronizers that are closed
        self._alone = Batches()  # without a loop
        self._closed = False
        self._owns_comm = comm is None
        trained = self._trained()
        reason = why_fused(optimizer, self.strategy, self.loss_scale, fused)
        if reason is not None or self.strategy.gradients == "consumed":
            check_can_step(optimizer, self.strategy, trained, reason or self.strategy.name)
        if reason is not None:
            self._fused_step = FusedStep(optimizer, self.strategy, model)
            self._hooked_step = _Optimizer.profile_hook_step(self._step_of_core)
        self.comm = init() if comm is None else comm
        try:
            self._bind(trained)
        except BaseException:
            self._end(None, None, None)
            raise

    # ---- what torch.optim.Optimizer has --------------------------------------------------------------------------

    def __getattr__(self, name: str) -> Any:
        """Forward everything else to the optimizer it is made of."""
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
        """Return the state dict of the optimizer; that optimizer and a DistributedOptimizer can load each other's.

        An entry "gradientflow" has the state of the strategy, and of the core if this makes the step. State of the
        strategy, such as residuals, is this rank's own: either each rank saves and loads its own state dict, or all use
        `consolidated_state_dict`. It does not communicate.
        """
        return self._state_dict("own")

    def consolidated_state_dict(self) -> dict[str, Any]:
        """Return a state dict that any number of ranks can load, the same on all ranks. Collective.

        It has the sum of the residuals over the ranks; each rank that loads it takes the mean over those that saved it.
        If the strategy lets each rank train by itself, momentum and the like are means over the ranks.
        """
        self._check_open()
        return self._state_dict("consolidated")

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a state dict of a DistributedOptimizer, or of the optimizer it is made of.

        Collective if the strategy has a state, such as residuals; otherwise one rank may load alone, and then call
        `broadcast_optimizer_state`. With a state dict of a plain optimizer, the strategy begins anew.

        Raises
        ------
        gradientflow.errors.ArgumentError
            If the state is of another model or strategy; where loading is collective, on all ranks if one has such a
            state. Nothing is changed then.
        gradientflow.errors.MismatchError
            If the ranks load states of different iterations.
        """
        if self._fused_step is not None:
            self._check_open()
        own = self._own_state(state_dict)
        if self._loop is None or not self._loop.synchronizer.has_state:
            self._check_state(state_dict, own)
        else:

            def check() -> None:
                self._check_state(state_dict, own)
                if self.strategy.gradients != "mean":
                    self._check_weights()

            self._state.load(own, check)
            if self._gradients is not None and self.strategy.gradients != "mean":
                torch.autograd.graph.increment_version(self._gradients.parameters)
        self._load(state_dict, own)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add parameters of the model, for example once they are no longer frozen. Collective.

        Rank 0's values are broadcast, or values are compared, as when the optimizer was made.
        """
        self._check_open()
        had_loop = self._loop is not None
        if self._loop is not None:
            self._loop.check_change()
        self._inner.add_param_group(param_group)
        try:
            trained = self._trained()
            if self._fused_step is not None or self.strategy.gradients == "consumed":
                check_can_step(self._inner, self.strategy, trained, "add_param_group")
            self._bind(trained)
        except BaseException as error:
            self._inner.param_groups.pop()
            if had_loop and self._loop is None:  # no longer bound: it must not go on to train alone
                self._end(type(error), error, error.__traceback__)
            raise

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Zero all gradients, including those of a backward pass that failed halfway.

        Parameters
        ----------
        set_to_none : bool, default True
            Whether parameters that the next backward passes do not reach have no gradient, so that `step` leaves them
            alone, or zeros. With several ranks ``grad`` is a view of the pool when ``backward()`` returns either way.
        """
        self._check_open()
        if self._loop is None:
            self._inner.zero_grad(set_to_none)
        else:
            self._loop.zero(set_to_none)

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Make a step with the mean gradients. Collective.

        Parameters
        ----------
        closure : callable, optional
            Evaluates the model again, and returns the loss; the optimizer gets the mean loss of all ranks.
        """
        self._check_open()
        self._refuse_grad_scaler()
        loop = self._loop
        if loop is None:
            return self._inner.step() if closure is None else self._inner.step(closure)
        if self.strategy.gradients == "consumed":
            self._refuse_late_changes(closure)
        if closure is not None and loop.batches.are_uneven:
            message = "step(closure) does not work inside join(): other ranks may be out of batches"
            raise ArgumentError(message)
        if self._fused_step is not None:
            result = self._make_step(closure)
        elif closure is None:
            self.synchronize()
            result = self._apply(self._inner.step)
        else:
            result = self._inner.step(lambda: self._evaluate(closure))
        self._end_step()
        return result

    def _apply(self, step: Callable[[], Any]) -> Any:
        """Make the step, unless gradients are not finite or the strategy has made it."""
        assert self._loop is not None
        update = self._loop.update
        result = None
        if update is not None and update.kind == "apply" and not self._loop.overflowed:
            with self.comm.span("step"):
                result = step()
        vars(self._inner)["_opt_called"] = True  # for learning-rate schedulers
        return result

    def _end_step(self) -> None:
        """Tell the loop that the step was made or skipped; the strategy may then write weights."""
        assert self._loop is not None
        if self._loop.writes_weights:
            self._check_weights()
        try:
            self._loop.stepped()
        finally:
            self._weights_are_written()

    def _refuse_late_changes(self, closure: Callable[[], Any] | None) -> None:
        """Raise if gradients were changed after they were sent, or a closure would do so."""
        assert self._loop is not None
        assert self._gradients is not None
        what = ""
        if closure is not None:
            what = "step(closure) does not go with it"
        elif self._loop.update is not None and self._gradients.changed:
            what = "gradients that are changed after backward(), as by clipping, do not go with it"
        if what:
            message = f"{self.strategy.name} has sent the gradients when backward() returns: {what}"
            raise ArgumentError(message)

    def _check_weights(self) -> None:
        """Raise if weights have moved from where the strategy writes them."""
        assert self._gradients is not None
        if self._gradients.weights_have_moved:
            message = (
                "parameters have memory of their own now: a model must not change after DistributedOptimizer has been "
                "made; change it first, or close the optimizer and make a new one"
            )
            raise ArgumentError(message)

    def _weights_are_written(self) -> None:
        if self.strategy.gradients != "mean" and self._gradients is not None:
            torch.autograd.graph.increment_version(self._gradients.parameters)

    @contextmanager
    def common_weights(self) -> Iterator[None]:
        """Put the parameters common to all ranks in place for a ``with`` block, to evaluate or save them in mid-run.

        If the strategy lets each rank train on parameters of its own, the common ones are those of the last exchange
        that this rank has applied. Buffers stay the rank's own. Not collective.
        """
        self._check_open()
        if self._loop is None or self._gradients is None:
            yield
            return
        with self._loop.common_weights():
            torch.autograd.graph.increment_version(self._gradients.parameters)
            yield
        torch.autograd.graph.increment_version(self._gradients.parameters)

    def finish(self) -> None:
        """End training: complete communication under way, and leave the same weights on all ranks. Collective.

        With a strategy that lets weights differ between ranks for a while, buffers, such as the statistics of batch
        normalisation, are averaged as well. Training can go on afterwards.
        """
        self._check_open()
        if self._loop is None:
            return
        if self._loop.writes_weights:
            self._check_weights()
        dropped: NonFiniteError | None = None
        try:
            self._loop.finish()
        except NonFiniteError as error:  # other ranks may not know of it
            dropped = error
        self._weights_are_written()
        if self.strategy.gradients != "mean":
            for buffer in self._model.buffers():
                if buffer.is_floating_point() and buffer.is_contiguous():
                    self.comm.allreduce(devices.shared(buffer), "mean")
        if dropped is not None:
            raise dropped

    def explain(self, **times: float) -> Explanation:
        """Measure the link; explain what the strategy will send for this model, and the expected gain. Collective.

        Parameters
        ----------
        **times
            ``compute_seconds`` and ``backward_seconds``, as in `gradientflow.strategies.Strategy.explain`.
        """
        self._check_open()
        if self._loop is not None:
            return self._loop.synchronizer.explain(**times)
        gradients = ParameterGradients(self._trained(), self._settings_of)
        return self.strategy.explain_layout(self.comm, gradients.layout(), **times)

    def __repr__(self) -> str:
        """Return the text for the optimizer it is made of."""
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
        """Divide the mean gradients by the loss scale, for clipping; `step` does not divide again. Collective.

        Float16 gradients can underflow then. To clip these by norm, leave them scaled, and multiply the limit by
        ``optimizer.loss_scale.value``.
        """
        self.synchronize()
        if self._loop is not None and self._gradients is not None and self.loss_scale is not None:
            if not self._loop.unscaled:
                self._gradients.scale(1 / self.loss_scale.value)
            self._loop.unscaled = True

    @property
    def overflows(self) -> int:
        """Steps that were skipped because a gradient was not finite."""
        return 0 if self.loss_scale is None else self.loss_scale.overflows

    def _refuse_grad_scaler(self) -> None:
        if "grad_scale" in self.__dict__:  # GradScaler has set it for the call of `step`
            del self.grad_scale, self.found_inf
            message = (
                f"torch.amp.GradScaler does not go with {self.strategy} or loss_scale: use "
                "DistributedOptimizer(..., loss_scale='dynamic') and optimizer.scale(loss).backward() in its place"
            )
            raise ArgumentError(message)

    # ---- the step of the core ------------------------------------------------------------------------------------

    def _make_step(self, closure: Callable[[], Any] | None) -> Any:
        """Make the step with the core, or skip it if gradients are not finite."""
        loss = None
        if closure is None:
            self.synchronize()
        else:
            with torch.enable_grad():
                loss = self._evaluate(closure)
        self._apply(lambda: self._hooked_step(self._inner))
        return loss

    def _step_of_core(self, _: Any) -> None:
        assert self._fused_step is not None
        assert self._loop is not None
        assert self._loop.update is not None
        assert self._gradients is not None
        scale = 1.0 if self.loss_scale is None or self._loop.unscaled else self.loss_scale.value
        error = None
        if self._loop.synchronizer.shared is not None and self._gradients.changed:
            error = ArgumentError(
                "with share='node' gradients are averaged by step(): what changes them after backward(), as clipping "
                "does, does not go with it"
            )
        self._fused_step.step(self._loop.update, 1 / scale, self._loop.tensors.stream, error)

    # ---- averaging -----------------------------------------------------------------------------------------------

    def synchronize(self) -> None:
        """Replace all gradients by their means, if ``backward()`` has not yet done so. Collective.

        Gradients kept by `no_sync` or set by hand are averaged as they are. If a parameter has a gradient on some
        ranks only, it counts as zeros on the others; if it has one on no rank, ``grad`` stays None.
        """
        self._check_open()
        if self._loop is None or self._gradients is None:
            return
        if self._loop.update is None or self._gradients.replaced:
            self._check_model()
            self._loop.synchronize()

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Accumulate the gradients of the backward passes in a ``with`` block without averaging them.

        The next backward pass outside averages the sums; if there is none, `step` does.
        """
        if self._loop is None:
            yield
            return
        with self._loop.no_sync():
            yield

    @contextmanager
    def join(self) -> Iterator[None]:
        """Allow the ranks different numbers of iterations in a ``with`` block. Collective.

        A rank that leaves the block contributes zeros until all have left it. Means are always over all ranks. In the
        end all get the parameters and the optimizer state of a rank that had the most iterations. Ranks that have left
        the block do not take part in its other collective calls.
        """
        self._check_open()
        if self._loop is not None and self._loop.synchronizer.shared is not None:
            message = "join() does not go with share='node': every rank makes a part of every step"
            raise ArgumentError(message)
        with self._alone.uneven() if self._loop is None else join(self._loop, self._broadcast_from):
            yield

    def _broadcast_from(self, root: int) -> None:
        """Broadcast the root's parameters and optimizer state. Collective."""
        broadcast_parameters(dict(self._model.named_parameters()), root, comm=self.comm)
        broadcast_optimizer_state(self, root, comm=self.comm)

    @property
    def synchronizer(self) -> Synchronizer | None:
        """The synchronizer, which `Strategy.bind` has returned; None with one rank, if there is nothing to do."""
        return None if self._loop is None else self._loop.synchronizer

    @property
    def pools(self) -> tuple[Any, ...]:
        """The gradient pools of the strategy, one for each dtype, if it has any."""
        return tuple(getattr(self.synchronizer, "pools", ()))

    @property
    def reports(self) -> tuple[RangeReport, ...]:
        """The reports on each range of gradients, from the last averaging."""
        return () if self._loop is None else self._loop.synchronizer.reports

    @property
    def bytes_sent(self) -> int | None:
        """Bytes this rank sent to others in messages for the last step; None where that is not known."""
        return 0 if self._loop is None else self._loop.bytes_sent

    @property
    def bytes_copied(self) -> int:
        """Bytes of gradients that had to be copied into the pools, in all.

        Gradients of backward passes are written there, which does not count as a copy; those set by hand are copied.
        """
        return self._bytes_copied + (0 if self._gradients is None else self._gradients.bytes_copied)

    # ---- life ----------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Detach from the optimizer it is made of, and from the model. Closing twice is harmless."""
        self._end(None, None, None)

    def __enter__(self) -> DistributedOptimizer:
        """Return the optimizer itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Close it; after an exception without waiting for communication under way."""
        self._end(kind, value, traceback)

    # ---- backward passes -----------------------------------------------------------------------------------------

    def _hook(self, loop: Loop, gradients: ParameterGradients, index: int) -> Callable[[torch.Tensor], None]:
        """Return the hook to call when a parameter has received its gradient in a backward pass."""
        view, ready, used = gradients.views[index], loop.ready, loop.used

        def has_gradient(parameter: torch.Tensor) -> None:
            if _current_task() != self._task:
                self._begin_pass(loop)
            used[index] = True
            elsewhere = None
            if parameter.grad is not view:
                elsewhere = None if loop.hold else gradients.address_elsewhere(index)
                if elsewhere is None:
                    gradients.arrive(index)
            if elsewhere is not None:
                try:
                    ready(index, elsewhere)
                finally:
                    gradients.has_been_read(index)
            elif not loop.hold:
                ready(index)

        return has_gradient

    def _begin_pass(self, loop: Loop) -> None:
        self._task = _current_task()
        loop.begin_pass()
        _queue_callback(lambda: self._end_pass(loop))

    def _end_pass(self, loop: Loop) -> None:
        if self._task == _NO_TASK:
            return
        # A nested backward pass, as of gradient checkpointing, ends the outer one only if all gradients are final.
        if _current_node() is not None and len(loop.order) < len(loop.layout):
            return
        self._task = _NO_TASK
        self._check_model()
        if loop.end_pass():
            _flushed.optimizers.append(self)
            _queue_callback(_synchronize_flushed)  # runs after other optimizers have flushed, too

    def _check_model(self) -> None:
        """Raise if the model has other parameters now, or others of the optimizer require gradients."""
        if self._fused_step is not None and self._fused_step.shared_model is not None:
            self._fused_step.shared_model.check()
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

    def _evaluate(self, closure: Callable[[], Any]) -> Any:
        """Call the user's closure, and return the mean loss over the ranks."""
        loss = closure()
        self.synchronize()
        is_tensor = isinstance(loss, torch.Tensor)
        mean = float(self.comm.allreduce(np.array(loss.item() if is_tensor else float(loss)), "mean"))
        return loss.detach().new_tensor(mean) if is_tensor else mean

    # ---- the model and the pools ---------------------------------------------------------------------------------

    def _trained(self) -> dict[str, torch.Tensor]:
        """Return the parameters to train by name, after checking that this optimizer has them, and no other."""
        trained = trained_parameters(self._inner, self._model)
        for name, parameter in trained.items():
            if _owners.get(id(parameter), self) is not self:
                message = f"{name} belongs to another DistributedOptimizer already: close() that one first"
                raise ArgumentError(message)
        return trained

    def _bind(self, trained: dict[str, torch.Tensor]) -> None:
        """Bind the strategy to these parameters, in place of the previous ones."""
        entries = {name: f"{parameter.dtype} {tuple(parameter.shape)}" for name, parameter in trained.items()}
        settings = {
            "the device": devices.common_device(list(trained.values())).type,
            "accumulation_steps": str(self.accumulation_steps),
            "strategy": repr(self.strategy),
            "the step": "torch.optim's" if self._fused_step is None else f"the core's {type(self._inner).__name__}",
            "loss_scale": repr(self.loss_scale) if self.strategy.gradients == "mean" else str(bool(self.loss_scale)),
            "broadcast": str(self._broadcast),
        }
        require_same(self.comm, "models", {**entries, **settings})
        self._begin_alike({name: each for name, each in trained.items() if id(each) not in self._pooled})
        before = self._detach()
        _owners.update({id(parameter): self for parameter in trained.values()})
        if self.comm.size == 1 and self._fused_step is None and self.strategy.is_identity_on_one_rank:
            self.strategy.bind(self.comm, Layout(("nothing",), ((0,),), ("float32",))).close()  # checks the settings
            return
        # Mostly the order in which backpropagation reaches them.
        gradients = ParameterGradients(dict(reversed(trained.items())), self._settings_of)
        layout = gradients.layout()
        self._gradients = gradients
        self._loop = Loop(
            self.comm,
            self.strategy,
            layout,
            gradients,
            accumulation_steps=self.accumulation_steps,
            loss_scale=self.loss_scale,
            previous=before,
        )
        self._loop.status.rates.now = self._rates
        if before is not None:
            before.close()
        self._loop.synchronizer.check_settings(gradients.settings)
        self._loop.on_new_order = self._places_are_new
        self._model_at_start = self._model_now()
        self._pooled = {id(parameter) for parameter in trained.values()}
        self._places_are_new()

    def _begin_alike(self, added: dict[str, torch.Tensor]) -> None:
        """Make added parameters the same on all ranks, or check them; the first time, those of the whole model."""
        if self.comm.size == 1:
            return
        if self._broadcast:
            broadcast_parameters(added if self._pooled else self._model, comm=self.comm)
        else:
            require_same_values(added if self._pooled else dict(self._model.named_parameters()), self.comm)

    def _rates(self) -> list[float]:
        """Return the learning rates of the parameter groups; 0 for those on a device, which the host would wait for."""
        rates = (group.get("lr") for group in self._inner.param_groups)
        return [0.0 if rate is None or getattr(rate, "is_cuda", False) else float(rate) for rate in rates]

    def _settings_of(self, parameter: torch.Tensor) -> Settings:
        for group in self._inner.param_groups:
            if any(parameter is each for each in group["params"]):
                return settings_of_group(group)
        message = "a parameter is no longer in the optimizer"
        raise ArgumentError(message)

    def _places_are_new(self) -> None:
        """Register the hooks of all parameters, and pass the new places of gradients to the core's step."""
        assert self._loop is not None
        assert self._gradients is not None
        for hook in self._hooks:
            hook.remove()
        self._hooks = []
        for index, parameter in enumerate(self._gradients.parameters):
            register: Any = parameter.register_post_accumulate_grad_hook
            self._hooks.append(register(self._hook(self._loop, self._gradients, index)))
        if self._gradients.takes_any_content:
            write_directly(self._model, self._gradients, _DIRECT_LAYERS)
        if self._fused_step is not None:
            self._fused_step.lay_out(self._gradients, self._loop.layout, self._loop.synchronizer.shared)
            if self._loop.writes_weights:
                its = self._fused_step
                self._loop.use_masters(its.masters(self._loop.layout), its.round_masters, its.update_masters)

    def _detach(self) -> Synchronizer | None:
        """Detach from parameters and their gradients. Return the synchronizer, if there was one."""
        for hook in self._hooks:
            hook.remove()
        self._hooks = []
        if self._loop is None or self._gradients is None:
            return None
        write_as_usual(self._model)
        self._gradients.detach_unused(self._loop.used)
        self._bytes_copied += self._gradients.bytes_copied
        synchronizer = self._loop.synchronizer
        self._loop, self._gradients = None, None
        return synchronizer

    def _model_now(self) -> list[int]:
        return [id(parameter) for module in self._model.modules() for parameter in module._parameters.values()]

    # ---- state ---------------------------------------------------------------------------------------------------

    def _state_dict(self, of_strategy: Literal["own", "consolidated", "none"]) -> dict[str, Any]:
        """Return the state dict, with the given kind of state of the strategy."""
        if self._fused_step is not None:
            self._check_open()
            self._fused_step.check_whole()
        state: dict[str, Any] = self._inner.state_dict()
        if self._loop is None:
            return state
        of_core = {"momentum": {}, "master_weights": {}} if self._fused_step is None else self._fused_step.state()
        if of_strategy == "consolidated":
            own = self._state.consolidated()
            if self.strategy.gradients != "mean":
                state, of_core = checkpoint.consolidated(self.comm, state, of_core)
        else:
            own = self._state.own() if of_strategy == "own" else self._state.common()
        if self._fused_step is None and not own["synchronizer"]:
            return state
        return {**state, checkpoint.KEY: {**checkpoint.with_tensors(own), **of_core}}

    @property
    def _state(self) -> TrainingState:
        """The state of training; its kind has to be the same for loading."""
        assert self._loop is not None
        rate = "inside" if self.strategy.step == "core_rate_in_momentum" else "outside"
        kind = f"{self.strategy.name} with {type(self._inner).__name__}, the learning rate {rate} of momentum"
        return TrainingState(self._loop, kind)

    def _common_state_dict(self) -> dict[str, Any]:
        """Return the part of the state that is the same on all ranks."""
        return self._state_dict("none")

    def _load_common_state_dict(self, state_dict: dict[str, Any]) -> None:
        own = self._own_state(state_dict)
        self._check_state(state_dict, own)
        self._load(state_dict, own)

    @staticmethod
    def _own_state(state_dict: dict[str, Any]) -> dict[str, Any] | None:
        """Return the entry "gradientflow" of a state dict, with arrays in the state of the strategy."""
        own: dict[str, Any] | None = state_dict.get(checkpoint.KEY)
        return own if own is None else {**own, "synchronizer": checkpoint.with_arrays(own.get("synchronizer"))}

    def _check_state(self, state_dict: dict[str, Any], own: dict[str, Any] | None) -> None:
        """Raise unless a state dict can be loaded."""
        if self._loop is None:
            return
        if self._fused_step is not None:
            checkpoint.check_groups(self._inner, state_dict)
        if own is not None:
            self._state.check(own)

    def _load(self, state_dict: dict[str, Any], own: dict[str, Any] | None) -> None:
        """Load a checked state dict, except for the state of the strategy."""
        self._inner.load_state_dict({key: value for key, value in state_dict.items() if key != checkpoint.KEY})
        if self._loop is not None:
            self._state.load_loss_scale(own)
        if self._fused_step is None:
            return
        for parameter, name, buffer in checkpoint.buffers(self._inner, state_dict):
            self._inner.state[parameter][name] = buffer.to(parameter.device, torch.float32, copy=True)
        self._fused_step.load(own if own is not None else {"momentum": {}, "master_weights": {}})

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
        synchronizer = self._detach()
        if synchronizer is not None:
            synchronizer.close(orderly=kind is None)
        for key in [key for key, owner in _owners.items() if owner is self]:
            del _owners[key]
        if self.loss_scale is not None:
            self.loss_scale.release()
        if self._owns_comm:
            self.comm.__exit__(kind, value, traceback)


def _synchronize_flushed() -> None:
    """Wait for the means of several optimizers, in the order of their construction, the same on all ranks."""
    flushed = sorted(_flushed.optimizers, key=lambda optimizer: optimizer._number)
    _flushed.optimizers.clear()
    for optimizer in flushed:
        if optimizer._loop is not None and optimizer._loop.flushed:
            optimizer.synchronize()


def _check_types(optimizer: Any, model: Any, comm: Any, accumulation_steps: Any) -> None:
    """Check the arguments of DistributedOptimizer, except those of the strategy."""
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


def _checked_strategy(strategy: Strategy | str | None, **settings: Any) -> Strategy:
    """Return the strategy; dense communication with these settings by default."""
    if strategy is None:
        return Dense(**settings)
    strategy = as_strategy(strategy)
    default = Dense().settings
    given = [name for name, value in settings.items() if value != default[name]]
    if given:
        name = given[0]
        message = f"fusion_threshold, wire and share are settings of the strategy: {strategy.name}({name}=...)"
        if name in strategy.not_taken:
            message = f"{strategy.name} takes no {name}: {strategy.not_taken[name]}"
        elif name == "share" and name not in strategy.settings:
            message = f"{strategy.name} takes no share: only with dense can the ranks of a node share weights"
        raise ArgumentError(message)
    return strategy
