"""Results: the fields common to several benches, and the files made of results.

A field is declared once, in the dataclass of a result: its name appears in JSON and CSV files, on which scripts rely,
and its metadata define how tables show it (`core.table.shown`).
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Protocol

import numpy as np

from gradientflow.annotations import JsonObject
from gradientflow.json_option import json_text
from gradientflow.machine import format_size

from .case import COLLECTIVES, Case
from .measure import Times
from .peers import OURS
from .table import AnyResult, Column, bandwidth, name, percentage, ratios, shown

_PEERS_NOTE = "The last columns are the peer's time over ours: below 1 we are slower."


@dataclass(frozen=True, kw_only=True)
class TimedResult:
    """The time of a call, and the number of wrong elements in its results.

    Attributes
    ----------
    median_us, min_us, p95_us : float or None
        Times of the call alone, on its slowest rank; None, like all figures, if the result was wrong.
    wrong : int
        Wrong elements, summed over ranks and checks.
    """

    median_us: float | None = field(metadata=shown("call"))
    min_us: float | None = field(metadata=shown("min"))
    p95_us: float | None = field(metadata=shown("p95"))
    wrong: int


@dataclass(frozen=True, kw_only=True)
class ContestantResult(TimedResult):
    """The figures of a contestant that all ranks run together.

    Attributes
    ----------
    backend, dtype, wire, device : str
        The library, the element type, the dtype of its messages, and the device.
    transport : str or None
        Transport of our messages between nodes: "mpi" or "tcp".
    ranks, nodes, bytes : int
        Numbers of ranks and nodes of the job, and the size.
    iterations : int
        Timed calls; 0 if the result was wrong.
    refill_median_us : float or None
        Time of writing fresh values and the call, together.
    cpu_us : float or None
        Processor time of a call, user and system, summed over all ranks' processes; the mean.
    link_share : float or None
        The least time that the links between the hosts need for the call, over the median; None if their rate is
        unknown.
    """

    backend: str
    dtype: str
    wire: str
    device: str = "cpu"
    transport: str | None = None
    ranks: int
    nodes: int
    bytes: int
    iterations: int
    refill_median_us: float | None = field(metadata=shown("filled"))
    cpu_us: float | None = field(
        metadata=shown("cpu", note="cpu is the processor time of a call, of all ranks together.")
    )
    link_share: float | None = field(
        metadata=shown(
            *("link", "%", percentage),
            note="link is the least time that the links need for what has to be sent, over call.",
        )
    )


@dataclass(frozen=True, kw_only=True)
class BandwidthResult(ContestantResult):
    """The figures of a contestant that moves all of its bytes.

    Attributes
    ----------
    algbw_GBps, busbw_GBps : float or None
        Bandwidth at the median, in 10^9 bytes per second.
    """

    algbw_GBps: float | None = field(metadata=shown("algbw", "GB/s", bandwidth))  # noqa: N815 - spelled like the unit
    busbw_GBps: float | None = field(metadata=shown("busbw", "GB/s", bandwidth))  # noqa: N815


def quantiles(nanoseconds: np.ndarray | None) -> JsonObject:
    """Give the times of `TimedResult`; None without samples."""
    if nanoseconds is None:
        return dict.fromkeys(("median_us", "min_us", "p95_us"))
    found = zip(("median_us", "min_us", "p95_us"), np.percentile(nanoseconds, (50, 0, 95)), strict=True)
    return {name: round(float(value) / 1e3, 3) for name, value in found}


def gigabytes_per_second(nbytes: float, microseconds: float | None) -> float | None:
    """Give the bandwidth of this many bytes in a time; None without the time."""
    return None if microseconds is None else round(nbytes / (microseconds * 1e3), 6)


class _Wired(Protocol):
    @property
    def backend(self) -> str: ...
    @property
    def wire(self) -> str: ...


def shared(
    case: Case, contestant: _Wired, nodes: int, wrong: int, times: Times | None, link_seconds: float | None = None
) -> JsonObject:
    """Give the fields of `ContestantResult` except for the device; times are ignored if there are wrong elements."""
    times = None if wrong else times
    link_seconds = None if times is None else link_seconds
    call = quantiles(None if times is None else times.call)
    filled = quantiles(None if times is None else times.refill)
    return {
        **{"backend": contestant.backend, "dtype": case.dtype, "wire": contestant.wire},
        **{"ranks": case.ranks, "nodes": nodes, "bytes": case.bytes, "wrong": wrong},
        "iterations": 0 if times is None else len(times.call),
        **call,
        "refill_median_us": filled["median_us"],
        "cpu_us": None if times is None else round(float(times.processor.mean()) / 1e3, 3),
        "link_share": None if link_seconds is None else round(link_seconds * 1e6 / call["median_us"], 4),
    }


def shared_with_bandwidth(
    case: Case, contestant: _Wired, nodes: int, wrong: int, times: Times | None, link_seconds: float | None = None
) -> JsonObject:
    """Give the fields of `BandwidthResult`, from the arguments of `shared`."""
    found = shared(case, contestant, nodes, wrong, times, link_seconds)
    factors = {"algbw_GBps": 1.0, "busbw_GBps": COLLECTIVES[case.collective].bus_factor(case.ranks)}
    rates = {name: gigabytes_per_second(case.bytes * by, found["median_us"]) for name, by in factors.items()}
    return {**found, **rates}


# ---- columns ---------------------------------------------------------------------------------------------------------

SIZE = name("size", lambda result: format_size(result.bytes) if result.bytes else "-", justify="right", repeats=False)
BACKEND = name("", lambda result: "ours" if result.backend == OURS else result.backend)


def transport_column(results: Sequence[AnyResult]) -> Column:
    """Make the column of our transport, shown if there are several transports."""
    several = len({result.transport for result in results if result.transport is not None}) > 1
    return name("transport", lambda result: result.transport or "", shown=several)


def wire_column(results: Sequence[ContestantResult]) -> Column:
    """Make the column of the wire dtype, shown if there was a choice."""
    return name("wire", "wire", shown=any(result.wire != result.dtype for result in results))


def over_peers(
    results: Sequence[AnyResult],
    block: Callable[[AnyResult], object],
    heading: str = "{} / ours",
    *,
    filled: bool = True,
    without: Sequence[str] = (),
    note: str = _PEERS_NOTE,
) -> list[Column]:
    """Make the columns that compare ours with each peer's result in the same block, or with each in `results`."""
    beside = {(block(result), result.backend): result for result in results}

    def compared(peer: str) -> Column:
        def find(result: AnyResult) -> object:
            return beside.get((block(result), peer)) if result.backend == OURS else None

        return ratios(heading.format(peer), find, filled=filled, note=note)

    peers = dict.fromkeys(result.backend for result in results)
    return [compared(peer) for peer in peers if peer not in (OURS, *without)]


