"""``python tests/chaos join``: a rank comes back and all have what they should; and that anything else is noticed."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from gradientflow.strategies import as_strategy

from commands import chaos
from join.job import judged
from join.replay import MOMENTUM, RATE, Floats, checksum, factor, pattern, replayed, split

COUNT = 100_000
HISTORY = [(0, 3), (4, 2), (6, 3)]


def join(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(Path(__file__).parent), "join", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)


def trained(history: list[tuple[int, int]], steps: int) -> tuple[Floats, Floats]:
    """Take the steps of all ranks, as they do."""
    weights, momentum = pattern(COUNT), np.zeros(COUNT, np.float32)
    for step in range(steps):
        size = next(size for start, size in reversed(history) if start <= step)
        total = sum(np.float32(factor(step, rank, size)) * pattern(COUNT) for rank in range(size))
        momentum = np.float32(MOMENTUM) * momentum + total / np.float32(size)
        weights -= np.float32(RATE) * momentum
    return weights, momentum


def line(newcomer: bool, sums: tuple[int, int], first: float = 1.5) -> dict[str, Any]:
    own = {"ready": 0.5, "let_in": 0.25, "state": 1.0} if newcomer else {"history": HISTORY}
    return {"newcomer": newcomer, "join": 1, "first": first, "usual": 0.5, "steps": 9, "sums": sums, **own}


def test_a_rank_comes_back(tmp_path: Path) -> None:
    path = tmp_path / "joins.json"
    done = join("-n", "2", "--size", "1M", "--joins", "1", "--json", str(path))
    assert done.returncode == 0, done.stdout + done.stderr
    figures = json.loads(path.read_text())
    assert (figures["ranks"], figures["hosts"], figures["bytes"]) == (2, 0, 1 << 20)
    (found,) = figures["joins"]
    assert found.pop("wrong") is False
    assert set(found) == {"ready", "let_in", "state", "first", "others"}
    assert 0 < found["ready"] < 100
    assert "others wait" in done.stdout


def test_replay() -> None:
    sums = [checksum(split(each)) for each in trained(HISTORY, 9)]
    assert replayed(HISTORY, 9, COUNT) == tuple(sums)
    assert replayed(HISTORY, 8, COUNT) != tuple(sums)
    assert replayed([(0, 3), (5, 2), (6, 3)], 9, COUNT) != tuple(sums)


def test_what_is_not_as_replayed_is_wrong() -> None:
    right = replayed(HISTORY, 9, COUNT)
    dense = as_strategy("dense")
    found = judged([line(True, right), line(False, right), line(False, right, 2.0)], 8 * COUNT, dense)
    assert (found.wrong, found.total, found.others) == (False, 1.25, 1.5)
    for rank in range(2):
        sums = [right, right]
        sums[rank] = (right[0], right[1] + 1)
        assert judged([line(True, sums[0]), line(False, sums[1])], 8 * COUNT, dense).wrong


@pytest.mark.parametrize(
    ("arguments", "said"),
    [(("-n", "1"), "2 ranks or more"), (("--size", "1M,2M"), "one number"), (("--size", "12"), "multiple of 8")],
)
def test_what_cannot_be_measured_is_refused(arguments: tuple[str, ...], said: str) -> None:
    done = CliRunner().invoke(chaos, ["join", *arguments])
    assert done.exit_code != 0
    assert said in done.output
