"""Hooks of parameters: they tell the training loop which gradients are final, and when backward passes begin and end.

The path of a gradient begins here: `BackwardHooks` -> `Loop.ready` -> `Synchronizer.ready` -> a pool, which sends it.
At the end of a backward pass: `BackwardHooks` -> `Loop.end_pass`, and then `Loop.synchronize`, which waits for means.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

import torch
from torch.utils.hooks import RemovableHandle

from gradientflow.strategies.update import Phase
from gradientflow.training import Loop

from .gradients import ParameterGradients

_NO_TASK = -1
_ACCUMULATING = Phase.ACCUMULATING  # kept here for speed: read for each gradient

_current_task: Callable[[], int] = torch._C._current_graph_task_id  # gives the backward pass that runs in this thread
_current_node: Callable[[], object] = torch._C._current_autograd_node
_queue_callback: Callable[[Callable[[], None]], None] = torch.autograd.Variable._execution_engine.queue_callback


class _Flushed(threading.local):
    """The hooks of optimizers that have flushed gradients in the current backward pass of this thread."""

    def __init__(self) -> None:
        self.all: list[BackwardHooks] = []


_flushed = _Flushed()


class BackwardHooks:
    """The hooks of all parameters of an optimizer.

    After a backward pass `check` raises if the model has changed, then gradients are handed over, then the loop waits
    for the means. Optimizers that share a pass wait in the order of their `number`, which is equal on all ranks.
    """

    def __init__(self, loop: Loop, gradients: ParameterGradients, number: int, check: Callable[[], object]) -> None:
        self._loop = loop
        self._gradients = gradients
        self._number = number
        self._check = check
        self._task = _NO_TASK  # id of the current backward pass
        self._handles: list[RemovableHandle] = []

    def register(self) -> None:
        """Register a hook with each parameter."""
        for parameter in self._gradients.parameters:
            self._handles.append(parameter.register_post_accumulate_grad_hook(self._has_gradient))

    def remove(self) -> None:
        """Remove the hooks."""
        for handle in self._handles:
            handle.remove()
        self._handles = []

    def _has_gradient(self, parameter: torch.Tensor) -> None:
        """Pass on the gradient that a parameter has received in a backward pass."""
        if _current_task() != self._task:
            self._begin_pass()
        loop, gradients = self._loop, self._gradients
        index = gradients.indices[id(parameter)]
        loop.used[index] = True
        only_adds, elsewhere = loop.progress.phase is _ACCUMULATING, None
        if parameter.grad is not gradients.views[index]:
            elsewhere = None if only_adds else gradients.address_elsewhere(index)
            if elsewhere is None:
                gradients.arrive(index)
        if elsewhere is not None:
            try:
                loop.ready(index, elsewhere)
            finally:
                gradients.has_been_read(index)
        elif not only_adds:
            loop.ready(index)

    def _begin_pass(self) -> None:
        self._task = _current_task()
        self._loop.begin_pass()
        _queue_callback(self._end_pass)

    def _end_pass(self) -> None:
        if self._task == _NO_TASK:
            return
        # A nested backward pass, as in gradient checkpointing, ends the outer pass only if all gradients are final.
        if _current_node() is not None and len(self._loop.progress.order) < len(self._loop.layout):
            return
        self._task = _NO_TASK
        self._check()
        if self._loop.end_pass():
            _flushed.all.append(self)
            _queue_callback(_synchronize_flushed)  # runs after the remaining optimizers have flushed

    def _synchronize_if_flushed(self) -> None:
        if self._handles and self._loop.progress.phase is Phase.HANDED_OVER:
            self._loop.synchronize()


def _synchronize_flushed() -> None:
    """Wait for the means of several optimizers in the order of their construction, which is equal on all ranks."""
    flushed = sorted(_flushed.all, key=lambda hooks: hooks._number)
    _flushed.all.clear()
    for hooks in flushed:
        hooks._synchronize_if_flushed()
