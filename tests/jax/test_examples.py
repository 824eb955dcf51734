"""The examples of the documentation that train with JAX."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from jax_jobs import needs_jax
from jobs import Finished

EXAMPLES = Path(__file__).resolve().parents[2] / "docs" / "examples"

pytestmark = needs_jax


def test_an_unchanged_program(jax_run: Callable[..., Finished]) -> None:
    assert float(jax_run(2, EXAMPLES / "train_jax.py").line("accuracy")) > 0.95


@pytest.mark.thorough
def test_flax_and_optax(jax_run: Callable[..., Finished]) -> None:
    pytest.importorskip("flax")
    assert float(jax_run(2, EXAMPLES / "train_flax.py").line("accuracy")) > 0.95
