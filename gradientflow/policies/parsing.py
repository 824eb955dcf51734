"""Parser of policies in words: ``ssp(3)``, or ``path/to/mine.py:Mine(1)``."""

from __future__ import annotations

from pathlib import Path

from gradientflow.description import Parser

from .builtin import ASP, BSP, DSSP, SSP, ElasticBSP
from .policy import Policy

_PARSER: Parser[Policy] = Parser(Policy, "policy", (ASP, BSP, DSSP, ElasticBSP, SSP))


def parse_policies(text: str) -> list[Policy]:
    """Return the policies named in a text, separated by semicolons.

    Parameters
    ----------
    text : str
        For example ``"bsp; ssp(3); mine.py:Mine(1)"``. Values are literals.

    Raises
    ------
    gradientflow.errors.ArgumentError
        If the text is empty, a policy is unknown, or a policy does not take the given arguments.
    """
    return _PARSER.parse_all(text)


def as_policy(policy: object) -> Policy:
    """Return a policy given as an object or in words.

    Raises
    ------
    gradientflow.errors.ArgumentError
        If the words name no policy.
    gradientflow.errors.ArgumentTypeError
        If `policy` is of any other type.
    """
    return _PARSER.given(policy)


def file_of_policy(text: str) -> Path | None:
    """Return the Python file that `as_policy` would run for the words of a policy; None if the words name no file."""
    return _PARSER.file(text)


__all__ = ["as_policy", "file_of_policy", "parse_policies"]
