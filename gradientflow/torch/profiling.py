"""The calls of process groups as events of PyTorch's profiler, under the names that its own backends use."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any, TypeVar, cast

import torch

from .names import BACKEND

_is_profiling: Callable[[], bool] = torch.autograd._profiler_enabled  # type: ignore[attr-defined]


Method = TypeVar("Method", bound=Callable[..., Any])


def recorded(operation: str) -> Callable[[Method], Method]:
    """Return a decorator for methods that return a work: "gradientflow:OPERATION" lasts until the work has ended."""
    name = f"{BACKEND}:{operation}"

    def decorate(method: Method) -> Method:
        @functools.wraps(method)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            if not _is_profiling():
                return method(*args, **kwargs)
            event: Any = torch.autograd.profiler.record_function(name)
            event.__enter__()
            try:
                work = method(*args, **kwargs)
                if work is not None and not work.is_completed():
                    event._call_end_callbacks_on_future(work.future())
                return work
            finally:
                event.__exit__(*sys.exc_info())  # does nothing where a future is to end it

        return cast("Method", wrapper)

    return decorate
