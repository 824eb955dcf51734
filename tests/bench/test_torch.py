"""``gradientflow bench torch``: the table, the options, and a run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner
from rich.console import Console

from gradientflow.bench.torch import command


def test_table_compares_and_fits() -> None:
    row = {"bytes": 1 << 20, "call": "reduce_scatter", "form": "functional"}
    times = {"gradientflow": 912.5, "gloo": 1012500.0, "comm": 98765.4}
    console = Console(width=80, record=True)
    console.print(command._table([{**row, "contestant": name, "median_us": time} for name, time in times.items()]))
    assert "1M      reduce_scatter   functional   912.5   98765   -97853   1012500   1109.59" in console.export_text()


@pytest.mark.parametrize("option", ["--calls", "--forms"])
def test_unknown_names_are_refused(option: str) -> None:
    done = CliRunner().invoke(command.torch, [option, "sync,other"])
    assert done.exit_code == 2
    assert "is none of " in done.output


@pytest.mark.slow
def test_a_run_has_all_contestants(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    file = tmp_path / "found.json"
    words = ["--sizes", "8K", "--forms", "sync,async,functional", "--rounds", "2", "--repeat", "3", "--json", str(file)]
    done = CliRunner().invoke(command.torch, words, standalone_mode=False)
    assert done.return_value == 0, done.output
    results = json.loads(file.read_text())["results"]
    assert len(results) == 3 * 3 * 3
    assert {each["contestant"] for each in results} == {"gradientflow", "gloo", "comm"}
    assert all(each["wrong"] == 0 and 0 < each["p10_us"] <= each["median_us"] for each in results)
