"""Built-in policies, which run in the core."""

from __future__ import annotations

from gradientflow._location import core
from gradientflow.arguments import checked_int
from gradientflow.errors import ArgumentError

from .policy import Policy, RunningPolicy

MOST_AHEAD = 100_000  # pushes; a single decision may visit every push up to this lead


class NativePolicy(Policy):
    """A policy of the core: `name` is its constructor in the core, and the settings, in order, are the arguments."""

    def start(self, workers: int) -> RunningPolicy:
        """Return a new running policy for this number of workers."""
        make = getattr(core.RunningPolicy, self.name)
        running: RunningPolicy = make(checked_int("workers", workers, 1), *self.settings.values())
        return running


class BSP(NativePolicy):
    """Bulk synchronous parallel: all workers wait until the mean of one push of each worker has been applied."""

    name = "bsp"
    keeps_step = True


class ASP(NativePolicy):
    """Asynchronous parallel: each push is applied on arrival, and no worker waits."""

    name = "asp"
    keeps_step = True


class SSP(NativePolicy):
    """Stale synchronous parallel: a worker proceeds while at most `staleness` pushes ahead of the slowest worker.

    Parameters
    ----------
    staleness : int
        Largest lead, in pushes: 0 or more.

    Raises
    ------
    gradientflow.errors.ArgumentError
        If `staleness` is negative.
    """

    name = "ssp"
    keeps_step = True

    def __init__(self, staleness: int) -> None:
        self.staleness = checked_int("staleness", staleness)


class DSSP(NativePolicy):
    """Dynamic stale synchronous parallel (elastic synchronization thesis): the fastest stops where it waits least.

    Workers at most `low` pushes ahead of the slowest proceed. A fast worker further ahead is granted more iterations,
    up to `high` ahead. Their number is chosen so that its predicted push then is nearest to a predicted push of the
    slowest worker.

    Parameters
    ----------
    low, high : int
        Bounds, in pushes ahead of the slowest worker: 0 <= low <= high <= 100,000.
    judged : {"fastest", "all"}
        Workers that are granted iterations. "fastest", as in the thesis: only the fastest worker, when it pushes; once
        this worker waits, it waits until it is within `low`. "all": every worker, when it pushes and, while it waits,
        at every push of the slowest worker.

    Raises
    ------
    gradientflow.errors.ArgumentError
        If an argument is out of range.
    """

    name = "dssp"
    keeps_step = True

    def __init__(self, low: int, high: int, judged: str = "fastest") -> None:
        self.low = checked_int("low", low)
        self.high = checked_int("high", high, self.low, MOST_AHEAD)
        if judged not in ("fastest", "all"):
            raise ArgumentError(f"judged is 'fastest' or 'all', not {judged!r}")
        self.judged = judged

    def start(self, workers: int) -> RunningPolicy:
        """Return a new running policy for this number of workers."""
        return core.RunningPolicy.dssp(checked_int("workers", workers, 1), self.low, self.high, self.judged == "all")


class ElasticBSP(NativePolicy):
    """Elastic bulk synchronous parallel (same thesis): barriers, placed where the workers wait least for each other.

    After a barrier all workers proceed until each has pushed twice. The next pushes of each worker are predicted from
    its last interval. The next barrier is one predicted push of each worker, chosen so that the time from the earliest
    to the latest of these pushes is shortest. Each worker runs up to its chosen push, and waits there for the remaining
    workers.

    Parameters
    ----------
    lookahead : int, default 15
        Number of pushes predicted for each worker, 1 to 100,000.

    Raises
    ------
    gradientflow.errors.ArgumentError
        If `lookahead` is out of range.
    """

    name = "elastic_bsp"

    def __init__(self, lookahead: int = 15) -> None:
        self.lookahead = checked_int("lookahead", lookahead, 1, MOST_AHEAD)


__all__ = ["ASP", "BSP", "DSSP", "SSP", "ElasticBSP", "NativePolicy"]
