"""Results: the figures that all benches have, and the JSON file of a run.

Scripts rely on the names of the fields. Fields that all benches share are:

- ``backend``, ``dtype``, ``wire``, ``device``, ``ranks``, ``nodes``, ``bytes``: the contestant and the size;
- ``iterations``: timed calls of the contestant, 0 where the result was wrong; all figures are None then;
- ``median_us``, ``min_us``, ``p95_us``: of the call alone, each with the time of its slowest rank;
- ``refill_median_us``: of writing fresh values and the call, together;
- ``algbw_GBps``, ``busbw_GBps``: bandwidth at the median, in 10^9 bytes per second;
- ``cpu_us``: processor time of a call, user and system, of all ranks' processes together; the mean;
- ``link_share``: the least time that the links between the hosts need for the call, over the median; None where their
  rate is not known;
- ``wrong``: wrong elements, summed over ranks and checks.
"""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from .case import COLLECTIVES, Case
from .measure import Times


def shared(
    case: Case,
    backend: str,
    wire: str,
    nodes: int,
    wrong: int,
    times: Times | None,
    link_seconds: float | None = None,
) -> dict[str, Any]:
    """Give the fields that all benches have.

    Parameters
    ----------
    case : Case
        The case.
    backend, wire : str
        The library, and the dtype of its messages.
    nodes : int
        The number of nodes.
    wrong : int
        Wrong elements found; times are ignored then.
    times : Times or None
        None where it was not timed.
    link_seconds : float or None
        The least time that the links between the hosts need for it, where that is known.

    Returns
    -------
    dict
        By the names of the fields.
    """
    what = {"backend": backend, "dtype": case.dtype, "wire": wire, "ranks": case.ranks, "nodes": nodes}
    timed = None if wrong else times
    return {**what, "bytes": case.bytes, "wrong": wrong, **figures(case, timed, link_seconds)}


def figures(case: Case, times: Times | None, link_seconds: float | None) -> dict[str, Any]:
    """Compute the figures of results from times; all None without times.

    Parameters
    ----------
    case : Case
        The case.
    times : Times or None
        The times of one contestant; None where it was not timed, or was wrong.
    link_seconds : float or None
        The least time that the links between the hosts need for it, where that is known.

    Returns
    -------
    dict
        By the names of the fields.
    """
    if times is None:
        names = ("median_us", "min_us", "p95_us", "refill_median_us", "algbw_GBps", "busbw_GBps", "cpu_us")
        return {"iterations": 0, **dict.fromkeys((*names, "link_share"))}
    median = float(np.median(times.call)) / 1e3
    bandwidth = case.bytes / (median * 1e3)
    return {
        "iterations": len(times.call),
        "median_us": round(median, 3),
        "min_us": round(float(times.call.min()) / 1e3, 3),
        "p95_us": round(float(np.percentile(times.call, 95)) / 1e3, 3),
        "refill_median_us": round(float(np.median(times.refill)) / 1e3, 3),
        "algbw_GBps": round(bandwidth, 6),
        "busbw_GBps": round(bandwidth * COLLECTIVES[case.collective].bus_factor(case.ranks), 6),
        "cpu_us": round(float(times.processor.mean()) / 1e3, 3),
        "link_share": None if link_seconds is None else round(link_seconds * 1e6 / median, 4),
    }


def write_json(
    path: str,
    environment: Mapping[str, Any],
    results: Sequence[Any],
    others: Mapping[str, Sequence[Any]] | None = None,
) -> None:
    """Write one object ``{"environment": ..., "results": [...]}``, with other results under names of their own."""
    tables = {"results": results, **(others or {})}
    lists = {name: [record(result) for result in table] for name, table in tables.items()}
    text = json.dumps(_finite({"environment": environment, **lists}), indent=2, default=repr)
    Path(path).write_text(text + "\n", encoding="utf-8")


def write_csv(path: str, results: Sequence[Any]) -> None:
    """Write a line of names, and one for each result; other values than numbers and text are written as JSON."""
    rows = [dict(result.row()) if hasattr(result, "row") else record(result) for result in results]
    with Path(path).open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(dict.fromkeys(name for row in rows for name in row)))
        writer.writeheader()
        for row in rows:
            writer.writerow({name: _cell(value) for name, value in row.items()})


def _cell(value: Any) -> Any:
    return json.dumps(_finite(value), default=repr) if isinstance(value, Mapping | list | tuple) else value


def _finite(value: Any) -> Any:
    """Replace numbers that are not finite, such as a diverged loss, by None."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): _finite(each) for key, each in value.items()}
    return [_finite(each) for each in value] if isinstance(value, list | tuple) else value


def record(result: Any) -> dict[str, Any]:
    """Give the record of a result for a result file: its fields, or that of its own method."""
    return dict(result.record()) if hasattr(result, "record") else asdict(result)
