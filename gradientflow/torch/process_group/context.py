"""State shared by the works of a process group: a thread, unclaimed works, and the wording of errors."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NoReturn

from gradientflow.errors import CommunicationTimeoutError, GradientFlowError, PeerError

from .futures import FutureThread

_RANKS = re.compile(r"\branks? \d+(?:(?:, | and )\d+\b)*")
_MOST_KEPT = 64  # unclaimed works
_MOST_KEPT_BYTES = 1 << 20  # size of their results


class Unclaimed:
    """Works without references in Python for which no caller has waited.

    PyTorch's C++ may still hold such a work, and wait for it later: DistributedDataParallel does this with the call
    that counts the ranks left in a `join`. Without its Python object the work would never end, and Python cannot tell
    if C++ holds the work. So the latest works are kept if they are small. Most works here come from programs that do
    not wait.
    """

    def __init__(self) -> None:
        self._works: deque[tuple[object, int]] = deque()
        self._bytes = 0
        self._closed = False

    def keep(self, work: object, nbytes: int) -> None:
        """Keep a work with `nbytes` of results, and release the oldest works beyond the limits."""
        if self._closed:
            return
        self._works.append((work, nbytes))
        self._bytes += nbytes
        while len(self._works) > _MOST_KEPT or self._bytes > _MOST_KEPT_BYTES:
            self._bytes -= self._works.popleft()[1]

    def close(self) -> None:
        """Release all works, and keep none from now on: the group has ended, and its calls with it."""
        self._closed = True
        self._works.clear()
        self._bytes = 0


class WorkContext:
    """State shared by all works of a process group: their thread, unclaimed works, and the wording of errors.

    Parameters
    ----------
    world_ranks : sequence of int
        World rank of each rank of the group.
    timeout_of : str, optional
        Name of the object to which PyTorch gave the timeout; None if the timeout is GRADIENTFLOW_TIMEOUT.
    name : str
        Name of the group.
    """

    def __init__(self, world_ranks: Sequence[int], timeout_of: str | None = None, name: str = "") -> None:
        self.world_ranks = list(world_ranks)
        self.thread = FutureThread(f"gradientflow futures {name}")
        self.unclaimed = Unclaimed()
        self.has_lost_a_rank = False  # known from the errors so far
        self._same = self.world_ranks == list(range(len(self.world_ranks)))
        self._timeout_of = timeout_of

    @contextmanager
    def explaining(self) -> Iterator[None]:
        """Reword errors raised in a ``with`` block, by `explained`."""
        try:
            yield
        except GradientFlowError as error:
            self.raise_explained(error)

    def raise_explained(self, error: GradientFlowError) -> NoReturn:
        """Raise an error, which is being handled, as worded by `explained`."""
        if (explained := self.explained(error)) is error:
            raise error
        raise explained from error

    def explained(self, error: Exception) -> Exception:
        """Return an error of a communicator, worded for a process group.

        Ranks are given as world ranks. A timeout is worded like PyTorch's, with spaces around "Timed out": PyTorch's
        tests and other programs look for this text.
        """
        if not isinstance(error, GradientFlowError):
            return error
        self.has_lost_a_rank |= isinstance(error, PeerError)
        text = str(error)
        if not self._same:
            text = _RANKS.sub(self._in_world, text)
        if isinstance(error, CommunicationTimeoutError):
            if self._timeout_of is not None:
                text = text.replace("(GRADIENTFLOW_TIMEOUT)", f"(timeout of {self._timeout_of})")
            text = f"process group: Timed out waiting: {text}"
        return error if text == str(error) else type(error)(text)

    def _in_world(self, found: re.Match[str]) -> str:
        """Return "rank 1" or "ranks 0, 2" with group ranks replaced by world ranks."""
        return re.sub(r"\d+", lambda number: str(self._world_rank(int(number[0]))), found[0])

    def _world_rank(self, rank: int) -> int:
        return self.world_ranks[rank] if rank < len(self.world_ranks) else rank
