"""Wire dtypes: what strategies can round values to in messages."""

from __future__ import annotations

from typing import Any

from gradientflow.errors import ArgumentError

WIRES = ("float32", "float16", "bfloat16")


def checked_wire(wire: Any) -> str | None:
    """Return a wire dtype, or None for the default.

    Raises
    ------
    gradientflow.errors.ArgumentError
        If it is neither.
    """
    if wire not in (None, *WIRES):
        message = f"wire is float32, float16 or bfloat16, not {wire!r}"
        raise ArgumentError(message)
    return None if wire is None else str(wire)


__all__ = ["WIRES", "checked_wire"]
