"""``python tests/chaos train``: what a run with kills is made of, and one such run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from commands import chaos
from train.job import Death, figures


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(chaos, ["train", *arguments])


def test_figures_of_a_run() -> None:
    """Ranks 7 and 8 are killed; 9 comes back, and another one comes too late to take part."""
    said: list[dict[str, Any]] = [
        {"at": 9.0, "pid": 7, "ready": 2.0, "processor": 1.5},
        {"at": 10.0, "pid": 7, "takes_part": True},
        {"at": 11.0, "pid": 7, "samples": 100, "loss": 2.0, "size": 2},
        {"at": 13.5, "pid": 9, "ready": 1.25, "processor": 0.75},
        {"at": 14.0, "pid": 9, "takes_part": True},
        {"at": 15.0, "pid": 8, "samples": 60, "loss": 1.0, "size": 2},
        {"at": 19.5, "pid": 10, "ready": 1.5, "processor": 1.0},
        {"at": 21.0, "pid": 9, "samples": 1000, "loss": 0.5, "size": 1},
    ]
    found = figures(said, 10.0, 10.0, [(7, 12.0), (8, 18.0)])
    assert found.points == [(1.0, 100, 2.0, 2), (5.0, 60, 1.0, 2)]
    assert found.samples_per_second == 16.0
    assert found.deaths == [Death(2.0, 1.25, 0.75, 2.0), Death(8.0, 1.5, 1.0, None)]


@pytest.mark.parametrize("arguments", [("-n", "1", "--kill-every", "5"), ("-n", "2", "--kill-every", "0")])
def test_what_cannot_be_is_refused(arguments: tuple[str, ...]) -> None:
    assert "more than 0 seconds, and -n 2 ranks or more" in invoke(*arguments).output


@pytest.mark.slow
def test_a_rank_is_killed_and_training_goes_on(tmp_path: Path) -> None:
    files = tmp_path / "found.json", tmp_path / "picture.svg"
    options = ("-n", "2", "--kill-every", "1", "--seconds", "3")
    ended = invoke(*options, "--json", str(files[0]), "--plot", str(files[1]))
    assert ended.exit_code == 0, ended.output
    ((quiet, killed),) = json.loads(files[0].read_text())["rounds"]
    assert not quiet["deaths"]
    assert killed["deaths"]
    after = [samples for at, samples, _, _ in killed["points"] if at > killed["deaths"][0]["at"]]
    assert sum(after) > 0
    assert files[1].stat().st_size > 0
