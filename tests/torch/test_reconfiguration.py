"""Processes that have each other's handles meet, with any PyTorch: here all of them are in one process."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from gradientflow import Config
from gradientflow.errors import CommunicationTimeoutError


@pytest.fixture
def reconfiguration() -> Callable[[Config, str], Any]:
    """Give the class, imported when a test runs: for every worker that collects tests it would take a second."""
    pytest.importorskip("torch")
    from gradientflow.torch.process_group.reconfiguration import Reconfiguration

    return Reconfiguration


def options(handles: Sequence[str] | set[str], timeout: timedelta | None = None) -> SimpleNamespace:
    return SimpleNamespace(handles=handles, uuid=1, timeout=timeout, hints={})


@pytest.mark.parametrize("kind", [list, set])
def test_all_who_come_have_their_places(
    reconfiguration: Callable[[Config, str], Any], kind: type[list[str] | set[str]]
) -> None:
    """In a set, those that have been ranks keep their order."""
    everybody = [reconfiguration(Config(), "") for _ in range(3)]
    handles = [each.handle(rank) for each, rank in zip(everybody, [2, 10, None], strict=True)]
    with ThreadPoolExecutor(3) as threads:
        members = list(threads.map(lambda each: each.members(options(kind(handles))), everybody))
    assert [each.place for each in members] == [(0, 3), (1, 3), (2, 3)]


@pytest.mark.parametrize(
    ("variable", "settings", "timeout", "whose"),
    [
        (60, {"timeout": 50}, timedelta(seconds=0.1), "timeout of the reconfiguration"),
        (60, {"timeout": 0.1}, None, "timeout of the process group"),
        (0.1, {}, None, "GRADIENTFLOW_TIMEOUT"),
    ],
)
def test_the_error_says_whose_timeout_it_was(
    reconfiguration: Callable[[Config, str], Any],
    variable: float,
    settings: dict[str, float],
    timeout: timedelta | None,
    whose: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("GRADIENTFLOW_TIMEOUT", str(variable))
    mine, other = (reconfiguration(Config(**settings), "") for _ in range(2))
    given = options([mine.handle(None), other.handle(None)], timeout)
    text = rf"^process group: Timed out waiting: .* after 0\.1 s \({whose}\) on rank 0: no sign of rank 1$"
    with pytest.raises(CommunicationTimeoutError, match=text):
        mine.members(given)
