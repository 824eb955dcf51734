"""Synchronizers: strategies bound to ranks and tensors, which are called at the moments of an iteration."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from gradientflow.base_pool import RangeReport
from gradientflow.communicator import Communicator
from gradientflow.device import DeviceArray
from gradientflow.errors import ArgumentError, NonFiniteError
from gradientflow.memory import itemsize

from .layout import Layout
from .update import Settings, Update

if TYPE_CHECKING:
    from .explanation import Explanation
    from .shared import NodeWeights
    from .strategy import Strategy


class Synchronizer(ABC):
    """A strategy bound to ranks and tensors: it is called at the moments of an iteration, and knows no framework.

    Each iteration makes one step. Its moments, in order:

    - `begin`: before its first gradient;
    - `ready`: a gradient is final; called by the thread that computed it, in any order;
    - `flush`: the backward pass is done; tensors that are not ready have zeros for gradients;
    - `wait`: the update is needed; or `abandon`: the iteration is given up;
    - `drop`: the update will not be used;
    - `after_step`: the step has been made, or skipped.

    `finish` comes when training ends, `close` in the end.

    Parameters
    ----------
    comm : Communicator
        Whose ranks take part.
    layout : Layout
        The tensors.
    strategy : Strategy
        The strategy that was bound.

    Attributes
    ----------
    comm, layout, strategy
        As given.
    numbers : numpy.ndarray
        ``layout.numbers`` numbers of float64 that are averaged along with the gradients: written before `flush`; after
        `wait`, the means over the ranks. They may be rounded as gradients are; the mean of zeros is exactly 0, and no
        other mean is.
    loss_scale : float
        The factor by which gradients are too large; residuals are kept unscaled. Set between iterations.
    skips_nonfinite : bool
        Whether gradients that are not finite skip the iteration instead of raising an error.
    weights : list of arrays
        The weights, one flat array a tensor, for strategies that write them: ``layout.weights``, or float32 master
        weights for those of 16 bits where the core makes the step. Master weights are rounded to the model's weights
        after `after_step` and `finish`.
    settings : callable
        ``settings(i)`` are the `Settings` of tensor i in the next step.
    reads_elsewhere : bool
        Whether `ready` can read gradients where backpropagation has left them, without a copy to their places.
    keeps_elsewhere : bool
        Whether it reads these until `wait` has returned, so that they must not be overwritten or freed before.
    takes_any_content : bool
        Whether the place of a gradient may hold anything before the gradient is written, so that it need not be zeroed.
    reads_gradients : bool
        Whether it uses gradients for more than the check that they are finite.
    exchanges_weights : bool
        Whether the next `after_step` may read or write weights.
    dropped : NonFiniteError or None
        The error for values that were dropped because they are not finite, where ranks are not in step and `wait` does
        not raise it. It is raised and reset after the step, or after `finish`.
    exchange_failed : bool
        Whether `after_step` or `finish` has raised; `abandon` resets it.
    shared : NodeWeights or None
        The weights of the node, where its ranks share them.
    residuals : sequence of arrays
        The gradient entries that this rank has not sent yet, one array for each tensor; empty without residuals.
    decay : float
        The factor by which residuals were multiplied.
    bookkeeping_seconds : float or None
        Seconds that this rank spent in the last iteration on selecting and gathering what is sent, where known.
    """

    settings: Callable[[int], Settings]
    reads_elsewhere: bool = False
    keeps_elsewhere: bool = False
    takes_any_content: bool = False
    reads_gradients: bool = True
    exchanges_weights: bool = True
    dropped: NonFiniteError | None = None
    exchange_failed: bool = False
    shared: NodeWeights | None = None
    residuals: Sequence[Any] = ()
    decay: float = 1.0
    bookkeeping_seconds: float | None = None

    def __init__(self, comm: Communicator, layout: Layout, strategy: Strategy) -> None:
        self.comm = comm
        self.layout = layout
        self.strategy = strategy
        self.numbers: npt.NDArray[np.float64] = np.zeros(layout.numbers)
        self.loss_scale = 1.0
        self.skips_nonfinite = False
        self.settings = _no_settings
        self.weights: list[Any] = list(layout.weights)

    # ---- memory --------------------------------------------------------------------------------------------------

    @abstractmethod
    def memory(self, group: int) -> npt.NDArray[np.uint8] | DeviceArray:
        """Return the memory with the gradients of a dtype, ``layout.groups[group]``, as bytes."""

    @abstractmethod
    def offsets(self, group: int) -> Sequence[int]:
        """Return where the gradients of a dtype begin in their memory, in bytes."""

    def spans(self, group: int) -> list[list[int]]:
        """Return the ranges of that memory with gradients of the last update, in elements: first, one past the last."""
        return [[0, self.memory(group).nbytes // itemsize(self.layout.groups[group][0])]]

    @abstractmethod
    def zero(self, group: int, stream: Any = None) -> None:
        """Zero the gradients of a dtype that the last update has left, between iterations."""

    # ---- the moments of an iteration -----------------------------------------------------------------------------

    def check_complete(self) -> None:  # noqa: B027
        """Raise if attributes that it declares are missing, once `Strategy.bind` has returned it."""

    def check_settings(self) -> None:  # noqa: B027
        """Raise if the current settings of the optimizer do not go with the strategy."""

    def begin(self) -> None:  # noqa: B027 (most have nothing to do)
        """Begin an iteration: learning rates, momentum and loss scale are now those of its step."""

    @contextmanager
    def without_calls(self) -> Iterator[None]:
        """Refuse communication in a ``with`` block around `begin`, where that is possible."""
        yield

    @abstractmethod
    def ready(self, index: int, stream: Any = None, elsewhere: int | None = None) -> None:
        """Take a gradient that is final for this iteration once the work that is in the stream now is done.

        With `reads_elsewhere` it may lie at the address `elsewhere`, dense and in the order of its place. It is needed
        until this returns; with `keeps_elsewhere`, until `wait` returns or the iteration is given up.
        """

    @abstractmethod
    def flush(self, stream: Any = None) -> None:
        """Take all gradients that are not ready, and `numbers`, as they are."""

    @abstractmethod
    def wait(self, stream: Any = None) -> Update:
        """End the iteration: wait until the gradients, or weights, for the step are there.

        Raises
        ------
        gradientflow.errors.NonFiniteError
            On every rank, if averaged gradients are not finite and the strategy checks them; nothing is changed then.
            For gradients that are not averaged, see `dropped`.
        gradientflow.errors.CommunicationError
            If ranks are missing, or have failed.
        """

    def drop(self, stream: Any = None) -> None:  # noqa: B027
        """Discard the last update, which no step has used; with residuals, what was sent becomes residual again."""

    def after_step(self) -> None:  # noqa: B027
        """Go on after a step that was made or skipped."""

    @abstractmethod
    def abandon(self, stream: Any = None) -> None:
        """Give up the iteration, begun or not, so that the other ranks can end it."""

    def finish(self) -> None:  # noqa: B027
        """End training: complete pending exchanges, and leave the same weights on all ranks. Collective."""

    @abstractmethod
    def close(self, orderly: bool = True) -> None:
        """Release all resources; unless `orderly`, without waiting for pending exchanges."""

    @contextmanager
    def common_weights(self) -> Iterator[None]:
        """Put the common weights into the model in a ``with`` block, where each rank trains on weights of its own."""
        yield

    # ---- state ---------------------------------------------------------------------------------------------------

    @property
    def has_state(self) -> bool:
        """Whether it has state beside the weights."""
        return bool(self.state_dict())

    def state_dict(self) -> dict[str, Any]:
        """Return this rank's state beside the weights. Between iterations; does not communicate."""
        return {}

    def consolidated_state_dict(self) -> dict[str, Any]:
        """Return a state that any number of ranks can load, the same on all. Collective."""
        return {}

    def check_state_dict(self, state: Mapping[str, Any]) -> None:  # noqa: B027
        """Raise what `load_state_dict` would on this rank, and change nothing."""

    def load_state_dict(self, state: Mapping[str, Any] | None) -> None:  # noqa: B027
        """Go on from a state, or begin anew without one. Between iterations; collective."""

    def summary(self, state: Mapping[str, Any]) -> dict[str, str]:
        """Return, as text, what has to be the same in the states that the ranks load."""
        return {}

    def check_change(self) -> None:  # noqa: B027
        """Raise unless another synchronizer can take over now."""

    def take_over(self, other: Synchronizer) -> None:  # noqa: B027
        """Take the state of another synchronizer of the same strategy, by the names of tensors. Between iterations.

        The gradients of its last update will be copied to the places here; `update` then describes these.
        """

    def update(self) -> Update:
        """Return the last update again, with the current places of its gradients."""
        return Update("apply")

    def has_gradient(self, index: int) -> bool:
        """Tell whether the last update has a gradient of a tensor from residuals, though no rank computed one."""
        return False

    # ---- what is to be known -------------------------------------------------------------------------------------

    @property
    def reports(self) -> tuple[RangeReport, ...]:
        """The report of each range of gradients in the last iteration, where known."""
        return ()

    @property
    def bytes_sent(self) -> int | None:
        """Bytes that this rank has sent to others in messages so far; None where `reports` have them, or unknown."""
        return None

    def explain(self, **times: float | None) -> Explanation:
        """Measure the link, and predict what the strategy sends for these tensors, and its gain. Collective.

        Parameters
        ----------
        **times
            ``compute_seconds`` and ``backward_seconds``, as in `Strategy.explain`.
        """
        return self.strategy.explain_layout(self.comm, self.layout, **times)

    @property
    def gradients(self) -> tuple[Any, ...]:
        """The gradients, one array a tensor, in their places."""
        return self._places

    @cached_property
    def _places(self) -> tuple[Any, ...]:
        arrays: list[Any] = [None] * len(self.layout)
        for group, (_, indices) in enumerate(self.layout.groups):
            for index, array in zip(indices, self._arrays(group), strict=True):
                arrays[index] = array
        return tuple(arrays)

    @abstractmethod
    def _arrays(self, group: int) -> Sequence[Any]:
        """Return the gradients of a dtype as arrays."""


def _no_settings(index: int) -> Settings:
    message = f"no optimizer has told the settings of tensor {index}: make one for the synchronizer first"
    raise ArgumentError(message)


__all__ = ["Synchronizer"]
