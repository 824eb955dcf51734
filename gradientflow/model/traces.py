"""The computation of a step from a recorded run: a GradientFlow timeline, or a trace of PyTorch's profiler."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from gradientflow.annotations import JsonObject
from gradientflow.errors import ArgumentError

from .computation import Computation

Event = JsonObject

_READY = re.compile(r"tensor (\d+) ready")
_WAIT = "wait for gradients"
_ACCUMULATE = "torch::autograd::AccumulateGrad"
_STEP = "Optimizer.step#"
_FLOAT = 4  # bytes
_MICRO = 1e-6


class _Final(NamedTuple):
    """A gradient that becomes final at a time, in microseconds."""

    time: float
    shape: tuple[int, ...]


def computation_of_events(events: Iterable[Event]) -> Computation:
    """Return the median step of a recorded run.

    In a GradientFlow timeline, a step lasts from the end of one wait for gradients to the start of the next wait, so
    that waiting does not count. In a trace of `torch.profiler`, recorded with ``record_shapes=True``, a step lasts from
    the end of one optimizer step to the end of the next. The first step is left out.

    Parameters
    ----------
    events : iterable of dict
        Events of one rank, in the trace event format.

    Raises
    ------
    gradientflow.errors.ArgumentError
        If there are no two steps with the same gradients.
    """
    ordered = sorted((event for event in events if "ts" in event), key=lambda event: float(event["ts"]))
    profiled = any(event.get("name") == _ACCUMULATE for event in ordered)
    steps = _profiled_steps(ordered) if profiled else _recorded_steps(ordered)
    if not steps:
        raise ArgumentError(
            "there are no two steps in it: record several, a timeline with strategy dense, or a profile of PyTorch "
            "with record_shapes=True and steps of an optimizer"
        )
    shapes = [each.shape for each in steps[0][2]]
    if any([each.shape for each in finals] != shapes for _, _, finals in steps):
        raise ArgumentError("its steps are not alike: gradients become final in another order, or others do")
    seconds = float(np.median([end - begin for begin, end, _ in steps])) * _MICRO
    moments = np.median([[each.time - begin for each in finals] for begin, _, finals in steps], axis=0) * _MICRO
    ready = tuple(min(float(moment), seconds) for moment in np.maximum.accumulate(moments))
    return Computation(tuple(shapes), ready, seconds, ready[-1] - ready[0])


def _argument(event: Event, name: str) -> Any:
    """Return an argument of an event if it has the expected type, else None."""
    arguments = event.get("args")
    found = arguments.get(name) if isinstance(arguments, dict) else None
    return found if isinstance(found, int if name == "bytes" else list) else None


_Steps = list[tuple[float, float, Sequence[_Final]]]  # (begin, end, gradients) of each step


def _recorded_steps(events: Sequence[Event]) -> _Steps:
    steps: _Steps = []
    begin: float | None = None
    finals: list[_Final] = []
    for event in events:
        name, time = str(event.get("name")), float(event["ts"])
        if _READY.fullmatch(name) and event.get("ph") == "i" and (nbytes := _argument(event, "bytes")):
            finals.append(_Final(time, (int(nbytes) // _FLOAT,)))
        elif name == _WAIT:
            if begin is not None and finals:
                steps.append((begin, time, finals))
            begin, finals = time + float(event.get("dur", 0.0)), []
    return steps


def _profiled_steps(events: Sequence[Event]) -> _Steps:
    steps: _Steps = []
    begin: float | None = None
    finals: list[_Final] = []
    for event in events:
        name, end = str(event.get("name")), float(event["ts"]) + float(event.get("dur", 0.0))
        if name == _ACCUMULATE:
            shapes = _argument(event, "Input Dims") or [[]]
            finals.append(_Final(end, tuple(shapes[0])))
        elif name.startswith(_STEP):
            if begin is not None and finals:
                steps.append((begin, end, finals))
            begin, finals = end, []
    return steps


__all__ = ["computation_of_events"]
