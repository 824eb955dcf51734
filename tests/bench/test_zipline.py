"""``gradientflow bench zipline``: its table, its file, and that it notices wrong searches."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

import gradientflow as gf
from gradientflow.bench.core.plan import PlanError, parse_counts
from gradientflow.bench.zipline.columns import ZiplineResult
from gradientflow.bench.zipline.plan import ALGORITHMS, EXACT, ZiplinePlan
from gradientflow.bench.zipline.session import ZiplineSession


@pytest.mark.thorough
def test_the_command_measures_every_search(tmp_path: Path) -> None:
    path, picture = tmp_path / "found.json", tmp_path / "found.png"
    arguments = ["--workers", "1,10", "--lookahead", "15", "--draws", "3", "--seconds", "0.05"]
    arguments += ["--policies", "bsp; elastic_bsp(4)", "--deciding", "8"]
    command = [sys.executable, "-m", "gradientflow", "bench", "zipline", *arguments, "--json", str(path)]
    command += ["--plot", str(picture)] if pytest.importorskip("matplotlib") else []
    finished = subprocess.run(command, capture_output=True, text=True, timeout=100, check=True)
    assert all(algorithm in finished.stdout for algorithm in ALGORITHMS)
    written = json.loads(path.read_text())
    results = written["results"]
    assert [each["policy"] for each in written["decisions"]] == ["bsp", "elastic_bsp(lookahead=4)"]
    assert all(0 < each["mean_us"] <= each["max_us"] for each in written["decisions"])
    assert [(each["workers"], each["algorithm"]) for each in results] == [
        (workers, algorithm) for workers in (1, 10) for algorithm in ALGORITHMS
    ]
    assert set(results[0]) == {field.name for field in fields(ZiplineResult)}
    assert all(each["wrong"] == 0 and each["median_us"] > 0 for each in results)
    assert all(each["optimal_share"] == 1 for each in results if each["algorithm"] in EXACT)
    assert picture.stat().st_size > 0


@pytest.mark.parametrize(
    "spoil",
    [
        lambda spread, barrier, pushes: (spread, barrier + 1, pushes),
        lambda spread, barrier, pushes: (spread, barrier, [push % 15 + 1 for push in pushes]),
    ],
)
def test_a_wrong_search_is_noticed(spoil: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    with gf.init() as comm:
        session = ZiplineSession(comm, ZiplinePlan((10,), (15,), ("smallest_window",), draws=2))
        find = session._find
        monkeypatch.setattr(session, "_find", lambda times, algorithm: spoil(*find(times, algorithm)))
        session.measure((10, 15), ())
    (result,) = session.outcome.results
    assert (result.wrong, result.median_us) == (2, None)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"workers": ()}, "--workers names nothing"),
        ({"lookahead": (0,)}, "--lookahead needs at least 1"),
        ({"algorithms": ("bisection",)}, "does not know 'bisection'"),
        ({"draws": 0}, "--draws needs at least 1"),
        ({"workers": (10**9,), "lookahead": (10**6,)}, "fewer --workers or --lookahead"),
    ],
)
def test_what_cannot_be_measured_is_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(PlanError, match=message):
        ZiplinePlan(**{"workers": (10,), "lookahead": (15,), **arguments})


def test_counts_are_whole_numbers() -> None:
    assert parse_counts("10, 100") == (10, 100)
    with pytest.raises(PlanError, match="whole numbers"):
        parse_counts("ten")
