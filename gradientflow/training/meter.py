"""Times, bytes and arrivals of a training's last steps, from which its metrics are made."""

from __future__ import annotations

import time

import numpy as np

from gradientflow.metrics.names import WINDOW
from gradientflow.metrics.registry import Values

from .status import Numbers, seconds_of

_Row = tuple[float, float, int | None, list[float] | None]


class Meter:
    """Record of the last steps. Written by the thread that trains, read by any thread.

    Attributes
    ----------
    dropped : int
        Iterations without a step.
    waited : float
        Seconds for which the step under way has waited so far.
    details : dict
        Metrics that take a pass over memory, or a look at the pools, from the last step after `live` was called.
    wants_details : bool
        True if the end of the next step is to set `details`.
    """

    def __init__(self) -> None:
        self.dropped = 0
        self.waited = 0.0
        self.details: Values = {}
        self.wants_details = False
        self._busy: list[float] | None = None
        self._waited_from = 0.0  # when the last exchange was waited for, in seconds of `time.monotonic`
        self._met = 0.0  # when that exchange ended
        self._ended = 0.0  # when the last step ended; 0 before
        self._steps = 0
        self._sent: int | None = None  # bytes sent by the last step
        # Seconds, seconds waited, bytes sent and `Status.busy` of each of the last steps, in a ring.
        self._ring: list[_Row] = []

    # ---- the thread that trains ----------------------------------------------------------------------------------

    @property
    def waited_from(self) -> float:
        """Time since which the last exchange was waited for, in seconds of `time.monotonic`."""
        return self._waited_from

    def busy(self) -> float:
        """Return the seconds since the last exchange ended, in which no rank waited for this one; 0 before it."""
        return time.monotonic() - self._met if self._met else 0.0

    def exchanged(self, waited_from: float, busy: list[float] | None) -> None:
        """Note that an exchange has ended, and `Status.busy`."""
        self._met = time.monotonic()
        self._waited_from = waited_from
        self.waited += self._met - waited_from
        self._busy = busy

    def stepped(self, sent: int | None) -> None:
        """Note that a step has ended; `sent` are the bytes that this rank has sent so far, if known."""
        now = time.monotonic()
        if self._ended:
            bytes_of_step = None if sent is None or self._sent is None else max(0, sent - self._sent)
            row = now - self._ended, self.waited, bytes_of_step, self._busy
            if len(self._ring) < WINDOW:
                self._ring.append(row)
            else:
                self._ring[(self._steps - 1) % WINDOW] = row  # the first step has none
        self._steps += 1
        self._ended, self._sent, self._busy, self.waited = now, sent, None, 0.0

    # ---- any thread ----------------------------------------------------------------------------------------------

    def live(self) -> Values:
        """Return the metrics that can be known without a look at the gradients, and the latest `details`."""
        self.wants_details = True
        return self.values()

    def values(self) -> Values:
        """Return all metrics that are known, by name."""
        rows, steps = self._ring.copy(), self._steps
        found: Values = {"gradientflow_steps_total": steps, "gradientflow_dropped_steps_total": self.dropped}
        if self._sent is not None:
            found["gradientflow_sent_bytes_total"] = self._sent
        found |= self.details
        if rows:
            seconds, waited, sent, busy = rows[(steps - 2) % WINDOW if len(rows) == WINDOW else -1]
            found |= {
                "gradientflow_step_seconds": seconds,
                "gradientflow_mean_step_seconds": sum(row[0] for row in rows) / len(rows),
                "gradientflow_exposed_seconds": waited,
                "gradientflow_mean_exposed_seconds": sum(row[1] for row in rows) / len(rows),
            }
            known = [row[2] for row in rows if row[2] is not None]
            if sent is not None:
                found["gradientflow_step_sent_bytes"] = sent
                found["gradientflow_mean_step_sent_bytes"] = sum(known) / len(known)
            if busy is not None:
                found |= _last("gradientflow_last_rank", seconds_of(busy))
                found |= _last("gradientflow_slowest_rank", _mean_of(busy, rows))
        return {name: float(value) for name, value in found.items()}


def _mean_of(last: list[float], rows: list[_Row]) -> Numbers:
    """Return the mean seconds of the steps in which the times of all ranks are known."""
    same = [row[3] for row in rows if row[3] is not None and len(row[3]) == len(last) and all(row[3])]
    return seconds_of(np.mean(same, axis=0).tolist() if same else last)


def _last(name: str, seconds: Numbers) -> Values:
    """Return the rank that came last, and its lag; nothing unless two ranks were busy."""
    there = np.flatnonzero(seconds)
    if len(there) < 2:
        return {}
    last = int(seconds.argmax())
    lag = seconds[last] - np.median(seconds[there[there != last]])
    return {name: last, f"{name}_lag_seconds": max(0.0, float(lag))}


__all__ = ["Meter"]
