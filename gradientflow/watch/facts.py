"""Facts that other parts of the package know about this process: its last calls, and its metrics."""

from __future__ import annotations

import os
import time
from typing import Any

from gradientflow import recorder
from gradientflow._location import core
from gradientflow.annotations import JsonObject
from gradientflow.metrics.registry import sources as metrics_sources

# Figures and their metrics.
_FIGURES = {
    "steps": "gradientflow_steps_total",
    "bytes": "gradientflow_sent_bytes_total",
    "step_seconds": "gradientflow_step_seconds",
    "mean_step_seconds": "gradientflow_mean_step_seconds",
    "mean_exposed_seconds": "gradientflow_mean_exposed_seconds",
    "residual": "gradientflow_residual_norm",
    "slowest_rank": "gradientflow_slowest_rank",
    "slowest_lag_seconds": "gradientflow_slowest_rank_lag_seconds",
}


def calls() -> list[JsonObject]:
    """Return the calls under way, and the last call of each communicator.

    A call has the entries ``on``, the name of its communicator, equal on all ranks; ``sequence``, its number there, 0
    unless collective; ``members``, the ranks of the communicator, empty if unknown; ``peer``, the rank of a message
    under way; ``text``; ``line``, its place in the program; and ``seconds`` since its begin, None after its end.
    """
    log: Any = core.recorder
    now = time.monotonic()
    sources = {each["number"]: each for each in log.sources()}
    found: dict[object, JsonObject] = {}
    for entry in recorder.entries.located_entries():
        source, is_message = sources.get(entry["source"]), entry["form"] in ("send", "receive")
        under_way = entry["state"] == "under way"
        if source is None or not (entry["sequence"] or (is_message and under_way)):
            continue
        call = {
            "on": (on := recorder.entries.identity(entry, source)),
            "sequence": entry["sequence"],
            "members": source["members"],
            "peer": _peer(source, entry["peer"]) if is_message else None,
            "text": entry["text"] + " of a pool" * (entry["form"] in ("ready", "wait")),
            "line": _line(entry),
            "seconds": now - entry["began"] if under_way else None,
        }
        found[entry["number"] if under_way else on] = call
    return list(found.values())


def figures() -> dict[str, float]:
    """Return figures of the first training, by the names of `_FIGURES`, as far as they are known."""
    found: dict[str, float] = {}
    for source in metrics_sources():
        metrics = source.metrics()
        found = {**{name: metrics[metric] for name, metric in _FIGURES.items() if metric in metrics}, **found}
    return found


def dump(folder: str, rank: int) -> str:
    """Write the last calls of this process into a file of a folder; return the file."""
    path = os.path.join(folder, f"rank{rank}.jsonl")
    recorder.dump(path)
    return path


def _peer(source: JsonObject, rank: int) -> int:
    members: list[int] = source["members"]
    return members[rank] if members else rank


def _line(entry: JsonObject) -> str:
    code = entry["code"]
    return f"{os.path.basename(code.co_filename)}:{entry['line']}" if hasattr(code, "co_filename") else ""


__all__ = ["calls", "dump", "figures"]
