"""The contract: a strategy is a description, which `bind` turns into a synchronizer for ranks and tensors."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import TYPE_CHECKING, ClassVar, Literal, get_args

import numpy as np
import numpy.typing as npt

from gradientflow.annotations import TensorLike
from gradientflow.arguments import checked_int
from gradientflow.communicator import Communicator
from gradientflow.description import Description
from gradientflow.errors import ArgumentError, NonFiniteError
from gradientflow.former_names import FormerName
from gradientflow.memory import numpy_dtype
from gradientflow.pools.base import RangeReport

from .checkpoints import Checkpointed
from .gradient_memory import GradientMemory
from .layout import Layout
from .node_weights import NodeWeights
from .options import OPTIONS
from .predict.explanation import Explanation, Measured
from .update import Iteration, Phase, Profile, SettingsOf, Update, Withheld

if TYPE_CHECKING:
    from gradientflow.model.computation import Computation
    from gradientflow.model.costs import Costs
    from gradientflow.model.traffic import Traffic


GradientsOfStep = Literal["mean", "local", "consumed"]
StepMaker = Literal["any", "core", "core_rate_in_momentum"]
GradientSource = Literal["place", "any_place", "elsewhere", "elsewhere_until_wait", "none"]

_SIDE = 1024  # rows and columns of a matrix, if shapes are unknown


class Strategy(Description, ABC):
    """A description of which gradients or weights the ranks send, and when. It has parameters, and runs nothing itself.

    A subclass keeps each argument of its constructor in an attribute of the same name. These attributes give
    `settings`, the comparison between ranks, and the text of the strategy: ``csc(density=0.1)``.

    Attributes
    ----------
    name : str
        Name in ``csc(density=0.1)``; by default that of the class.
    gradients : {"mean", "local", "consumed"}
        The gradients that the step gets: means, the same on all ranks; the rank's own gradients; or none, since they
        were sent already. With "local" and "consumed" the strategy writes weights itself. With "consumed" it is too
        late for clipping, `torch.amp.GradScaler` and closures. They are refused, as are optimizers other than momentum
        SGD and LARS.
    effect : str
        Effect on the result of a step, for tables: "exact", "delays", "approximates", "stale", "local", or "alone" if
        nothing is exchanged until the end.
    step : {"any", "core", "core_rate_in_momentum"}
        Maker of the step: any optimizer; only kernels of the core; or only these kernels, with the learning rate inside
        the momentum of SGD, as in the GradientFlow paper.
    on_device : bool
        True if the strategy takes CUDA tensors itself. Otherwise it gets copies in memory of the host.
    options : tuple of str
        Arguments in `OPTIONS` that the constructor takes, by keyword. A subclass with a constructor of its own passes
        them on, as ``**options``.
    is_identity_on_one_rank : bool
        True if the strategy changes nothing on one rank, so that it can be left out. Only such strategies go with
        `torch.amp.GradScaler`, which changes the scale of gradients by itself.
    is_plain_mean : bool
        True if every gradient becomes its mean over the ranks, and nothing else happens. An adapter may then make these
        means by calls of its own, without a synchronizer. Only for strategies with pools.
    """

    gradients: GradientsOfStep = "mean"
    effect: ClassVar[str] = ""
    step: StepMaker = "any"
    on_device: bool = False
    is_identity_on_one_rank: bool = False
    is_plain_mean: bool = False
    options: ClassVar[tuple[str, ...]] = ()

    def __init__(self, **options: object) -> None:
        for name in self.options:
            value = options.pop(name, OPTIONS[name].default)
            OPTIONS[name].check(value)
            setattr(self, name, value)
        if options:
            raise TypeError(f"{type(self).__name__}() got an unexpected keyword argument {min(options)!r}")

    @classmethod
    def _keywords(cls) -> dict[str, object]:
        return {name: OPTIONS[name].default for name in cls.options}

    def profile(self) -> Profile:
        """Return facts for comparisons; by default the attributes `warmup` and `period`, if any."""
        found = {name: getattr(self, name, None) for name in ("warmup", "period")}
        numbers = {name: value for name, value in found.items() if isinstance(value, int) and value > 0}
        return Profile(numbers.get("warmup", 0), numbers.get("period", 1))

    @classmethod
    def typical(cls, steps: int) -> Strategy:
        """Return the strategy with typical arguments for training of about `steps` steps, to compare all strategies."""
        return cls()

    @abstractmethod
    def bind(self, comm: Communicator, layout: Layout) -> Synchronizer:
        """Make the synchronizer for these tensors. Collective: the same strategy and layout on all ranks.

        Parameters
        ----------
        comm : Communicator
            Ranks that take part.
        layout : Layout
            The tensors.
        """

    def explain(
        self,
        comm: Communicator,
        parameters: int,
        *,
        dtype: str = "float32",
        device: str | int = "cpu",
        compute_seconds: float | None = None,
        backward_seconds: float | None = None,
    ) -> Explanation:
        """Measure the link; predict a step, and its gain over dense float32, from the strategy's traffic. Collective.

        Parameters count as matrices of 1,024 rows and columns.

        Parameters
        ----------
        comm : Communicator
            Ranks that take part.
        parameters : int
            Number of parameters of the model.
        dtype : {"float32", "float16", "bfloat16"}
            Dtype of the gradients.
        device : str or int
            Device of the gradients, as in `gradientflow.GradientPool`.
        compute_seconds : float, optional
            Seconds of a step without communication. If not given, the gain is computed for communication alone.
        backward_seconds : float, optional
            The part of `compute_seconds` that can hide communication; by default two thirds of it.

        Raises
        ------
        gradientflow.errors.ArgumentError
            If a number is negative, the dtype is unknown, or the strategy has no `traffic` of its own.
        """
        shapes = _matrices(checked_int("parameters", parameters))
        kind = "bfloat16" if dtype == "bfloat16" else numpy_dtype(dtype).name
        if kind not in ("float16", "bfloat16", "float32", "float64"):
            raise ArgumentError(f"dtype is that of gradients, such as float32, not {dtype!r}")
        layout = Layout(tuple(map(str, range(len(shapes)))), shapes, (kind,) * len(shapes), device)
        return self.explain_layout(comm, layout, compute_seconds=compute_seconds, backward_seconds=backward_seconds)

    def explain_layout(self, comm: Communicator, layout: Layout, **times: float | None) -> Explanation:
        """Explain as `explain` does, for the tensors of a layout and its widest dtype. Collective.

        Parameters
        ----------
        comm, **times
            As in `explain`.
        layout : Layout
            The tensors.
        """
        return self.measured(comm, layout, **times).explain(self.name, self)

    def measured(self, comm: Communicator, layout: Layout, **times: float | None) -> Measured:
        """Measure times and costs for explanations. Collective. Parameters as in `explain_layout`."""
        self.check_traffic()
        return Measured.on(comm, layout, layout.device if self.on_device else "cpu", **times)

    def check_traffic(self) -> None:
        """Raise unless the strategy has a `traffic` of its own; called before measurements.

        Raises
        ------
        gradientflow.errors.ArgumentError
            If the strategy has none.
        """
        if type(self).traffic is Strategy.traffic:
            raise ArgumentError(f"{self.name} does not say what it sends: it has no traffic() of its own")

    def traffic(self, computation: Computation, costs: Costs) -> Traffic:
        """Return the data that steps send, and when, once warm-ups are over. Does not communicate.

        Parameters
        ----------
        computation : Computation
            A step of the model to train.
        costs : Costs
            Costs of calls on the cluster on which it is to be trained.

        Raises
        ------
        gradientflow.errors.ArgumentError
            If the strategy has no `traffic` of its own.
        """
        self.check_traffic()
        raise NotImplementedError


def _matrices(parameters: int) -> tuple[tuple[int, ...], ...]:
    """Return shapes for a model of which only the number of parameters is known."""
    matrices, rest = divmod(parameters, _SIDE * _SIDE)
    rows, single = divmod(rest, _SIDE)
    return ((_SIDE, _SIDE),) * matrices + ((rows, _SIDE),) * (rows > 0) + ((single,),) * (single > 0)


class Synchronizer(GradientMemory, Checkpointed):
    """A strategy bound to ranks and tensors. It is called at the moments of an iteration, and knows no framework.

    The base `GradientMemory` has the places of its gradients, `Checkpointed` its state. With a `Survivable`, training
    can continue when ranks are lost.

    Each iteration makes one step. Its moments, in order:

    - `begin`: before its first gradient; calls `prepare`;
    - `ready`: a gradient is final; called by the thread that computed it, in any order;
    - `flush`: the backward pass is done; tensors that are not ready have zeros for gradients;
    - `wait`: the update is needed;
    - `rollback`: the iteration is given up, or its update will not be used;
    - `after_step`: the step has been made, or skipped.

    `finish` is called when training ends, and `close` last.

    Parameters
    ----------
    comm : Communicator
        Ranks that take part.
    layout : Layout
        The tensors.
    strategy : Strategy
        The strategy that was bound.

    Attributes
    ----------
    comm, layout, strategy
        As given.
    gradient_source : {"place", "any_place", "elsewhere", "elsewhere_until_wait", "none"}
        Memory from which gradients are read. "place": their places, which are zeroed before; "any_place": their places,
        which may hold anything before a gradient is written. "elsewhere": the memory where backpropagation has left
        them, without a copy, until `ready` returns; "elsewhere_until_wait": the same until `wait` has returned, so they
        must not be overwritten or freed before. "none": gradients are only checked to be finite.
    uses_backward_order : bool
        True if exchanges are faster with a layout in the actual order of backpropagation. Once that order is known, the
        strategy is bound again.
    extra : numpy.ndarray
        ``layout.extra`` numbers of float64 that are averaged along with the gradients. They are written before `flush`;
        after `wait` they are means over the ranks. Like gradients they may be rounded, but a mean is exactly 0 if and
        only if all numbers are 0.
    weights : list of arrays
        The weights, one flat array per tensor, for strategies that write weights: ``layout.weights``, or, if the core
        makes the step, float32 master weights in place of 16-bit weights. Master weights are rounded to the model's
        weights after `after_step` and `finish`.
    shared : NodeWeights or None
        The weights of the node, if its ranks train on one copy: each rank makes the core's step on a slice. Before the
        step the gradients are the rank's own, and must not be changed.
    settings, loss_scale, skips_nonfinite
        Values of the current `Iteration`, set by `set_iteration`.
    """

    gradient_source: GradientSource = "place"
    uses_backward_order: bool = False
    shared: NodeWeights | None = None

    _pending_error: NonFiniteError | None = None

    def __init__(self, comm: Communicator, layout: Layout, strategy: Strategy) -> None:
        self.comm = comm
        self.layout = layout
        self.strategy = strategy
        self.extra: npt.NDArray[np.float64] = np.zeros(layout.extra)
        self.settings, self.loss_scale, self.skips_nonfinite = Iteration()

    @cached_property
    def weights(self) -> list[TensorLike]:  # noqa: D102 (an attribute, made when it is first read)
        return list(self.layout.weights)

    # ---- the moments of an iteration -----------------------------------------------------------------------------

    def check_complete(self) -> None:
        """Raise if declared attributes are missing or wrong; called once `Strategy.bind` has returned."""
        require_one_of(self.strategy, "gradients", get_args(GradientsOfStep))
        require_one_of(self.strategy, "step", get_args(StepMaker))
        require_one_of(self, "gradient_source", get_args(GradientSource))

    def check_settings(self, settings: SettingsOf) -> None:
        """Raise if these settings of the optimizer do not go with the strategy."""

    def set_iteration(self, iteration: Iteration) -> None:
        """Use the settings of an iteration from now on."""
        self.settings, self.loss_scale, self.skips_nonfinite = iteration

    def begin(self, iteration: Iteration) -> None:
        """Begin an iteration: set its settings, and call `prepare`."""
        self.set_iteration(iteration)
        self.prepare()

    def prepare(self) -> None:
        """Prepare for an iteration, before its first gradient; without communication."""

    @abstractmethod
    def ready(self, index: int, stream: object = None, elsewhere: int | None = None) -> None:
        """Take a gradient, which is final for this iteration once the work now in the stream is done.

        If `gradient_source` allows it, the gradient may lie at the address `elsewhere`, dense and in the order of its
        place. It must stay there until `ready` returns; with "elsewhere_until_wait", until `wait` returns or the
        iteration is given up.
        """

    @abstractmethod
    def flush(self, stream: object = None) -> None:
        """Take all gradients that are not ready, and `extra`, as they are."""

    @abstractmethod
    def wait(self, stream: object = None) -> Update:
        """End the iteration: wait until the gradients or weights for the step are there.

        If `begin`, `ready` or `flush` of a `Survivable` has raised a `RecoverableError`, `wait` raises it again: a
        training loop that survives losses drops the first error.

        Raises
        ------
        gradientflow.errors.NonFiniteError
            On every rank, if averaged gradients are not finite and the strategy checks this; nothing is changed then.
            For gradients that are not averaged, see `take_pending_error`.
        gradientflow.errors.CommunicationError
            If ranks are missing, or have failed.
        """

    def after_step(self) -> None:
        """Act after a step that was made or skipped."""

    def exchanges_weights(self) -> bool:
        """Return True if the next `after_step` may read or write weights."""
        return True

    @abstractmethod
    def rollback(self, phase: Phase, stream: object = None) -> None:
        """Undo the iteration, now in `phase`, so that state, such as residuals, is as before it.

        In AVERAGED, `wait` has ended the iteration, no step has used its update, and all ranks undo it. In every other
        phase this rank gives up the iteration, begun or not, so that peers can end it.
        """

    def take_pending_error(self) -> NonFiniteError | None:
        """Return the error for values that were dropped because they are not finite, and forget it.

        If ranks are not in step, `wait` does not raise this error: it is raised after the step, or after `finish`.
        """
        error, self._pending_error = self._pending_error, None
        return error

    def finish(self) -> None:
        """End training: complete pending exchanges, and leave the same weights on all ranks. Collective."""

    @abstractmethod
    def close(self, orderly: bool = True) -> None:
        """Release all resources; unless `orderly`, without waiting for pending exchanges."""

    @contextmanager
    def common_weights(self) -> Iterator[None]:
        """Put the common weights into the model in a ``with`` block, if each rank trains on weights of its own."""
        yield

    # ---- information ---------------------------------------------------------------------------------------------

    def update(self) -> Update:
        """Return the last update again, with the current places of its gradients."""
        return Update("apply")

    def has_gradient(self, index: int) -> bool:
        """Return True if residuals give the last update a gradient for this tensor, though no rank computed one."""
        return False

    report = FormerName("withheld")

    def withheld(self) -> Withheld:
        """Return gradient entries that this rank has kept back, and the time that this took."""
        return Withheld()

    @property
    def reports(self) -> tuple[RangeReport, ...]:
        """The report of each range of gradients in the last iteration, if known."""
        return ()

    @property
    def bytes_sent(self) -> int | None:
        """Bytes that this rank has sent to other ranks in messages so far; None if `reports` has them, or unknown."""
        return None

    def explain(self, **times: float | None) -> Explanation:
        """Measure the link; predict the strategy's traffic for these tensors, and its gain. Collective.

        Parameters
        ----------
        **times
            ``compute_seconds`` and ``backward_seconds``, as in `Strategy.explain`.
        """
        return self.strategy.explain_layout(self.comm, self.layout, **times)


def require_one_of(thing: object, name: str, known: Sequence[str]) -> None:
    """Raise unless an attribute of an object has a value in `known`.

    Raises
    ------
    gradientflow.errors.ArgumentError
        If the attribute has another value.
    """
    value = getattr(thing, name)
    if value not in known:
        message = f"{name} of {type(thing).__name__} is {value!r}: what is needed is one of {', '.join(known)}"
        raise ArgumentError(message)


__all__ = ["Strategy", "Synchronizer", "require_one_of"]
