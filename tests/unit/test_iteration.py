"""All transitions between the phases of an iteration, without other ranks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import gradientflow as gf
from gradientflow.errors import CommunicationTimeoutError
from gradientflow.strategies import Update
from gradientflow.strategies.update import Phase
from gradientflow.training.iteration import Progress
from gradientflow.training.order import BackwardOrder

APPLY, SKIPPED = Update("apply"), Update("skipped")

EVENTS: dict[str, Callable[[Progress], object]] = {
    "begin": lambda progress: progress.begin_pass(only_adds=False),
    "begin to add": lambda progress: progress.begin_pass(only_adds=True),
    "hand over": Progress.hand_over,
    "average": lambda progress: progress.average(APPLY),
    "skip": lambda progress: progress.average(SKIPPED),
    "end without update": Progress.end_without_update,
    "drop": Progress.drop,
    "fail": Progress.fail,
    "fail after": lambda progress: progress.fail(after_step=True),
    "give up": Progress.give_up,
    "lose": Progress.lose,
    "forget update": Progress.forget_update,
    "step": Progress.step,
    "reset": Progress.reset,
}
P = Phase
FAILED = (P.BEGIN_FAILED, P.WAIT_FAILED, P.STEP_FAILED)
ALWAYS = {
    "begin": P.HANDING_OVER,
    "begin to add": P.ACCUMULATING,
    "fail": P.BEGIN_FAILED,
    "fail after": P.STEP_FAILED,
    "give up": P.IDLE,
    "lose": P.LOST,
    "reset": P.IDLE,
}
SOMETIMES = {
    "hand over": dict.fromkeys((P.ACCUMULATING, P.HANDING_OVER), P.HANDED_OVER),
    "average": {P.HANDED_OVER: P.AVERAGED},
    "skip": {P.HANDED_OVER: P.AVERAGED},
    "end without update": {P.HANDED_OVER: P.IDLE},
    "drop": {P.HANDED_OVER: P.DROPPED},
    **{name: {**{each: each for each in P}, P.AVERAGED: P.IDLE, P.LOST: P.IDLE} for name in ("forget update", "step")},
}


def in_phase(phase: Phase) -> Progress:
    """Return an iteration that has come to a phase on the shortest way."""
    ways = {
        P.IDLE: [],
        P.ACCUMULATING: ["begin to add"],
        P.HANDING_OVER: ["begin"],
        P.HANDED_OVER: ["begin", "hand over"],
        P.AVERAGED: ["begin", "hand over", "average"],
        P.DROPPED: ["begin", "hand over", "drop"],
        P.LOST: ["begin", "lose"],
        P.BEGIN_FAILED: ["begin", "fail"],
        P.WAIT_FAILED: ["begin", "hand over", "fail"],
        P.STEP_FAILED: ["begin", "hand over", "average", "fail after"],
    }
    progress = Progress()
    for event in ways[phase]:
        EVENTS[event](progress)
    assert progress.phase is phase
    return progress


@pytest.mark.parametrize("phase", Phase)
def test_each_event_leads_from_each_phase_to_one(phase: Phase) -> None:
    assert {*ALWAYS, *SOMETIMES} == {*EVENTS}
    for event, happens in EVENTS.items():
        progress = in_phase(phase)
        after = ALWAYS.get(event) or SOMETIMES[event].get(phase)
        if (phase, event) == (P.HANDED_OVER, "fail"):
            after = P.WAIT_FAILED
        if after is None:
            with pytest.raises(AssertionError, match=f"an iteration that is {phase.name} was to be"):
                happens(progress)
            assert progress.phase is phase
            continue
        happens(progress)
        assert progress.phase is after, event
        if after not in (*FAILED, P.IDLE):
            assert (progress.update is not None) == (after in (P.AVERAGED, P.LOST)), event
        assert progress.has_begun == (after in (P.ACCUMULATING, P.HANDING_OVER, P.HANDED_OVER))
        assert progress.is_untold == (after in (P.HANDED_OVER, *FAILED))


def test_a_step_has_one_update() -> None:
    progress = in_phase(P.AVERAGED)
    assert progress.update is APPLY
    progress.step()
    assert progress.update is None
    progress = in_phase(P.AVERAGED)
    progress.fail(after_step=True)
    progress.step()  # made again
    assert (progress.phase, progress.update) == (P.STEP_FAILED, None)
    progress = in_phase(P.LOST)
    assert progress.update == SKIPPED
    progress.begin_pass(only_adds=False)
    assert progress.update is None


def test_an_overflow_holds_for_the_whole_step() -> None:
    progress = in_phase(P.HANDED_OVER)
    progress.average(SKIPPED)
    for _ in range(2):
        progress.begin_pass(only_adds=False)
        progress.hand_over()
        progress.average(APPLY)
        assert progress.overflowed
    progress.step()
    assert not progress.overflowed
    for ends in (Progress.drop, Progress.end_without_update, Progress.lose, Progress.reset):
        progress = in_phase(P.HANDED_OVER)
        progress.overflowed = True
        ends(progress)
        assert not progress.overflowed


@pytest.mark.parametrize("phase", [P.HANDING_OVER, P.ACCUMULATING])
def test_gradients_that_were_handed_over_are_told_of(phase: Phase) -> None:
    progress = in_phase(phase)
    progress.order.append(3)
    progress.passes = 1
    assert progress.is_untold
    assert progress.give_up() is P.HANDING_OVER
    assert progress.is_untold  # until the other ranks know
    progress.reset()
    assert not progress.is_untold
    assert (progress.order, progress.passes) == ([], 0)


def test_an_exchange_has_ended_where_the_order_of_tensors_cannot_be_learned(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> None:
        raise CommunicationTimeoutError("the broadcast of the order")

    with gf.init(transport="tcp") as comm, gf.training.ArrayLoop(comm, [np.zeros(3, np.float32)], "dense") as training:
        monkeypatch.setattr(BackwardOrder, "learn", fail)
        training.ready(0)
        with pytest.raises(CommunicationTimeoutError):
            training.wait()
        assert training._loop.progress.phase is P.AVERAGED
        synchronizer: Any = training.synchronizer
        assert synchronizer.pools[0].iteration == 1
        training.abandon()
        assert synchronizer.pools[0].iteration == 1  # the other ranks are not asked to give it up with this one
