"""What the works of a process group share: a thread, those for which nobody has waited, and the wording of errors."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NoReturn

from gradientflow.errors import CommunicationTimeoutError, GradientFlowError, PeerError

from .futures import FutureThread

_RANKS = re.compile(r"\branks? \d+(?:(?:, | and )\d+\b)*")
_MOST_KEPT = 64  # works that nobody has waited for
_MOST_KEPT_BYTES = 1 << 20  # of their results


class Unclaimed:
    """Works without references in Python for which nobody has waited.

    PyTorch's C++ may still hold one, and wait for it later: DistributedDataParallel does so with the call that counts
    the ranks left in a `join`. Without its Python object such a work would never end, and Python cannot tell whether
    C++ holds it. So the latest works are kept if they are small. Most come from programs that do not wait.
    """

    def __init__(self) -> None:
        self._works: deque[tuple[object, int]] = deque()
        self._bytes = 0
        self._closed = False

    def keep(self, work: object, nbytes: int) -> None:
        """Keep a work with `nbytes` of results, and release the oldest ones beyond the limits."""
        if self._closed:
            return
        self._works.append((work, nbytes))
        self._bytes += nbytes
        while len(self._works) > _MOST_KEPT or self._bytes > _MOST_KEPT_BYTES:
            self._bytes -= self._works.popleft()[1]

    def close(self) -> None:
        """Release all, and keep none from now on: the group has ended, and its calls with it."""
        self._closed = True
        self._works.clear()
        self._bytes = 0


class WorkContext:
    """Shared by all works of a process group: their thread, those for which nobody has waited, the wording of errors.

    Parameters
    ----------
    world_ranks : sequence of int
        The rank in the world of each rank of the group.
    timeout_of : str, optional
        What PyTorch gave the timeout to; None: it is GRADIENTFLOW_TIMEOUT.
    name : str
        Of the group.
    """

    def __init__(self, world_ranks: Sequence[int], timeout_of: str | None = None, name: str = "") -> None:
        self.world_ranks = list(world_ranks)
        self.thread = FutureThread(f"gradientflow futures {name}")
        self.unclaimed = Unclaimed()
        self.has_lost_a_rank = False  # by the errors so far
        self._same = self.world_ranks == list(range(len(self.world_ranks)))
        self._timeout_of = timeout_of

    @contextmanager
    def explaining(self) -> Iterator[None]:
        """Word the errors that come from within as `explained` does."""
        try:
            yield
        except GradientFlowError as error:
            self.raise_explained(error)

    def raise_explained(self, error: GradientFlowError) -> NoReturn:
        """Raise an error, which is being handled, as `explained` words it."""
        if (explained := self.explained(error)) is error:
            raise error
        raise explained from error

    def explained(self, error: Exception) -> Exception:
        """Return an error of a communicator, worded for a process group.

        Ranks are given as those of the world. A timeout is worded like PyTorch's, with spaces around "Timed out", which
        its own tests and other programs look for.
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
        """Return "rank 1" or "ranks 0, 2" with ranks of the world in place of those of the group."""
        return re.sub(r"\d+", lambda number: str(self._world_rank(int(number[0]))), found[0])

    def _world_rank(self, rank: int) -> int:
        return self.world_ranks[rank] if rank < len(self.world_ranks) else rank
