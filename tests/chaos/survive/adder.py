"""A rank of ``python tests/chaos survive`` that adds up whole numbers, and goes on whenever others die or come.

Its arguments are a file and its number. It goes on until the file exists, and prints lines of JSON: that it begins, the
members of each communicator when a step with it has ended, and what it has in the end. Members are named by the numbers
that their processes were given: a rank that is started again has a new one.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np

import gradientflow as gf
from gradientflow.agreement import gather
from gradientflow.errors import GradientFlowError, RecoverableError

from .sums import add, gradient, new_weights
from .telling import checksum, tell


class Loop:
    """The state of a rank that must outlive others.

    Parameters
    ----------
    comm : gradientflow.Communicator
        All ranks.
    own : int
        The number of this process.
    """

    def __init__(self, comm: gf.Communicator, own: int) -> None:
        self.comm = comm
        self.own = own
        self.members: list[int] = []
        self.weights = new_weights()
        self.steps = 0 if comm.recovered_from is None else -1  # who joins has nothing yet
        self.is_over = False
        self.history: list[tuple[int, list[int]]] = []
        self._is_settled = False

    def advance(self, *, end: bool) -> None:
        """Take a step, once all have the same state and nobody waits to be let in.

        Parameters
        ----------
        end : bool
            Whether this rank wants the step to be the last one.
        """
        if not self._is_settled:
            self._settle()
        elif (wider := self.comm.admit()) is not self.comm:
            self.comm, self._is_settled = wider, False
        else:
            mine = np.append(gradient(self.own, self.steps), float(end))
            total = self.comm.allreduce(mine)
            add(self.weights, total[:-1])
            self.steps += 1
            self.is_over = total[-1] > 0

    def recover(self) -> None:
        """Go on with those that are left, from the last step that any of them has finished."""
        self.comm, self._is_settled = self.comm.recover(), False

    def _settle(self) -> None:
        members, steps = self.comm.allgather(np.array([self.own, self.steps])).T.tolist()
        newest = max(steps)
        if newest < 0:
            raise RuntimeError("nobody has the state")
        if min(steps) < newest:
            root = steps.index(newest)
            told = gather(self.comm, json.dumps(self.history).encode() if self.comm.rank == root else b"")
            weights = np.append(self.weights, float(self.is_over))
            self.comm.broadcast(weights, root)
            self.weights, self.steps, self.is_over = weights[:-1].copy(), newest, bool(weights[-1])
            self.history = json.loads(told[root])
        self.members = members
        self.history = [entry for entry in self.history if entry[0] < newest]
        self.history.append((newest, members))
        self._is_settled = True


def _run(loop: Loop, last: Path) -> None:
    """Take steps until the file exists."""
    told = (0, loop.members)
    while not loop.is_over:
        try:
            loop.advance(end=last.exists())
        except RecoverableError:
            loop.recover()
        if loop.history and loop.steps > loop.history[-1][0] and told != loop.history[-1]:
            told = loop.history[-1]
            tell(members=loop.members, lost=loop.comm.lost)


def main() -> None:
    """Run to the end."""
    tell(begins=True)
    try:
        loop = Loop(gf.join(), int(sys.argv[2]))
        _run(loop, Path(sys.argv[1]))
    except GradientFlowError as error:
        tell(error=f"{type(error).__name__}: {error}")
        return
    tell(members=loop.members, history=loop.history, steps=loop.steps, checksum=checksum(loop.weights))
    loop.comm.close()


if __name__ == "__main__":
    main()
