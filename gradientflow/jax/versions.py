"""Versions of JAX that have been tried; pyproject.toml allows the same versions. Nothing here imports JAX."""

from __future__ import annotations

import importlib.metadata

OLDEST = "0.6.2"
NEWEST = "0.10"  # includes every 0.10.x


def installed_version() -> str | None:
    """Return the version of JAX in this environment, or None."""
    try:
        return importlib.metadata.version("jax")
    except importlib.metadata.PackageNotFoundError:
        return None


def untried(version: str) -> str:
    """Return a sentence if a version of JAX has not been tried, otherwise an empty text."""
    if _numbers(OLDEST) <= _numbers(version) and _numbers(version)[:2] <= _numbers(NEWEST):
        return ""
    return f"JAX {version} has not been tried with GradientFlow: JAX {OLDEST} to {NEWEST} have"


def _numbers(version: str) -> tuple[int, ...]:
    """Return the leading numbers of a version: 0.10.2.dev20260101 is 0, 10, 2."""
    numbers = []
    for part in version.split("."):
        if not part.isdecimal():
            break
        numbers.append(int(part))
    return tuple(numbers)
