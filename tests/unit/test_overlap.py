"""What is said of the share of communication that backpropagation hides."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any

import pytest

from gradientflow.pools.base import RangeReport
from gradientflow.training.overlap import Overlap


def comm_of(rank: int, nodes: int) -> Any:
    return SimpleNamespace(rank=rank, nodes=nodes)


def report(started: float, ended: float) -> RangeReport:
    return RangeReport(1, 1, None, "ring", started, started, ended)


def test_share_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "gradientflow")
    overlap, iterations = Overlap(comm_of(0, 2)), 0
    # Of 10 seconds, 3 have passed before the wait begins; an exchange that has not begun then is not hidden at all.
    while overlap.is_wanted:
        overlap.note(13.0, [report(10.0, 14.0), report(14.0, 20.0)])
        iterations += 1
    assert iterations > 1
    assert [each.getMessage() for each in caplog.records] == ["30 % of communication is hidden behind backpropagation"]


@pytest.mark.parametrize("comm", [comm_of(1, 2), comm_of(0, 1), None])
def test_nothing_is_measured_elsewhere(comm: Any) -> None:
    assert not Overlap(comm).is_wanted


def test_nothing_is_said_without_reports(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "gradientflow")
    overlap = Overlap(comm_of(0, 2))
    while overlap.is_wanted:
        overlap.note(13.0, [])
    assert not caplog.records
