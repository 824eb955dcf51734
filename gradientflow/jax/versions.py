"""Which versions of JAX have been tried; pyproject.toml allows the same ones. Nothing here imports JAX."""

from __future__ import annotations

import importlib.metadata

OLDEST = "0.6.2"
NEWEST = "0.10"  # with all that begin so


def installed_version() -> str | None:
    """Return the version of JAX in this environment; None where there is none."""
    try:
        return importlib.metadata.version("jax")
    except importlib.metadata.PackageNotFoundError:
        return None


def untried(version: str) -> str:
    """Return a sentence for a version of JAX that has not been tried; empty for the others."""
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
