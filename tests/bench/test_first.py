"""``gradientflow bench first``: the perceptrons of given sizes, the table, and a run."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import pytest
from click.testing import CliRunner
from rich.console import Console

from gradientflow.bench.core.job_turns import JobPlace
from gradientflow.bench.core.plan import PlanError
from gradientflow.bench.first import command
from gradientflow.bench.train.perceptrons import is_perceptron, widths_of


def layers_of(name: str) -> list[int]:
    """Give the bytes of the gradients of each layer."""
    return [4 * (inputs + 1) * outputs for inputs, outputs in pairwise(widths_of(name))]


@pytest.mark.parametrize("shape", ["even", "front", "back"])
@pytest.mark.parametrize(("text", "size"), [("300K", 300 << 10), ("5M", 5 << 20), ("100M", 100 << 20)])
def test_perceptrons_have_the_size_that_is_asked_for(shape: str, text: str, size: int) -> None:
    layers = layers_of(f"{shape}-{text}")
    assert sum(layers) == pytest.approx(size, rel=0.2)  # biases and the classes come on top
    if shape == "even":
        assert len(set(layers[:-1])) == 1
    else:
        assert layers.index(max(layers)) == (0 if shape == "front" else 7)
        assert 2 * max(layers) > sum(layers)


@pytest.mark.parametrize(
    ("name", "words"), [("even-1K", "too small"), ("even-", "not a size"), ("back-x", "not a size")]
)
def test_sizes_are_checked(name: str, words: str) -> None:
    assert is_perceptron(name)
    with pytest.raises(PlanError, match=words):
        widths_of(name)


def test_table_has_ratios_and_fits() -> None:
    steps = {"none": 50.0, "ddp-gloo": 200.0, "ddp-gradientflow": 190.0, "dense": 180.0, "csc": 100.0, "lags": 70.0}
    console = Console(width=80, record=True)
    console.print(
        command._table(
            JobPlace(4, hosts=4), {"100M": {**steps, command._PSUM: 0.5}, "1400K": {**steps, command._PSUM: 0.25}}
        )
    )
    text = console.export_text()
    assert "4 hosts at 1gbit" in text
    assert "100M    50.0      200.0   0.95        0.90   0.50   0.35     0.50" in text


@pytest.mark.parametrize("words", [["-n", "0", "--hosts", "0"], ["--gradients", ""]])
def test_nothing_to_measure_is_an_error(words: list[str]) -> None:
    with pytest.raises(PlanError, match="nothing is to be measured"):
        CliRunner().invoke(command.first, words, catch_exceptions=False)


@pytest.mark.slow
def test_a_run_has_all_contestants(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    pytest.importorskip("sklearn")
    file = tmp_path / "found.json"
    words = ["--hosts", "0", "--gradients", "64K", "--steps", "2", "--no-jax", "--json", str(file)]
    done = CliRunner().invoke(command.first, words)
    assert done.exit_code == 0, done.output
    (found,) = json.loads(file.read_text())
    assert {*found["results"]["64K"]} == {"none", "ddp-gloo", *command._TRAINED}
    assert all(each > 0 for each in found["results"]["64K"].values())
