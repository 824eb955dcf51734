"""gradientflow.jax.allreduce: values, derivatives, control flow, order, places in memory, and what is refused."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from jax_jobs import assert_all_right, needs_jax
from jobs import Finished

pytestmark = needs_jax


@pytest.mark.parametrize("ranks", [pytest.param(1, marks=pytest.mark.thorough), 3])
def test_allreduce(jax_run: Callable[..., Finished], ranks: int) -> None:
    assert_all_right(jax_run(ranks, "jax_allreduce"), "jax_allreduce", ranks)


@pytest.mark.thorough
def test_over_processes(jax_run: Callable[..., Finished]) -> None:
    finished = jax_run(2, "jax_over_processes")
    assert sorted(finished.stdout.split("\n"))[-2:] == ["the end of 0", "the end of 1"], finished.output
