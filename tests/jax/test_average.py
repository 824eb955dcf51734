"""gradientflow.jax.average: the bits of the array loop, checkpoints, other transformations of Optax, and mistakes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from jax_jobs import assert_all_right, needs_jax
from jobs import Finished

pytestmark = needs_jax

EXAMPLES = Path(__file__).resolve().parents[2] / "docs" / "examples"


@pytest.mark.parametrize("ranks", [pytest.param(1, marks=pytest.mark.slow), 3])
def test_average(jax_run: Callable[..., Finished], ranks: int) -> None:
    pytest.importorskip("optax")
    assert_all_right(jax_run(ranks, "jax_average"), "jax_average", ranks)


def test_local_sgd_around_jit(jax_run: Callable[..., Finished]) -> None:
    assert float(jax_run(2, EXAMPLES / "train_jax_local_sgd.py").line("accuracy")) > 0.95
