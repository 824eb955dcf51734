"""Marks of checks, which pytest reads from a program's text: see docs/testing.md."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

Check = TypeVar("Check", bound=Callable[..., None])


def on_ranks(*ranks: int) -> Callable[[Check], Check]:
    """Run a check with these numbers of ranks, where 3 stands for three and more; without this mark, with 3.

    One and two are for what is another case there: nothing to send, one node, pairs.
    """
    assert {*ranks} <= {1, 2, 3}, ranks
    return lambda check: check


def thorough(check: Check) -> Check:
    """Leave a check out of README's pytest."""
    return check


def slow(check: Check) -> Check:
    """Leave a check out of what every change runs, too."""
    return check
