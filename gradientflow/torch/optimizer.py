"""An optimizer whose gradients are averaged over the ranks while backpropagation runs."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from functools import partial
from types import TracebackType
from typing import Any, NoReturn

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from gradientflow.agreement import failing_together, require_same_kinds
from gradientflow.annotations import ParameterGroup, StateDict
from gradientflow.communicator import Communicator
from gradientflow.errors import ArgumentError, ArgumentTypeError, ClosedError
from gradientflow.job import init
from gradientflow.metrics.across import across_ranks as over_ranks
from gradientflow.metrics.registry import Values
from gradientflow.metrics.watch import Watched, watch
from gradientflow.plain import pack
from gradientflow.pools.base import BasePool, RangeReport
from gradientflow.strategies import (
    Comparison,
    Dense,
    Explanation,
    Layout,
    Strategy,
    Synchronizer,
    as_strategy,
    compare,
    default_strategy,
)
from gradientflow.strategies.comparison import CANDIDATES
from gradientflow.training import Loop, LossScale
from gradientflow.training.batches import Batches
from gradientflow.training.changing_ranks import Replica
from gradientflow.training.meter import Meter
from gradientflow.training.ranks import FixedRanks, OverRanks
from gradientflow.training.survival import check_on_failure, ranks_of

from . import devices
from .bound_model import BoundModel
from .checkpoint import Checkpoint, NamedState, load_unbound
from .fused_step import FusedStep, check_can_step, settings_of_parameter, why_fused
from .gradients import ParameterGradients, layout_of
from .parameters import make_equal
from .plain_tensors import from_plain, to_plain
from .step import Step
from .trained import release, reserve, trained_parameters

_numbers = itertools.count()


class DistributedOptimizer(torch.optim.Optimizer, OverRanks):
    """A `torch.optim.Optimizer` that steps with the mean of the gradients of all ranks.

    The gradients lie in gradient pools in node memory, one for each dtype: ``parameter.grad`` is a view of a pool.
    Complete gradients are sent while backpropagation continues, and when ``backward()`` returns, the gradients are the
    means. So clipping, `torch.amp.GradScaler` and any other code that reads gradients before `step` works as in one
    process. Strategies that change gradients before they send them support less of this, and refuse the rest. If the
    parameters are on a CUDA device, so are the pools, and PyTorch's current streams order all calls: work enqueued in
    the current stream after ``backward()`` returns sees the means.

    It replaces the wrapped optimizer, and has its parameter groups, state and state dict. With one rank it only
    forwards calls to the wrapped optimizer, unless the core makes the step or the strategy has an effect on one rank.
    Collective: all ranks construct it with the same arguments and models of the same names, shapes and dtypes. All
    ranks begin with the parameters and buffers of rank 0.

    With ``"csc(density=0.1)"`` only the important chunks of gradients are averaged. With this and some other
    strategies, a loss scale, `LARS` or `fused`, kernels of the core make the step of momentum SGD, LARS, Adam or AdamW:
    in one pass over memory, and on float32 master weights of 16-bit parameters.

    Parameters
    ----------
    optimizer : torch.optim.Optimizer
        The optimizer to wrap.
    model : torch.nn.Module
        The model that it trains. All of its parameters that require gradients must be in the optimizer; parameters
        outside the model must not.
    comm : Communicator, optional
        The ranks that take part; by default all ranks of the job, on a communicator that is closed with the optimizer.
    strategy : gradientflow.strategies.Strategy or str, optional
        The gradients to send, and when: a strategy, or its text, such as ``"csc(density=0.1)"``. By default
        `strategies.Dense`: all gradients in every iteration.
    fusion_threshold : int, float or str, default "auto"
        The least number of bytes of gradients sent together, see `GradientPool`. Only without `strategy`.
    wire : str, optional
        The format to which float32 gradients are rounded between nodes, as in `Communicator.allreduce`. Only without
        `strategy`.
    accumulation_steps : int, default 1
        Average only in every n-th backward pass; gradients add up in between. The sum is not divided by n.
    fused : bool, optional
        True to have the core make the step. By default only with LARS, a loss scale, `share`, or strategies that need
        it, such as `csc`.
    share : {"node"}, optional
        With "node" the ranks of a node train on one copy of parameters and optimizer state, of which each rank updates
        a slice in every step, while it averages the gradients of that slice. ``grad`` is then not the mean, and must
        not be changed between ``backward()`` and `step`; and only steps may write parameters. Only without
        `strategy`.
    loss_scale : float, "dynamic" or gradientflow.optimizers.LossScale, optional
        The factor by which `scale` multiplies the loss, and `step` divides the gradients. If given, all ranks skip a
        step with infinite or NaN gradients.
    broadcast : bool, default True
        True to broadcast rank 0's parameters and buffers now, and the parameters of later groups when they are added.
        If False, the parameters must already be equal on all ranks, bit by bit, which is checked; buffers may differ.
    on_failure : {"raise", "continue"}
        Reaction to a rank that dies or does not answer: raise the error, or continue with the survivors, see `steps`.
        After a survived loss, gradients are zero, and `step` makes no step.
    min_ranks : int, optional
        Least number of survivors, as in `gradientflow.Communicator.recover`.

    Attributes
    ----------
    accumulation_steps : int
        As given.
    strategy : gradientflow.strategies.Strategy
        The strategy.
    loss_scale : gradientflow.optimizers.LossScale or None
        The loss scale.

    Raises
    ------
    gradientflow.errors.ArgumentError
        If the optimizer and the model have different parameters, or these belong to another DistributedOptimizer or are
        on several devices; if the core has to make the step and does not support it; or if DistributedDataParallel
        averages the model's gradients over the same ranks.
    gradientflow.errors.ArgumentTypeError
        If a parameter is neither float16, bfloat16, float32 nor float64, or neither in CPU memory nor on a CUDA device.
        Where the core makes the step, float64 is not supported.
    gradientflow.errors.MismatchError
        On every rank, if the models differ in names, shapes or dtypes; without `broadcast` also in values.

    Examples
    --------
    >>> import gradientflow.torch as gft
    >>> optimizer = gft.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model)
    >>> for x, y in batches:
    ...     optimizer.zero_grad()
    ...     loss(model(x), y).backward()
    ...     optimizer.step()
    """

    # If True, GradScaler leaves unscaling and the search for infinities to `step`. If GradScaler is not supported,
    # `step` can then detect it.
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
        on_failure: str = "raise",
        min_ranks: int | None = None,
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
        # Other strategies may keep gradients, or select by magnitude, and would not notice a change of the scale.
        sends_as_they_are = self.strategy.gradients == "mean" and self.strategy.is_identity_on_one_rank
        is_plain = self.strategy.step == "any" and sends_as_they_are and self.loss_scale is None
        goes_on = check_on_failure(on_failure, min_ranks)
        self._step_supports_amp_scaling = goes_on or not is_plain
        self._bound: BoundModel | None = None  # these three are None with one rank, if there is nothing to do
        self._checkpoint: Checkpoint | None = None
        self._step: Step | None = None
        self._alone = Batches()  # steps without a training loop
        self._is_new = True  # True until a step was made or a state loaded
        self._bytes_copied = 0  # bytes copied to places of closed synchronizers
        self._closed = False
        self._owns_comm = comm is None
        trained = trained_parameters(optimizer, model, self)
        reason = why_fused(optimizer, self.strategy, self.loss_scale, fused)
        if reason is not None or self.strategy.gradients == "consumed":
            check_can_step(optimizer, self.strategy, trained, reason or self.strategy.name)
        if reason is not None:
            self._fused_step = FusedStep(optimizer, self.strategy, model)
        self._comm = init() if comm is None else comm
        self._ranks: FixedRanks = FixedRanks(self._comm)
        self._meter = Meter()
        self._watched: Watched | None = None
        self._on_failure = {"on_failure": on_failure, "min_ranks": str(min_ranks)}
        replica = Replica(
            lambda with_weights: to_plain(self._replica(with_weights)),
            lambda plain, is_new: self._load_replica(from_plain(plain), is_new),
        )
        try:
            _check_not_averaged(model, self._comm)
            self._ranks = ranks_of(self._comm, on_failure, min_ranks, replica)
            name = f"DistributedOptimizer with {self.strategy.name}"
            self._watched = watch("training", name, self._comm, self._meter.live, self._ranks.here)
            self._ranks.make(partial(self._bind, trained))
        except BaseException:
            self.close()
            raise

    def _bind(self, trained: dict[str, torch.Tensor], comm: Communicator) -> None:
        """Bind the strategy to these parameters, in place of the previous ones."""
        entries = {name: f"{parameter.dtype} {tuple(parameter.shape)}" for name, parameter in trained.items()}
        step = "torch.optim's" if self._fused_step is None else f"the core's {type(self._inner).__name__}"
        settings = {
            "the device": devices.common_device(list(trained.values())).type,
            "accumulation_steps": str(self.accumulation_steps),
            "loss_scale": repr(self.loss_scale) if self.strategy.gradients == "mean" else str(bool(self.loss_scale)),
            "broadcast": str(self._broadcast),
            **self._on_failure,
        }
        others = {"strategies": {"strategy": repr(self.strategy)}, "optimizers": {"the step": step}}
        others["settings"] = settings
        if self._ranks.may_change:
            buffers = {name: f"{each.dtype} {tuple(each.shape)}" for name, each in self._model.named_buffers()}
            self._ranks.entries = {"models": {**entries, **buffers}, **others}
            with failing_together(comm):  # errors come here, not when a rank dies
                pack(to_plain(self._inner.state_dict()["param_groups"]), "param_groups")
        require_same_kinds(comm, {"models": entries, **others})
        if comm.size > 1:
            added = None
            if self._bound is not None:
                has_place = self._bound.gradients.has_place_for
                added = {name: each for name, each in trained.items() if not has_place(each)}
            make_equal(self._model, added, self._broadcast, comm)
        previous = self._detach()
        reserve(trained.values(), self)
        is_alone = comm.size == 1 and not self._ranks.may_change  # other ranks may join a survivor
        if is_alone and self._fused_step is None and self.strategy.is_identity_on_one_rank:
            self.strategy.bind(comm, Layout(("nothing",), ((0,),), ("float32",))).close()  # checks the settings
            return
        ordered = dict(reversed(list(trained.items())))  # roughly the order in which backpropagation reaches them
        gradients = ParameterGradients(ordered, partial(settings_of_parameter, self._inner))
        loop = Loop(
            self._ranks,
            self.strategy,
            layout_of(ordered),
            gradients,
            accumulation_steps=self.accumulation_steps,
            loss_scale=self.loss_scale,
            previous=previous,
            meter=self._meter,
        )
        self._bound = bound = BoundModel(self._model, self._inner, loop, gradients, self._fused_step)
        self._checkpoint = Checkpoint(bound, self._inner, self._fused_step)
        self._step = Step(bound, self._inner, self._fused_step)
        if previous is not None:
            previous.close()
        bound.start(self._number)

    def _detach(self) -> Synchronizer | None:
        """Detach from parameters and gradients. Return the synchronizer if there was one."""
        bound, self._bound, self._checkpoint, self._step = self._bound, None, None, None
        if bound is None:
            return None
        self._bytes_copied += bound.gradients.bytes_copied
        return bound.detach()

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError("the optimizer is closed")

    # ---- interface of torch.optim.Optimizer ----------------------------------------------------------------------

    def __getattr__(self, name: str) -> Any:
        """Forward all other attributes to the wrapped optimizer."""
        if name == "_inner":
            raise AttributeError(name)
        return getattr(self._inner, name)

    @property
    def param_groups(self) -> list[ParameterGroup]:
        """The parameter groups of the optimizer."""
        return self._inner.param_groups

    @param_groups.setter
    def param_groups(self, groups: list[ParameterGroup]) -> None:
        self._inner.param_groups = groups

    @property
    def state(self) -> Any:
        """The state of the optimizer, by parameter."""
        if self._checkpoint is None:
            return self._inner.state
        return NamedState(self._inner, self._checkpoint, self._is_new)

    @state.setter
    def state(self, state: defaultdict[torch.Tensor, StateDict]) -> None:
        self._inner.state = state

    def state_dict(self) -> StateDict:
        """Return the state dict of the optimizer. The wrapped optimizer can load it, and vice versa.

        An entry "gradientflow" has the state of the strategy, and of the core if it makes the step. State of the
        strategy, such as residuals, is this rank's own: either each rank saves and loads its own state dict, or all use
        `consolidated_state_dict`. It does not communicate.
        """
        if self._fused_step is not None:
            self._check_open()
        return self._inner.state_dict() if self._checkpoint is None else self._checkpoint.own(bool(self.state))

    def consolidated_state_dict(self) -> StateDict:
        """Return a state dict equal on all ranks, which any number of ranks can load. Collective.

        It has the sum of the residuals over the ranks; each loading rank takes the mean over the ranks that saved it.
        If the strategy lets each rank train by itself, momentum and the like are means over the ranks.
        """
        self._check_open()
        return self._inner.state_dict() if self._checkpoint is None else self._checkpoint.consolidated()

    def load_state_dict(self, state_dict: dict[str, object], pending: str | None = None) -> None:
        """Load a state dict of a DistributedOptimizer with any strategy, or of the wrapped optimizer.

        Collective if this strategy or the saved strategy has a state, such as residuals; otherwise a rank may load
        alone, and then call `broadcast_optimizer_state`. With a state dict of a plain optimizer, or of another
        strategy, the strategy restarts.

        Parameters
        ----------
        state_dict : dict
            The state dict. Load the model before it.
        pending : {"apply", "drop"}, optional
            Use of the gradients and steps that a state of another strategy has kept back, and this one cannot take.
            "apply": the optimizer makes one step with the mean of the residuals, and weights that differ between ranks
            become their mean. "drop": they are lost, and ranks go back to their last common weights. By default they
            are an error; if there are none, the state is loaded.

        Raises
        ------
        gradientflow.errors.ArgumentError
            If the state is from another model or kind of optimizer, or something is pending in it and cannot be used as
            told; where loading is collective, on all ranks if one rank has such a state. Nothing is changed then.
        gradientflow.errors.MismatchError
            If the ranks load states of different iterations.
        """
        if self._fused_step is not None:
            self._check_open()
        if self._checkpoint is None:
            trained = trained_parameters(self._inner, self._model, self)
            load_unbound(self._inner, trained, self.strategy, self._comm, state_dict, pending)
        else:
            self._checkpoint.load(state_dict, pending)
        self._is_new = False

    def add_param_group(self, param_group: dict[str, object]) -> None:
        """Add parameters of the model, for example once they are no longer frozen. Collective.

        As in the constructor, rank 0's values are broadcast, or values are compared.
        """
        self._check_open()
        before = self._bound
        if before is not None:
            before.loop.check_change()
        self._inner.add_param_group(param_group)
        try:
            trained = trained_parameters(self._inner, self._model, self)
            if self._fused_step is not None or self.strategy.gradients == "consumed":
                check_can_step(self._inner, self.strategy, trained, "add_param_group")
            self._bind(trained, self._ranks.here)
        except BaseException as error:
            self._inner.param_groups.pop()
            if before is not None and self._bound is None:  # now unbound: it must not continue to train alone
                self.__exit__(type(error), error, error.__traceback__)
            raise

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Zero all gradients, including partial gradients of a failed backward pass.

        Parameters
        ----------
        set_to_none : bool, default True
            If True, parameters that the next backward passes do not reach have no gradient, so that `step` leaves them
            alone; otherwise they have zeros. With several ranks ``grad`` is a view of the pool when ``backward()``
            returns.
        """
        self._check_open()
        if self._bound is None:
            self._inner.zero_grad(set_to_none)
        else:
            self._bound.loop.zero(set_to_none)

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Make a step with the mean gradients. Collective.

        Parameters
        ----------
        closure : callable, optional
            Function that evaluates the model again and returns the loss. The wrapped optimizer gets the mean loss of
            all ranks.
        """
        self._check_open()
        self._refuse_grad_scaler()
        if closure is not None and self._ranks.may_change:
            raise ArgumentError("step(closure) does not go with on_failure='continue'")
        if self._step is None:
            result = self._inner.step() if closure is None else self._inner.step(closure)
            self._meter.stepped(self._comm.bytes_sent)
            return result
        is_new, self._is_new = self._is_new, False
        if is_new and self._checkpoint is not None and self._step.is_for_state:
            return self._checkpoint.prepare()
        return self._step(closure)

    def metrics(self, across_ranks: bool = False) -> Values:
        """Return metrics of the last step, and means of the last 100 steps, by name; see `gradientflow.metrics`."""
        self._check_open()
        found = self._meter.values() if self._bound is None else self._bound.loop.metrics()
        return over_ranks(self.comm, found) if across_ranks else found

    @contextmanager
    def common_weights(self) -> Iterator[None]:
        """Put the parameters common to all ranks in place for a ``with`` block, to evaluate or save them in mid-run.

        If the strategy lets each rank train on its own parameters, the common parameters date from the last exchange
        that this rank has applied. Buffers stay this rank's. Not collective.
        """
        self._check_open()
        with nullcontext() if self._bound is None else self._bound.common_weights():
            yield

    def finish(self) -> None:
        """End training: complete communication under way, and leave the same weights on all ranks. Collective.

        With a strategy that lets weights differ between ranks for a while, buffers, such as the statistics of batch
        normalization, are averaged as well. Training can continue afterwards.
        """
        self._check_open()
        if self._bound is not None:
            self._bound.finish()

    def explain(self, **times: float) -> Explanation:
        """Measure the link; explain what the strategy will send for this model, and the expected gain. Collective.

        Parameters
        ----------
        **times
            ``compute_seconds`` and ``backward_seconds``, as in `gradientflow.strategies.Strategy.explain`.
        """
        self._check_open()
        if self._bound is not None:
            return self._bound.loop.synchronizer.explain(**times)
        return self.strategy.explain_layout(self.comm, self._layout, **times)

    def tune(
        self,
        strategies: str = CANDIDATES,
        *,
        lossless: bool = False,
        compute_seconds: float,
        backward_seconds: float | None = None,
    ) -> Comparison:
        """Measure the link; compare the predicted steps of strategies for this model. Collective; changes nothing.

        Strategies that refuse the optimizer's momentum are left out.

        Parameters
        ----------
        strategies, lossless, compute_seconds, backward_seconds
            As in `gradientflow.strategies.compare`.

        Returns
        -------
        gradientflow.strategies.Comparison
            The steps, and advice which strategy to take; its `str` is a table.
        """
        self._check_open()
        layout = self._layout if self._bound is None else self._bound.loop.layout
        return compare(
            self.comm,
            layout,
            self.strategy,
            strategies,
            lossless=lossless,
            momentum=any(group.get("momentum") or "betas" in group for group in self.param_groups),
            compute_seconds=compute_seconds,
            backward_seconds=backward_seconds,
        )

    @property
    def _layout(self) -> Layout:
        """The tensors, before the optimizer is bound to them."""
        return layout_of(trained_parameters(self._inner, self._model, self))

    def __repr__(self) -> str:
        """Return text that names the wrapped optimizer."""
        return f"DistributedOptimizer over {self._inner!r}"

    def __getstate__(self) -> NoReturn:
        """Refuse to be pickled or copied."""
        raise ArgumentTypeError("a DistributedOptimizer cannot be pickled or copied: take its state_dict()")

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
        if self._bound is not None:
            self._bound.unscale()

    @property
    def overflows(self) -> int:
        """Steps that were skipped because a gradient was not finite."""
        return 0 if self.loss_scale is None else self.loss_scale.overflows

    def _refuse_grad_scaler(self) -> None:
        if "grad_scale" in self.__dict__:  # set by GradScaler for the call of `step`
            del self.grad_scale, self.found_inf
            raise ArgumentError(
                f"torch.amp.GradScaler does not go with {self.strategy}, loss_scale or on_failure='continue': use "
                "DistributedOptimizer(..., loss_scale='dynamic') and optimizer.scale(loss).backward() in its place"
            )

    # ---- failed ranks --------------------------------------------------------------------------------------------

    def _loop_now(self) -> Loop:
        assert self._bound is not None
        return self._bound.loop

    def _replica(self, with_weights: bool) -> object:
        """Return parameters, the state that is equal on all ranks, and this rank's buffers."""
        assert self._bound is not None
        assert self._checkpoint is not None
        parameters = zip(self._bound.gradients.names, self._bound.gradients.parameters, strict=True)
        copies = {name: parameter.detach().clone() for name, parameter in parameters if with_weights}
        buffers = {name: buffer.detach().clone() for name, buffer in self._model.named_buffers()}
        return copies, self._checkpoint.common(), buffers

    def _load_replica(
        self, replica: tuple[Mapping[str, torch.Tensor], StateDict, Mapping[str, torch.Tensor]], is_new: bool
    ) -> None:
        """Load a replica; on a joiner also rates and buffers. The giver may already have the rates of its next step."""
        assert self._bound is not None
        assert self._checkpoint is not None
        parameters, state, buffers = replica
        state |= {} if is_new else {"param_groups": self._inner.state_dict()["param_groups"]}
        self._checkpoint.check_common(state)
        with torch.no_grad():
            for name, parameter in zip(self._bound.gradients.names, self._bound.gradients.parameters, strict=True):
                if name in parameters:
                    parameter.copy_(parameters[name])
            for name, buffer in self._model.named_buffers() if is_new else ():
                buffer.copy_(buffers[name])
        self._checkpoint.load_common(state)

    # ---- averaging -----------------------------------------------------------------------------------------------

    def synchronize(self) -> None:
        """Replace all gradients by their means, if ``backward()`` has not yet done so. Collective.

        Gradients kept by `no_sync` or set by hand are averaged as they are. If only some ranks have a gradient of a
        parameter, it counts as zeros on the remaining ranks; if no rank has one, ``grad`` stays None.
        """
        self._check_open()
        if self._bound is not None:
            self._bound.synchronize()

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Accumulate the gradients of the backward passes in a ``with`` block without averaging them.

        The next backward pass outside averages the sums; if there is none, `step` averages them.
        """
        with nullcontext() if self._bound is None else self._bound.loop.no_sync():
            yield

    @contextmanager
    def join(self) -> Iterator[None]:
        """Allow the ranks different numbers of iterations in a ``with`` block. Collective.

        A rank that leaves the block contributes zeros until all ranks have left it. Means are always over all ranks. At
        the end all ranks get the parameters and the optimizer state of a rank with the most iterations. Ranks that have
        left the block do not take part in its other collective calls.
        """
        self._check_open()
        with self._alone.uneven() if self._bound is None else self._bound.join(self):
            yield

    @property
    def synchronizer(self) -> Synchronizer | None:
        """The synchronizer, returned by `Strategy.bind`; None with one rank, if there is nothing to do."""
        return None if self._bound is None else self._bound.loop.synchronizer

    @property
    def pools(self) -> tuple[BasePool, ...]:
        """The gradient pools of the strategy, one for each dtype, if it has any."""
        return tuple(getattr(self.synchronizer, "pools", ()))

    @property
    def reports(self) -> tuple[RangeReport, ...]:
        """The reports on each range of gradients, from the last averaging."""
        return () if self._bound is None else self._bound.loop.synchronizer.reports

    @property
    def bytes_sent(self) -> int | None:
        """Bytes this rank sent to other ranks in messages for the last step; None where that is not known."""
        return 0 if self._bound is None else self._bound.loop.bytes_sent

    @property
    def bytes_copied(self) -> int:
        """Total bytes of gradients that had to be copied into the pools.

        Gradients that backward passes write there do not count as copies; gradients set by hand are copied.
        """
        return self._bytes_copied + (0 if self._bound is None else self._bound.gradients.bytes_copied)

    # ---- life ----------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Detach from the wrapped optimizer and the model. Closing twice is harmless."""
        self.__exit__(None, None, None)

    def __enter__(self) -> DistributedOptimizer:
        """Return the optimizer itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Close it; after an exception without waiting for communication under way."""
        self._closed = True
        if self._watched is not None:
            self._watched.end(self._bound.loop.metrics if kind is None and self._bound is not None else None)
        if self._fused_step is not None:
            self._fused_step.close()
        synchronizer = self._detach()
        if synchronizer is not None:
            synchronizer.close(orderly=kind is None)
        release(self)
        if self.loss_scale is not None:
            self.loss_scale.release()
        self._ranks.close(orderly=kind is None)
        if self._owns_comm:
            self._comm.__exit__(kind, value, traceback)


