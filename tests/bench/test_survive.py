"""``gradientflow bench survive``: ranks are killed and the sums are right; and that a wrong replay is noticed."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gradientflow.bench.survive.replay import add, checksum, gradient, new_weights, replayed


def survive(folder: Path, *arguments: str) -> list[dict[str, Any]]:
    path = folder / "events.json"
    command = [sys.executable, "-m", "gradientflow", "bench", "survive", *arguments, "--json", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    jobs: list[dict[str, Any]] = json.loads(path.read_text())["jobs"]
    return jobs


@pytest.mark.slow
@pytest.mark.timeout(700)
@pytest.mark.usefixtures("_hosts_can_be_made")
def test_hosts_are_cut_off(tmp_path: Path) -> None:
    jobs = survive(tmp_path, "-n", "2", "--hosts", "3", "--kills", "30", "--seed", "3")
    assert any(event["kind"] == "host's link" for job in jobs for event in job["events"])


def test_ranks_die_and_the_sums_are_right(tmp_path: Path) -> None:
    jobs = survive(tmp_path, "-n", "3", "--kills", "3", "--events", "3", "--seed", "7")
    events = [event for job in jobs for event in job["events"]]
    assert sum(len(event["victims"]) for event in events) >= 3
    assert all(job["verdict"] == "right" for job in jobs)
    assert all(event["seconds"] is None or event["seconds"] > 0 for event in events)
    assert sum(job["back"] for job in jobs) > 0


def test_replay() -> None:
    weights = new_weights()
    history = [(0, [0, 1, 2]), (6, [0, 2]), (6, [2])]
    for step in range(9):
        for own in [0, 1, 2] if step < 6 else [2]:
            add(weights, gradient(own, step))
    assert replayed(history, 9) == checksum(weights)
    assert replayed(history, 8) != checksum(weights)
    assert replayed([(0, [0, 1, 2]), (7, [2])], 9) != checksum(weights)
    assert (weights == np.round(weights)).all()