# ---- files -----------------------------------------------------------------------------------------------------------


def figures_of(
    environment: Mapping[str, object],
    results: Sequence[object],
    others: Mapping[str, Sequence[object]] | None = None,
) -> JsonObject:
    """Give an object ``{"environment": ..., "results": [...]}``, with further results under the names in `others`."""
    tables = {"results": results, **(others or {})}
    lists = {name: [record(result) for result in table] for name, table in tables.items()}
    return {"environment": environment, **lists}


def write_csv(path: str, results: Sequence[object]) -> None:
    """Write a line of names, and one for each result; values other than numbers and text are written as JSON."""
    rows = [dict(result.row()) if hasattr(result, "row") else record(result) for result in results]
    with Path(path).open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(dict.fromkeys(name for row in rows for name in row)))
        writer.writeheader()
        for row in rows:
            writer.writerow({name: _cell(value) for name, value in row.items()})


def record(result: AnyResult) -> JsonObject:
    """Give the record of a result for a result file: its `record()`, or its fields, names before figures."""
    if hasattr(result, "record"):
        return dict(result.record())
    ordered = sorted(fields(result), key=lambda item: (item.name == "wrong", bool(item.metadata)))
    values = asdict(result)
    return {item.name: values[item.name] for item in ordered}


def _cell(value: object) -> object:
    return json_text(value) if isinstance(value, Mapping | list | tuple) else value
