"""Facts that other parts of the package know about this process: its last calls, and its metrics."""

from __future__ import annotations

import os

from gradientflow import recorder
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
    found: dict[object, JsonObject] = {}
    made = recorder.calls()
    members = {each["communicator"]: each["members"] for each in recorder.entries.communicators()}
    for call in made:
        on, is_message = call["communicator"], call["form"] in ("send", "receive")
        under_way = call["state"] == "under way"
        if on not in members or not (call["sequence"] or (is_message and under_way)):
            continue
        found[call["call"] if under_way else on] = {
            "on": on,
            "sequence": call["sequence"],
            "members": members[on],
            "peer": (members[on][call["peer"]] if members[on] else call["peer"]) if is_message else None,
            "text": call["text"] + " of a pool" * (call["form"] in ("ready", "wait")),
            "line": f"{os.path.basename(call['file'])}:{call['line']}" if call["file"] else "",
            "seconds": call["seconds"] if under_way else None,
        }
    return list(found.values())


def figures() -> dict[str, float]:
    """Return figures of the first training, by the names of `_FIGURES`, as far as they are known."""
    found: dict[str, float] = {}
    for source in metrics_sources():
        metrics = source.metrics()
        found = {**{name: metrics[metric] for name, metric in _FIGURES.items() if metric in metrics}, **found}
    return found


__all__ = ["calls", "figures"]
