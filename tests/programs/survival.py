"""Train on whole numbers, and go on when ranks are killed, or started again: one training after the other.

The arguments: a folder, and the trainings as JSON, each the name of a group of `survival_groups`, a list of `Fate`, and
the dtypes of the tensors. Each rank leaves in a folder of each training what the check of its group needs.
"""

from __future__ import annotations

import json
import os
import random
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import paths  # noqa: F401
from fates import Fates
from survival_groups import SHARED, STEPS, TRAININGS

import gradientflow as gf
from gradientflow.errors import ArgumentError

from survive import local_log, rounds_log
from survive.groups import Group
from survive.log import Log
from survive.roster import Roster
from survive.task import RATE, SHAPES, flat
from survive.telling import checksum
from survive.trainee import Recording


class Arrays:
    """Trains NumPy arrays."""

    def __init__(self, comm: gf.Communicator, group: Group, dtypes: Sequence[str]) -> None:
        self.weights = [np.zeros(shape, dtype) for shape, dtype in zip(SHAPES, dtypes, strict=True)]
        self.loop = gf.training.ArrayLoop(comm, self.weights, group.strategy, on_failure="continue", min_ranks=1)
        begins = comm.recovered_from is None or len(comm.recovered_from) == comm.size
        lr = RATE if begins else 2 * RATE  # newcomers get that of the others
        self.record = Recording(self.loop, self.weights, lr=lr, momentum=group.momentum)
        self.record.history = []

    def step(self, step: int, everything: Any, note: Callable[[], None]) -> None:
        """Make a step with a gradient, and note it if it is made."""
        for index, place in enumerate(self.loop.gradients):
            own, everything = np.split(everything, [place.size])
            place[...] = own.reshape(place.shape)
            self.loop.ready(index)
        if self.loop.wait().kind != "skipped":
            note()
        self.record.step()

    @property
    def masters(self) -> Any:
        """All weights, as they were before they were rounded."""
        return flat([self.record.masters.get(index, each) for index, each in enumerate(self.weights)])

    @property
    def residuals(self) -> Any:
        """All residuals."""
        return flat(self.loop.synchronizer.withheld().residuals)


class _Logs:
    """The log of the training under way: synchronizers write into one log only."""

    log: Log

    def write(self, *entry: object) -> None:
        self.log.write(*entry)


class Rank:
    """This process in all trainings."""

    def __init__(self, make: Callable[[gf.Communicator, Group, Sequence[str]], Any]) -> None:
        self.folder, self.trainings = Path(sys.argv[1]), json.loads(sys.argv[2])
        life = int(os.environ.get("GRADIENTFLOW_RESTARTS", "0"))
        self.comm, self.make = gf.join(), make
        place = int(os.environ.get("GRADIENTFLOW_RANK", self.comm.rank))
        self.size = int(os.environ.get("GRADIENTFLOW_SIZE", self.comm.size))
        self.own = 10 * life + place
        self.roster, self.logs = Roster(self.own), _Logs()
        local_log.keep(self.logs, self.roster)  # type: ignore[arg-type]
        rounds_log.keep(self.logs, self.roster)  # type: ignore[arg-type]
        self.fates = Fates(place, life, [fates for _, fates, _ in self.trainings], self.folder)

    def run(self) -> None:
        """Train."""
        for number in range(self.fates.first, len(self.trainings)):
            trainee = self._train(number)
            if number + 1 < len(self.trainings):
                others = [self.folder / str(number) / f"words.{own}" for own in self.roster.members]
                while not all(each.exists() for each in others):  # recover() ends what others have under way
                    time.sleep(0.005)
                self.comm = trainee.loop.comm.recover(1)
                self.roster.members = []
            trainee.loop.close()

    def _train(self, number: int) -> Any:
        name, _, dtypes = self.trainings[number]
        group, folder, before = TRAININGS[name], self.folder / str(number), list[int]()
        self.logs.log = Log(folder, self.own)
        self.fates.before(number)
        trainee = self.make(self.comm, group, dtypes)
        loop, record = trainee.loop, trainee.record
        if number == self.fates.first and self.own >= 10:
            _require_that_a_newcomer_cannot_finish(loop)
        for step in loop.steps(STEPS):
            changed, now = loop.changed, loop.membership
            self.roster.begin(loop.comm)
            members = self.roster.members
            if before and changed:
                assert members[: len(now.ranks)] == [before[rank] for rank in now.ranks]
                assert {before[rank] for rank, _ in now.left} == set(before) - set(members)
            assert not members or members[now.rank] == self.own
            before = members
            self.fates.begin(number, step, loop)
            if group.keep is rounds_log.keep:
                time.sleep(random.random() * 0.002)  # ranks are at other steps
            self.logs.write("gradient", step)

            def note(step: int = step, members: list[int] = members, changed: bool = changed) -> None:
                self.logs.write("step", step)
                record.note(step, members, changed)

            trainee.step(step, group.contribution(self.size, self.own, step), note)
            if group.keep is rounds_log.keep:
                self.logs.write("weights", checksum(trainee.masters))
            self.fates.end()
        masters = trainee.masters
        assert np.array_equal(flat([each.astype(np.float32) for each in trainee.weights]), rounded(masters, dtypes))
        np.savez(folder / f"left.{self.own}", weights=masters, residuals=trainee.residuals)
        words = {"members": self.roster.members, "steps": STEPS, "history": record.history if name in SHARED else []}
        (folder / f"words.{self.own}").write_text(json.dumps(words))
        return trainee


def rounded(weights: Any, dtypes: Sequence[str]) -> Any:
    """Return weights as tensors of these dtypes hold them."""
    parts = np.split(weights, np.cumsum([np.prod(shape) for shape in SHAPES])[:-1])
    return flat([part.astype(dtype).astype(part.dtype) for part, dtype in zip(parts, dtypes, strict=True)])


def _require_that_a_newcomer_cannot_finish(loop: Any) -> None:
    try:
        loop.finish()
    except ArgumentError:  # before its first step
        return
    sys.exit("a newcomer has finished the training of others")


if __name__ == "__main__":
    Rank(Arrays).run()
