"""The moments of an iteration: what a strategy becomes once it knows the ranks and the tensors."""

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
    """What `Strategy.bind` returns: it is told of the moments of an iteration, and knows no framework.

    An iteration is a step. Its moments, in their order:

    - `begin`: before its first gradient;
    - `ready`: a gradient is final, from the thread that computed it, in any order;
    - `flush`: the backward pass is done, tensors that are not ready have zeros for gradients;
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
        What it was made by.

    Attributes
    ----------
    comm, layout, strategy
        As given.
    numbers : numpy.ndarray
        ``layout.numbers`` numbers of float64 that travel along: written before `flush`, after `wait` the means over the
        ranks. They may be rounded as gradients are; a mean of zeros is exactly 0, and no other is.
    loss_scale : float
        How many times too large the gradients are; residuals are kept unscaled. Set between iterations.
    skips_nonfinite : bool
        Whether an iteration with gradients that are not finite is skipped, in place of an error.
    weights : list of arrays
        What a strategy writes that writes weights, one flat array a tensor: ``layout.weights``; but master weights of
        float32 for those of 16 bits, where the core makes the step. They are rounded after `after_step` and `finish`.
    settings : callable
        ``settings(i)`` are the `Settings` of tensor i in the step that comes next.
    reads_elsewhere : bool
        Whether `ready` takes gradients from wherever backpropagation has left them, so that nobody needs to write them
        to their places.
    keeps_elsewhere : bool
        Whether it reads these until `wait` has returned, so that nobody writes to them or frees them before.
    takes_any_content : bool
        Whether a gradient may be written over whatever is in its place, so that nobody needs to zero it before.
    reads_gradients : bool
        Whether it has a use for gradients beyond whether they are finite.
    exchanges_weights : bool
        Whether the next `after_step` may read or write weights.
    dropped : NonFiniteError or None
        What was dropped since it was not finite, where ranks are not in step and `wait` goes on: raised once the step
        is over, or `finish`, and forgotten then.
    exchange_failed : bool
        Whether `after_step` or `finish` has raised; `abandon` takes it back.
    shared : NodeWeights or None
        Where the ranks of a node share weights.
    residuals : sequence of arrays
        What this rank has kept of gradients for later iterations, one for each tensor; empty if it keeps nothing.
    decay : float
        What is kept was multiplied by this.
    bookkeeping_seconds : float or None
        What this rank spent in the last iteration on choosing and collecting what is sent, if it does and knows.
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
        """Return which elements of that memory the last update has gradients in: first, and one past the last."""
        return [[0, self.memory(group).nbytes // itemsize(self.layout.groups[group][0])]]

    @abstractmethod
    def zero(self, group: int, stream: Any = None) -> None:
        """Zero the gradients of a dtype that the last update has left, between iterations."""

    # ---- the moments of an iteration -----------------------------------------------------------------------------

    def check_complete(self) -> None:  # noqa: B027
        """Raise if what it says of itself is not there, once `Strategy.bind` has returned it."""

    def check_settings(self) -> None:  # noqa: B027
        """Raise if the settings that the optimizer has now do not go with the strategy."""

    def begin(self) -> None:  # noqa: B027 (most have nothing to do)
        """Begin an iteration: learning rates, momentum and loss scale are now those of its step."""

    @contextmanager
    def without_calls(self) -> Iterator[None]:
        """Have calls of ranks refused in a ``with`` block, in which `begin` is called, where that can be done."""
        yield

    @abstractmethod
    def ready(self, index: int, stream: Any = None, elsewhere: int | None = None) -> None:
        """Take a gradient that is final for this iteration, once what is in the stream now is done.

        With `reads_elsewhere` it may be the one at the address `elsewhere`, dense and in the order of its place. It is
        needed no more when this returns; with `keeps_elsewhere`, when `wait` has, or the iteration is given up.
        """

    @abstractmethod
    def flush(self, stream: Any = None) -> None:
        """Take all gradients that are not ready, and `numbers`, as they are."""

    @abstractmethod
    def wait(self, stream: Any = None) -> Update:
        """End the iteration: wait until gradients, or weights, are what the step shall use.

        Raises
        ------
        gradientflow.errors.NonFiniteError
            On every rank, if gradients that are averaged are not finite, where the strategy looks for such: nothing is
            changed then. Of others `dropped` tells.
        gradientflow.errors.CommunicationError
            If ranks are missing, or have failed.
        """

    def drop(self, stream: Any = None) -> None:  # noqa: B027
        """Forget the last update, which no step has used: what was sent becomes residual again where there is one."""

    def after_step(self) -> None:  # noqa: B027
        """Go on after a step that was made or skipped."""

    @abstractmethod
    def abandon(self, stream: Any = None) -> None:
        """Give up the iteration, under way or not yet begun, in a way in which the other ranks can end it."""

    def finish(self) -> None:  # noqa: B027
        """End training: drain what is under way, and leave the same weights on all ranks. Collective."""

    @abstractmethod
    def close(self, orderly: bool = True) -> None:
        """Give back what it has; unless `orderly`, without waiting for what is under way."""

    @contextmanager
    def common_weights(self) -> Iterator[None]:
        """Have the weights that the ranks share for the weights of the model, where a rank trains on its own."""
        yield

    # ---- state ---------------------------------------------------------------------------------------------------

    @property
    def has_state(self) -> bool:
        """Whether it keeps something beside the weights."""
        return bool(self.state_dict())

    def state_dict(self) -> dict[str, Any]:
        """Return what it keeps beside the weights: this rank's own. Between iterations; does not communicate."""
        return {}

    def consolidated_state_dict(self) -> dict[str, Any]:
        """Return a state that any number of ranks can load, the same on all. Collective."""
        return {}

    def check_state_dict(self, state: Mapping[str, Any]) -> None:  # noqa: B027
        """Raise what `load_state_dict` would on this rank, and change nothing."""

    def load_state_dict(self, state: Mapping[str, Any] | None) -> None:  # noqa: B027
        """Go on from a state, or begin anew without one. Between iterations; collective."""

    def summary(self, state: Mapping[str, Any]) -> dict[str, str]:
        """Say what of a state has to be the same on all ranks that load it."""
        return {}

    def check_change(self) -> None:  # noqa: B027
        """Raise unless another one can take over now."""

    def take_over(self, other: Synchronizer) -> None:  # noqa: B027
        """Take what another one of the same strategy keeps, by the names of tensors. Between iterations.

        The gradients of its last update will be copied to the places here; `update` is then for these.
        """

    def update(self) -> Update:
        """Return the last update once more, for the places where its gradients are now."""
        return Update("apply")

    def has_gradient(self, index: int) -> bool:
        """Tell whether a tensor has a gradient in the last update though no rank computed one: of a residual."""
        return False

    # ---- what is to be known -------------------------------------------------------------------------------------

    @property
    def reports(self) -> tuple[RangeReport, ...]:
        """How each range of gradients went in the last iteration, where that is known."""
        return ()

    @property
    def bytes_sent(self) -> int | None:
        """Bytes that this rank has sent to others in messages so far; None where `reports` tell, or nobody knows."""
        return None

    def explain(self, **times: float | None) -> Explanation:
        """Measure the link, and tell what the strategy sends for these tensors, and what to expect. Collective.

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
