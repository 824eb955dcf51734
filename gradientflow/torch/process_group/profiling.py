"""Calls of process groups as events of PyTorch's profiler, in the manner of PyTorch's own backends."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator
from typing import Any, ParamSpec, TypeVar

import torch
from torch.autograd.profiler_util import FunctionEvent

from gradientflow.torch.names import BACKEND

profiler_enabled: Callable[[], bool] = torch.autograd._profiler_enabled

_PREFIX = f"{BACKEND}:"
_INPUTS = ("tensors", "input", "inputs", "input_tensors", "input_list")  # names of method parameters

P = ParamSpec("P")
T = TypeVar("T")


def recorded(operation: str) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Return a decorator for methods: a call is the event "gradientflow:OPERATION", with the shapes of its inputs.

    The event of an asynchronous call ends when the call returns, not with its work. Only the thread in which an event
    began can end it safely: if another thread ends it, while or after the profiler stops, it is written into memory
    that the profiler has freed.
    """
    name = _PREFIX + operation

    def decorate(method: Callable[P, T]) -> Callable[P, T]:
        signature = inspect.signature(method)
        inputs = next((parameter for parameter in signature.parameters if parameter in _INPUTS), "")

        @functools.wraps(method)
        def wrapper(*args: P.args, **kwargs: P.kwargs) -> T:
            if not profiler_enabled():
                return method(*args, **kwargs)
            given = signature.bind(*args, **kwargs).arguments.get(inputs, ())
            event = torch.autograd._record_function_with_args_enter(name, *_tensors_in(given))
            try:
                return method(*args, **kwargs)
            finally:
                torch.autograd._record_function_with_args_exit(event)

        return wrapper

    return decorate


def mark_asynchronous() -> None:
    """Make PyTorch's profiler treat the events as asynchronous, like the events of PyTorch's own backends.

    Asynchronous events are not children of the events around them, and not counted in their time. C++ marks them when
    they begin; Python can do so only after the profiler has stopped, when it makes its list of events.
    """
    profile: Any = torch.autograd.profiler.profile
    profile._parse_kineto_results = _marking(profile._parse_kineto_results)


def _marking(parse: Callable[P, list[FunctionEvent]]) -> Callable[P, list[FunctionEvent]]:
    @functools.wraps(parse)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> list[FunctionEvent]:
        events = parse(*args, **kwargs)
        for event in events:
            if event.name.startswith(_PREFIX):
                event.is_async = True
        return events

    return wrapper


def _tensors_in(given: object) -> Iterator[torch.Tensor]:
    """Yield a tensor, or all tensors of a list, which may be nested."""
    if isinstance(given, torch.Tensor):
        yield given
    elif isinstance(given, list | tuple):
        for part in given:
            yield from _tensors_in(part)
