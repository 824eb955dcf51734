"""The result of ``gradientflow bench zipline``, and the table of results."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from ..core.results import TimedResult, quantiles
from ..core.table import Column, Layout, columns_of, name, shown

# Results by lookahead and workers, in the order of _IN_THE_THESIS (elastic synchronization thesis, Tables 6.3 and 6.4).
_IN_THE_THESIS = ("zipline", "zipline_opt", "zipline_opt_bs", "full_grid_scan", "grid_scan")
_SPREADS = {
    15: {10: 599, 50: 1103, 100: 1228, 500: 1351, 1000: 1403},
    150: {10: 518, 50: 1055, 100: 1175, 500: 1307, 1000: 1382},
}
_SPREADS_OF_GRID_SCAN = {
    15: {10: 599, 50: 1103, 100: 1345, 500: 1357, 1000: 1405},
    150: {10: 518, 50: 1103, 100: 1253, 500: 1344, 1000: 1401},
}
_MICROSECONDS = {
    15: {
        10: (1.49e2, 0.90e2, 1.24e2, 1.54e3, 1.68e2),
        100: (6.37e3, 2.46e3, 2.65e3, 8.13e4, 1.11e3),
        1000: (2.53e5, 9.39e4, 7.68e4, 4.04e6, 7.45e3),
    },
    150: {
        10: (1.32e3, 8.08e2, 1.15e3, 4.67e4, 5.50e3),
        100: (4.99e4, 1.93e4, 2.30e4, 2.15e6, 4.38e4),
        1000: (2.38e6, 7.78e5, 5.66e5, 2.07e8, 2.57e5),
    },
}


class Trial(NamedTuple):
    """A search: its time, its spread in milliseconds, if the spread is the smallest, and if the search is right."""

    nanoseconds: int
    spread: float
    is_optimal: bool
    is_right: bool


def _whole(number: float | None) -> str:
    return "-" if number is None else f"{number:.0f}"


@dataclass(frozen=True, kw_only=True)
class ZiplineResult(TimedResult):
    """The figures of a search at one size; `wrong` counts instances.

    Attributes
    ----------
    algorithm : str
        The search.
    workers, lookahead : int
        The size.
    draws : int
        Number of random instances that it has solved.
    spread_ms : float or None
        Mean time from the earliest to the latest chosen push.
    optimal_share : float
        The share of instances for which it has found the smallest spread.
    thesis_us, thesis_spread_ms : float or None
        Time and spread in the thesis, on its machine and instances; None for other sizes.
    """

    algorithm: str
    workers: int
    lookahead: int
    draws: int
    spread_ms: float | None = field(metadata=shown("spread", "ms", _whole))
    optimal_share: float
    thesis_us: float | None = field(metadata=shown("thesis"))
    thesis_spread_ms: float | None = field(
        metadata=shown(
            *("thesis", "ms", _whole),
            note="Beside them the figures of the thesis, on its machine and its instances.",
        )
    )


def summarize_search(algorithm: str, workers: int, lookahead: int, trials: Sequence[Trial]) -> ZiplineResult:
    """Make the result of a search from its trials."""
    taken, found, optimal, right = (np.array(column) for column in zip(*trials, strict=True))
    in_thesis = _MICROSECONDS.get(lookahead, {}).get(workers)
    spreads = _SPREADS_OF_GRID_SCAN if algorithm == "grid_scan" else _SPREADS
    is_there = algorithm in _IN_THE_THESIS
    return ZiplineResult(
        algorithm=algorithm,
        workers=workers,
        lookahead=lookahead,
        draws=len(trials),
        **quantiles(taken if right.all() else None),
        spread_ms=round(float(found.mean()), 3) if right.all() else None,
        optimal_share=round(float(optimal.mean()), 4),
        thesis_us=in_thesis[_IN_THE_THESIS.index(algorithm)] if in_thesis and is_there else None,
        thesis_spread_ms=spreads.get(lookahead, {}).get(workers) if is_there else None,
        wrong=int(np.count_nonzero(~right)),
    )


def _columns(results: Sequence[ZiplineResult], with_cpu: bool) -> list[Column]:
    return [
        name("workers", "workers", justify="right", repeats=False),
        name("pushes", "lookahead", justify="right", repeats=False),
        name("search", "algorithm"),
        *columns_of(ZiplineResult, results, "median_us", "p95_us", "thesis_us", "spread_ms", "thesis_spread_ms"),
        Column("optimal", lambda result: f"{100 * result.optimal_share:.0f}%"),
        Column("draws", lambda result: str(result.draws)),
    ]


def _legend(results: Sequence[ZiplineResult], with_cpu: bool) -> str:
    return (
        "Each worker's next pushes are predicted; a search chooses one of each such that the spread from the earliest "
        "to the latest is smallest. call is the median over random instances, spread the mean; optimal is the share of "
        "instances of which the smallest spread was found."
    )


LAYOUT = Layout(_columns, lambda result: (result.lookahead, result.workers), _legend)
