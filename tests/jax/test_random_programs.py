"""Independent collectives in one jit, which XLA runs in any order: a few of the programs of random_programs.py."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from jax_jobs import needs_jax
from jobs import Finished
from needs_mpi import needs_mpi

SCRIPT = Path(__file__).with_name("random_programs.py")


@needs_jax
@pytest.mark.timeout(400)
@pytest.mark.parametrize(
    ("ranks", "programs", "first", "transport"),
    [
        pytest.param(4, 2, 0, "mpi", marks=[needs_mpi, pytest.mark.slow]),
        pytest.param(3, 2, 0, "tcp", marks=pytest.mark.thorough),
        *(pytest.param(ranks, 17, 100, "mpi", marks=[needs_mpi, pytest.mark.slow]) for ranks in (2, 3, 4)),
        *(pytest.param(ranks, 17, 100, "tcp", marks=pytest.mark.slow) for ranks in (2, 3, 4)),
    ],
)
def test_random_programs(
    jax_run: Callable[..., Finished], ranks: int, programs: int, first: int, transport: str
) -> None:
    numbers = ("--programs", programs, "--first", first + 50 * (transport == "mpi"))
    finished = jax_run(ranks, SCRIPT, *numbers, env={"GRADIENTFLOW_TRANSPORT": transport}, timeout=120)
    assert finished.stdout.count(f": 0 of {programs} programs wrong\n") == ranks, finished.output
