"""The cases of a JAX program: one after the other, each of which prints a line once it is right."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from typing import Any

os.environ.setdefault("XLA_FLAGS", "--xla_backend_optimization_level=0")  # fast code takes longer to compile

import jax
import pytest

_CASES: list[Callable[[], None]] = []


def case(function: Callable[[], None]) -> Callable[[], None]:
    _CASES.append(function)
    return function


def run_cases(rank: int) -> None:
    for each in _CASES:
        each()
        print(f"{each.__name__} is right on {rank}", flush=True)


def raises(what: str, call: Callable[[], Any]) -> None:
    with pytest.raises(Exception, match=re.escape(what)):
        jax.block_until_ready(call())
