"""The share of communication that backpropagation hides, logged once in a training by rank 0."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from gradientflow.communicator import Communicator
from gradientflow.pools.base import RangeReport

logger = logging.getLogger("gradientflow")

_SKIPPED, _MEASURED = 5, 5  # iterations: the first are not representative


class Overlap:
    """The travel time of ranges, and its part before the step waits for them, summed over some iterations.

    Parameters
    ----------
    comm : Communicator or None
        The ranks; the first measures if there are several nodes. None if ranges report no times.
    """

    def __init__(self, comm: Communicator | None) -> None:
        is_wanted = comm is not None and comm.rank == 0 and comm.nodes > 1
        self._left = _SKIPPED + _MEASURED if is_wanted else 0
        self._seconds = self._hidden = 0.0

    @property
    def is_wanted(self) -> bool:
        """True if the reports of this iteration count."""
        return self._left > 0

    def note(self, waited_from: float, reports: Sequence[RangeReport]) -> None:
        """Add the reports of an iteration whose step has waited since `waited_from`, in seconds of `time.monotonic`."""
        self._left -= 1
        if self._left >= _MEASURED:
            return
        for each in reports:
            self._seconds += each.ended - each.started
            self._hidden += max(0.0, min(each.ended, waited_from) - each.started)
        if not self._left and self._seconds:
            percent = 100 * self._hidden / self._seconds
            logger.info("%.0f %% of communication is hidden behind backpropagation", percent)


__all__ = ["Overlap"]
