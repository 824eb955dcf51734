"""The calls of process groups as events of PyTorch's profiler, under the names that its own backends use."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar, cast

import torch

from .names import BACKEND

_is_profiling: Callable[[], bool] = torch.autograd._profiler_enabled  # type: ignore[attr-defined]


Method = TypeVar("Method", bound=Callable[..., Any])


def recorded(operation: str) -> Callable[[Method], Method]:
    """Return a decorator for methods: a call is the event "gradientflow:OPERATION".

    The event of an asynchronous call ends when the call returns, not with its work. Only the thread in which an event
    began can end it safely: one that another thread ends, while or after the profiler stops, is written into memory
    that the profiler has freed.
    """
    name = f"{BACKEND}:{operation}"

    def decorate(method: Method) -> Method:
        @functools.wraps(method)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            if not _is_profiling():
                return method(*args, **kwargs)
            with torch.autograd.profiler.record_function(name):
                return method(*args, **kwargs)

        return cast("Method", wrapper)

    return decorate
