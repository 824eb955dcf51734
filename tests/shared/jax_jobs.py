"""Jobs of JAX programs, and whether there is a JAX to start them with."""

from __future__ import annotations

import re
from collections.abc import Sequence

import pytest
from jobs import PROGRAMS, Finished

from gradientflow.jax.versions import installed_version
from gradientflow.launch import module_command

# The words are those of pytest.importorskip, by which .ci/skipped finds what is to be run where there is everything.
needs_jax = pytest.mark.skipif(installed_version() is None, reason="could not import 'jax'")

TAKES_JAX = re.compile(r"^(?:import|from) jax(?:_support)?\b", re.MULTILINE)


def takes_jax(program: str) -> bool:
    """Tell whether tests/programs/<program>.py is one of JAX."""
    return TAKES_JAX.search((PROGRAMS / f"{program}.py").read_text(encoding="utf-8")) is not None


def jax_command(ranks: int, program: Sequence[object], *arguments: object) -> list[str]:
    """Write what runs the command of a program on several ranks."""
    words = ["run", "-n", ranks, "--jax", "--", *program, *arguments]
    return module_command("gradientflow.cli", [*map(str, words)])


def assert_all_right(finished: Finished, program: str, ranks: int) -> None:
    """Check that every case of a program was right on every rank, which then came to its end."""
    source = (PROGRAMS / f"{program}.py").read_text(encoding="utf-8")
    cases = re.findall(r"^@case\ndef (\w+)", source, re.MULTILINE)
    assert cases
    for rank in range(ranks):
        for line in [*(f"{case} is right on {rank}" for case in cases), f"the end of {rank}"]:
            assert finished.stdout.splitlines().count(line) == 1, f"{line}?\n{finished.output}"
    assert "Traceback" not in finished.stderr, finished.output
