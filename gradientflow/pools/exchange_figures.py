"""Figures of a pool's last exchange, from the reports on its ranges."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from .base import RangeReport


def exchange_figures(
    reports: Sequence[RangeReport], *, shares_memory: bool, has_times: bool, waited_from: float | None = None
) -> dict[str, float]:
    """Return the metrics of the last exchange, by name.

    Parameters
    ----------
    reports : sequence of RangeReport
        The reports of all pools.
    shares_memory : bool
        True if ranks of a node reduce the ranges in its memory.
    has_times : bool
        True if the times are of the exchange itself, as in memory of the host.
    waited_from : float, optional
        Time from which the step waited, in seconds of `time.monotonic`.
    """
    if not reports:
        return {}
    found: dict[str, float] = {}
    counted = [each.bytes_sent for each in reports if each.bytes_sent is not None]
    if len(counted) == len(reports):
        found["gradientflow_step_sent_bytes"] = float(sum(counted))
    if shares_memory:
        found["gradientflow_step_node_bytes"] = float(sum(each.nbytes for each in reports))
    spans = [(each.started, each.ended) for each in reports]
    seconds = _covered(spans)
    if has_times and seconds > 0:
        found["gradientflow_exchange_seconds"] = seconds
        for where in ("sent", "node"):
            nbytes = found.get(f"gradientflow_step_{where}_bytes", 0)
            if nbytes:
                found[f"gradientflow_{where}_bytes_per_second"] = nbytes / seconds
        if waited_from is not None:
            hidden = _covered((min(begin, waited_from), min(end, waited_from)) for begin, end in spans)
            found["gradientflow_hidden_ratio"] = hidden / seconds
    return found


def _covered(spans: Iterable[tuple[float, float]]) -> float:
    """Return the seconds in which at least one span is under way."""
    seconds = reached = 0.0
    for begin, end in sorted(spans):
        seconds += max(0.0, end - max(begin, reached))
        reached = max(reached, end)
    return seconds


__all__ = ["exchange_figures"]