def _check_types(optimizer: object, model: object, comm: object, accumulation_steps: object) -> None:
    """Check the arguments of DistributedOptimizer, except for the strategy's."""
    if not isinstance(optimizer, torch.optim.Optimizer) or isinstance(optimizer, DistributedOptimizer):
        message = f"the optimizer is a {type(optimizer).__name__}: what is needed is an optimizer of torch.optim"
        raise ArgumentTypeError(message)
    if not isinstance(model, torch.nn.Module):
        raise ArgumentTypeError(f"the model is a {type(model).__name__}: what is needed is a torch.nn.Module")
    if comm is not None and not isinstance(comm, Communicator):
        raise ArgumentTypeError(f"comm is a {type(comm).__name__}: what is needed is a gradientflow.Communicator")
    if not isinstance(accumulation_steps, int) or accumulation_steps < 1:
        raise ArgumentError(f"accumulation_steps is a number of 1 or more, not {accumulation_steps!r}")


def _check_not_averaged(model: torch.nn.Module, comm: Communicator) -> None:
    """Raise if DistributedDataParallel averages the gradients of a model over all ranks already."""
    if comm.size == 1 or not (dist.is_available() and dist.is_initialized()):
        return
    groups = [each.process_group for each in model.modules() if isinstance(each, DistributedDataParallel)]
    if any(group.size() == dist.get_world_size() > 1 for group in groups):  # a smaller group may be that of a node
        raise ArgumentError(
            "DistributedDataParallel averages all gradients of the model itself: pass and run the module that is "
            "inside, model.module, or keep DistributedDataParallel with the optimizer alone"
        )


def _checked_strategy(strategy: Strategy | str | None, **settings: Any) -> Strategy:
    """Return the strategy; by default dense communication with these settings, or, without any, the usual strategy."""
    default = Dense().settings
    given = [name for name, value in settings.items() if value != default[name]]
    if strategy is None:
        return Dense(**settings) if given else default_strategy()
    strategy = as_strategy(strategy)
    if given:
        name = given[0]
        message = f"fusion_threshold, wire and share are settings of the strategy: {strategy.name}({name}=...)"
        if name in strategy.not_taken:
            message = f"{strategy.name} takes no {name}: {strategy.not_taken[name]}"
        elif name == "share" and name not in strategy.settings:
            message = f"{strategy.name} takes no share: only with dense can the ranks of a node share weights"
        raise ArgumentError(message)
    return strategy
