"""Who takes part in a training, by the numbers that their processes were given."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import numpy as np

import gradientflow as gf
from gradientflow.errors import RecoverableError
from gradientflow.training.survival import Survival

from .log import wrap


class Roster:
    """The numbers of those that take part. All tell each other theirs whenever they agree on where to go on.

    Parameters
    ----------
    own : int
        The number of this process.

    Attributes
    ----------
    members : list of int
        By rank; empty until it is known.
    """

    def __init__(self, own: int) -> None:
        self.own = own
        self.members: list[int] = []

        @contextlib.contextmanager
        def gathering(original: Any, survival: Survival, synchronizer: Any) -> Iterator[Any]:
            with original(survival, synchronizer) as plan:
                yield plan
                self._gather(survival.comm)  # raises if another one is lost; then this is called again

        wrap(Survival, "catching_up", gathering)

    def begin(self, comm: gf.Communicator) -> None:
        """Find out who takes part in the first step. If somebody is lost meanwhile, the step finds that out, too."""
        if not self.members:
            with contextlib.suppress(RecoverableError):
                self._gather(comm)

    def _gather(self, comm: gf.Communicator) -> None:
        self.members = comm.allgather(np.array([self.own])).ravel().tolist()


__all__ = ["Roster"]
