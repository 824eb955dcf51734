"""The policies of the core."""

from __future__ import annotations

from typing import Any

from gradientflow._location import load_core
from gradientflow.arguments import whole
from gradientflow.errors import ArgumentError

from .policy import Policy, RunningPolicy

MOST_AHEAD = 100_000  # pushes: each of them is looked at in a decision


class NativePolicy(Policy):
    """One that runs in the core: the name and the settings, in their order, are those of its constructor there."""

    def start(self, workers: int) -> RunningPolicy:
        """Return what decides for so many workers, from the beginning."""
        make: Any = getattr(load_core().RunningPolicy, self.name)
        running: RunningPolicy = make(whole("workers", workers, 1), *self.settings.values())
        return running


class BSP(NativePolicy):
    """Bulk synchronous parallel: one push of every worker is applied together, and all wait for it."""

    name = "bsp"
    keeps_step = True


class ASP(NativePolicy):
    """Asynchronous parallel: each push is applied as it comes, and nobody waits."""

    name = "asp"
    keeps_step = True


class SSP(NativePolicy):
    """Stale synchronous parallel: a worker goes on while it is at most `staleness` pushes ahead of the slowest one.

    Parameters
    ----------
    staleness : int
        0 or more.

    Raises
    ------
    gradientflow.errors.ArgumentError
        If it is negative.
    """

    name = "ssp"
    keeps_step = True

    def __init__(self, staleness: int) -> None:
        self.staleness = whole("staleness", staleness)


class DSSP(NativePolicy):
    """Dynamic stale synchronous parallel (elastic synchronization thesis): the fastest stops where it waits least.

    Within `low` pushes ahead of the slowest worker everybody goes on. Further ahead the fastest one is granted
    iterations, up to `high`: as many as bring its predicted push nearest to one of the slowest worker's.

    Parameters
    ----------
    low, high : int
        0 <= low <= high <= 100,000.
    judged : {"fastest", "all"}
        Who is granted iterations: as in the thesis the fastest worker, at its pushes, which then waits until it is
        within `low`; or each one that is ahead, and one that waits again each time that the slowest one pushes.

    Raises
    ------
    gradientflow.errors.ArgumentError
        If they are not.
    """

    name = "dssp"
    keeps_step = True

    def __init__(self, low: int, high: int, judged: str = "fastest") -> None:
        self.low = whole("low", low)
        self.high = whole("high", high, self.low, MOST_AHEAD)
        if judged not in ("fastest", "all"):
            message = f"judged is 'fastest' or 'all', not {judged!r}"
            raise ArgumentError(message)
        self.judged = judged

    def start(self, workers: int) -> RunningPolicy:
        """Return what decides for so many workers, from the beginning."""
        make: Any = load_core().RunningPolicy.dssp
        running: RunningPolicy = make(whole("workers", workers, 1), self.low, self.high, self.judged == "all")
        return running


class ElasticBSP(NativePolicy):
    """Elastic bulk synchronous parallel (same thesis): barriers, placed where the workers wait least for each other.

    After a barrier everybody goes on until each worker has pushed twice. From its last interval the next pushes of
    each are predicted, and one of each worker is chosen such that the time from the earliest to the latest is
    smallest. Each runs that far, and waits for the others.

    Parameters
    ----------
    lookahead : int, default 15
        Pushes of each worker that are predicted, 1 to 100,000.

    Raises
    ------
    gradientflow.errors.ArgumentError
        If it is another number.
    """

    name = "elastic_bsp"

    def __init__(self, lookahead: int = 15) -> None:
        self.lookahead = whole("lookahead", lookahead, 1, MOST_AHEAD)


__all__ = ["ASP", "BSP", "DSSP", "SSP", "ElasticBSP", "NativePolicy"]
