"""Unchanged programs of JAX over GradientFlow's collectives."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from jax_jobs import needs_jax
from jobs import Finished
from needs_mpi import needs_mpi

from gradientflow._location import jax_library

pytestmark = needs_jax


@pytest.mark.checks("jax_unchanged")
@pytest.mark.parametrize(
    ("ranks", "transport", "node_size"),
    [
        pytest.param(1, "tcp", 1, id="alone", marks=pytest.mark.slow),
        pytest.param(2, "mpi", 2, id="over MPI", marks=[needs_mpi, pytest.mark.thorough]),
        pytest.param(3, "tcp", 1, id="three nodes"),
        pytest.param(4, "tcp", 4, id="in a node", marks=pytest.mark.thorough),
        pytest.param(4, "mpi", 2, id="two nodes", marks=[needs_mpi, pytest.mark.slow]),
    ],
)
def test_collectives(check: Callable[..., Any], ranks: int, transport: str, node_size: int) -> None:
    env = {"GRADIENTFLOW_TRANSPORT": transport, "GRADIENTFLOW_NODE_SIZE": str(node_size)}
    if ranks == 2:
        env["XLA_FLAGS"] = ""  # as users have it: optimized, and each rank imports JAX by itself
    check(ranks, env=env, timeout=100)


def faults(jax_run: Callable[..., Finished], ranks: int, what: str, transport: str = "tcp") -> Finished:
    """Run a program in which something is wrong."""
    return jax_run(ranks, "jax_faults", what, env={"GRADIENTFLOW_TRANSPORT": transport}, check=False)


@pytest.mark.parametrize("transport", ["tcp", pytest.param("mpi", marks=[needs_mpi, pytest.mark.thorough])])
def test_a_rank_that_dies_is_named(jax_run: Callable[..., Finished], transport: str) -> None:
    ended = faults(jax_run, 2, "kill", transport)
    found = re.search(r"^rank 0 after ([\d.]+) s: .*GradientFlow: rank 1 .*has died", ended.stdout, re.MULTILINE)
    assert found is not None, ended.output
    assert float(found[1]) < 30, ended.output  # by far not the timeout


@pytest.mark.thorough
def test_a_rank_that_raises_is_named(jax_run: Callable[..., Finished]) -> None:
    ended = faults(jax_run, 2, "raise")
    assert re.search("^rank 0 after .*GradientFlow: rank 1 has closed its communicator", ended.stdout), ended.output
    assert "RuntimeError: of the program" in ended.stderr, ended.output


@pytest.mark.parametrize(
    ("what", "ranks", "sentence"),
    [
        ("differ", 2, "the ranks made different calls: .* of 1000 float32.* of 700 float32"),
        *(
            pytest.param(*each, marks=pytest.mark.thorough)
            for each in (
                ("devices", 2, "GradientFlow: one CPU device a process is served"),
                ("part", 3, "the first use of a group of devices needs all ranks of the job: .*rank 2"),
                ("alone", 2, "GradientFlow: GRADIENTFLOW_RANK is '-1'"),  # they do not meet: every call says why
            )
        ),
    ],
)
def test_what_is_wrong_is_named_on_the_ranks(
    jax_run: Callable[..., Finished], what: str, ranks: int, sentence: str
) -> None:
    ended = faults(jax_run, ranks, what)
    for rank in range(2):
        assert re.search(f"^rank {rank} after .*{sentence}", ended.stdout, re.MULTILINE), ended.output


@pytest.mark.thorough
def test_the_library_of_another_installation(jax_run: Callable[..., Finished], tmp_path: Path) -> None:
    for library in (jax_library(), jax_library().with_name("libgradientflow.so")):
        shutil.copy(library, tmp_path)
    env = {"MPITRAMPOLINE_LIB": str(tmp_path / jax_library().name), "GRADIENTFLOW_TRANSPORT": "tcp"}
    ended = jax_run(2, "jax_faults", "none", env=env, check=False)
    sentence = f"GradientFlow: MPITRAMPOLINE_LIB is {tmp_path}.*, but this Python's package gradientflow has"
    assert re.search(sentence, ended.stdout), ended.output
