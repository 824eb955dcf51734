"""Policies by their own words: ``ssp(3)``, or ``path/to/mine.py:Mine(1)``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from gradientflow.description import Words

from .builtin import ASP, BSP, DSSP, SSP, ElasticBSP
from .policy import Policy

_WORDS: Words[Policy] = Words(Policy, "policy", (ASP, BSP, DSSP, ElasticBSP, SSP))


def parse_policies(text: str) -> list[Policy]:
    """Return the policies that a text names, separated by semicolons.

    Parameters
    ----------
    text : str
        For example ``"bsp; ssp(3); mine.py:Mine(1)"``. Values are literals.

    Raises
    ------
    gradientflow.errors.ArgumentError
        If it names none, or one that there is not, or gives arguments that it does not take.
    """
    return _WORDS.parse_all(text)


def as_policy(policy: Any) -> Policy:
    """Return a policy that is given as one, or in words.

    Raises
    ------
    gradientflow.errors.ArgumentError
        If the words name none.
    gradientflow.errors.ArgumentTypeError
        If it is something else.
    """
    return _WORDS.given(policy)


def file_of_policy(text: str) -> Path | None:
    """Return the Python file that the words for a policy name, which `as_policy` runs; None where they name none."""
    return _WORDS.file(text)


__all__ = ["as_policy", "file_of_policy", "parse_policies"]
