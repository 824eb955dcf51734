"""Processor seconds of each test, its jobs included, also in runs of a reference loop, as fast as the machine is then.

A test's seconds are those of the worker and all its descendants between the test's begin and its end. Ranks are forked
from servers that stay, so the servers' seconds count, too. Every item has them in the JUnit file, as the properties
``processor_seconds`` and ``reference_loops``; the end of a run shows their sum, by file with ``--durations``.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress

import pytest

SECONDS, LOOPS = "processor_seconds", "reference_loops"

_TICKS = os.sysconf("SC_CLK_TCK")
_RENEWED = 10.0  # seconds after which the loop is timed again


def reference_seconds() -> float:
    """Return the processor seconds of a fixed loop of Python, about 1, of which a fiftieth runs."""
    begin = time.thread_time()
    total = 0
    for i in range(500_000):
        total += i & 3
    return 50 * (time.thread_time() - begin)


def spent(process: int) -> float:
    """Return the processor seconds of a process, its descendants, and those that they have waited for."""
    seconds = 0.0
    with suppress(OSError), open(f"/proc/{process}/stat", encoding="utf-8", errors="replace") as file:
        fields = file.read().rpartition(")")[2].split()
        seconds = sum(map(int, fields[11:15])) / _TICKS
    # A process or thread that has just ended has no files any more; its parent counts it from now on.
    with suppress(OSError):
        for thread in os.listdir(f"/proc/{process}/task"):
            with suppress(OSError), open(f"/proc/{process}/task/{thread}/children", encoding="utf-8") as file:
                seconds += sum(map(spent, map(int, file.read().split())))
    return seconds


class ProcessorTime:
    """The plugin."""

    _timed_at = -_RENEWED

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        if time.monotonic() > self._timed_at + _RENEWED:
            self._reference, self._timed_at = reference_seconds(), time.monotonic()
        self._begin = spent(os.getpid())
        return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
        if call.when == "teardown":
            seconds = spent(os.getpid()) - self._begin
            item.user_properties += [(SECONDS, round(seconds, 2)), (LOOPS, round(seconds / self._reference, 3))]
        return (yield)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
        by_file: Counter[str] = Counter()
        loops = 0.0
        for reports in terminalreporter.stats.values():
            for report in reports:
                if isinstance(report, pytest.TestReport) and report.when == "teardown":
                    found = dict(report.user_properties)
                    by_file[report.location[0]] += found.get(SECONDS, 0.0)
                    loops += found.get(LOOPS, 0.0)
        if not by_file:
            return
        terminalreporter.section("processor seconds")
        if config.option.durations:
            for file, seconds in by_file.most_common():
                terminalreporter.write_line(f"{seconds:8.1f}  {file}")
        terminalreporter.write_line(f"{by_file.total():8.1f}  in all, {loops:.0f} times the reference loop")
