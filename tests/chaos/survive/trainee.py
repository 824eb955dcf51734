"""A rank of ``python tests/chaos survive`` that trains on whole numbers, and goes on whenever others die or come.

Its arguments are a file, its number and the group. It goes on until the file exists, in whose folder it leaves its
weights and a log of what it does. It prints lines of JSON, as `adder` does.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

import gradientflow as gf
from gradientflow.errors import GradientFlowError

from .groups import GROUPS, Group
from .log import Log
from .means import Means
from .roster import Roster
from .task import RATE, SHAPES, flat
from .telling import checksum, tell

_PAUSE = 0.003  # seconds in each step: others start, and the replay is not to take longer than the job
_FAR_AHEAD = 100  # steps: more than ranks are apart
_ENDLESS = 1 << 40


class Recording(gf.optimizers.SGD):
    """An optimizer to whose state it belongs who has contributed to which step: others get it with the weights.

    Attributes
    ----------
    history : list of (int, list of int)
        From which step on who has contributed to the steps.
    """

    history: list[tuple[int, list[int]]]

    def note(self, step: int, members: list[int], changed: bool) -> None:
        """Note that these have contributed to a step; later ones were undone, if there are any.

        If `changed`, ranks were lost or have come before it: it may be the same ones as before, if one has done both.
        """
        self.history = [entry for entry in self.history if entry[0] < step]
        if changed or not self.history:
            self.history.append((step, members))

    def live_state(self) -> dict[str, Any]:
        """Return the state, with the history."""
        return {**super().live_state(), "history": self.history}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load a state, with its history."""
        state = dict(state)
        self.history = state.pop("history")
        super().load_state_dict(state)


class End:
    """The step before which all end: some steps after that in which a rank first sees that the file is there."""

    def __init__(self, last: Path) -> None:
        self._last = last
        self._step: int | None = None

    def has_come(self, step: int) -> bool:
        """Tell whether this step is not to be made."""
        if self._step is None and self._last.exists():
            mine, agreed = self._last.with_name(f"{self._last.name}.mine"), self._last.with_name("end")
            mine.write_text(str(step + _FAR_AHEAD), encoding="utf-8")
            with contextlib.suppress(FileExistsError):  # where another rank was the first
                os.link(mine, agreed)
            self._step = int(agreed.read_text(encoding="utf-8"))
        return self._step is not None and step >= self._step


def _train(own: int, last: Path, group: Group) -> None:
    roster, log = Roster(own), Log(last.parent, own)
    if group.keep is not None:
        group.keep(log, roster)
    comm = gf.join()
    ranks = int(os.environ["GRADIENTFLOW_SIZE"])
    weights = [np.zeros(shape, np.float32) for shape in SHAPES]
    training = gf.training.ArrayLoop(comm, weights, group.strategy, on_failure="continue")
    optimizer = Recording(training, weights, lr=RATE, momentum=group.momentum)
    optimizer.history = []
    end, told = End(last), list[int]()
    for step in training.steps(_ENDLESS):
        if end.has_come(step):
            break
        changed = training.changed
        roster.begin(training.comm)
        log.write("gradient", step)
        everything = group.contribution(ranks, own, step)
        for index, place in enumerate(training.gradients):
            mine, everything = np.split(everything, [place.size])
            place[...] = mine.reshape(place.shape)
            training.ready(index)
        time.sleep(_PAUSE)
        is_made = training.wait().kind != "skipped"
        members = roster.members
        if is_made:
            optimizer.note(step, members, changed)
            log.write("step", step)
        optimizer.step()
        if is_made and told != members:
            told = members
            tell(members=members, lost=training.comm.lost)
    training.finish()
    survival: Any = training._loop.ranks
    found, residuals = flat(weights), flat(training.synchronizer.withheld().residuals)
    np.savez(last.with_name(f"left.{own}"), weights=found, residuals=residuals)
    history, steps = list[tuple[int, list[int]]](), 0  # for those that have steps of their own
    if isinstance(group.check, Means):
        steps = survival.numbers.next  # the last ones may have been undone in the end
        history = [entry for entry in optimizer.history if entry[0] < steps]
    tell(members=roster.members, history=history, steps=steps, checksum=checksum(found))
    training.close()


def main() -> None:
    """Run to the end."""
    tell(begins=True)
    last, own, name = sys.argv[1:]
    try:
        _train(int(own), Path(last), GROUPS[name])
    except GradientFlowError as error:
        tell(error=f"{type(error).__name__}: {error}")


if __name__ == "__main__":
    main()
