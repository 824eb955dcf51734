"""Argument checks shared by several modules; their errors name the argument."""

from __future__ import annotations

import math
import numbers
import operator
from collections.abc import Mapping
from typing import Any, TypeVar

from .errors import ArgumentError, ArgumentTypeError

_Kind = TypeVar("_Kind")


def checked_int(name: str, value: Any, least: int = 0, most: int = 2**63 - 1) -> int:
    """Return a whole number that the core accepts. NumPy integers count; floats, True and False do not.

    Raises
    ------
    gradientflow.errors.ArgumentError
        If the value is less than `least` or more than `most`, by default the largest 64-bit integer.
    gradientflow.errors.ArgumentTypeError
        If the value is not a whole number.
    """
    try:
        found = None if isinstance(value, bool) else operator.index(value)
    except TypeError:
        found = None
    if found is None:
        raise ArgumentTypeError(f"{name} is a whole number, not {value!r}")
    if not least <= found <= most:
        limit = "below 2**63" if most == 2**63 - 1 else f"at most {most}"
        raise ArgumentError(f"{name} is {least} or more, and {limit}, not {found}")
    return found


def checked_float(name: str, value: object) -> float:
    """Return a real number as a float, which may be infinite or NaN.

    Raises
    ------
    gradientflow.errors.ArgumentError
        If the value is larger than a float can be.
    gradientflow.errors.ArgumentTypeError
        If the value is not a real number.
    """
    if not isinstance(value, numbers.Real) or isinstance(value, bool):
        raise ArgumentTypeError(f"{name} is a number, not {value!r}")
    try:
        return float(value)
    except OverflowError as error:
        raise ArgumentError(f"{name} is larger than a float can be") from error


def checked_nonnegative(name: str, value: object) -> float:
    """Return a finite number of 0 or more.

    Raises
    ------
    gradientflow.errors.ArgumentError
        If the value is negative, infinite or NaN.
    gradientflow.errors.ArgumentTypeError
        If the value is not a number.
    """
    found = checked_float(name, value)
    if not 0 <= found < math.inf:
        raise ArgumentError(f"{name} is 0 or more, not {value}")
    return found


def checked_list(name: str, value: Any, what: str) -> list[Any]:
    """Return a sequence of `what` as a list; text, bytes and mappings do not count as sequences.

    Raises
    ------
    gradientflow.errors.ArgumentTypeError
        If the value is of any other type.
    """
    try:
        if isinstance(value, list) or not isinstance(value, str | bytes | bytearray | Mapping):
            return list(value)  # accepts generators, too
    except TypeError:
        pass
    raise ArgumentTypeError(f"{name} is a sequence of {what}, not {value!r}")


def checked_mapping(name: str, value: object) -> Mapping[str, Any]:
    """Return a mapping, such as a state.

    Raises
    ------
    gradientflow.errors.ArgumentTypeError
        If the value is of any other type.
    """
    if not isinstance(value, Mapping):
        raise ArgumentTypeError(f"{name} is a dictionary, not a {type(value).__name__}")
    return value


def checked_instance(name: str, value: object, kind: type[_Kind]) -> _Kind:
    """Return an object of a class.

    Raises
    ------
    gradientflow.errors.ArgumentTypeError
        If the value is of any other type.
    """
    if not isinstance(value, kind):
        raise ArgumentTypeError(f"{name} is a {kind.__name__}, not a {type(value).__name__}")
    return value


__all__ = ["checked_float", "checked_instance", "checked_int", "checked_list", "checked_mapping", "checked_nonnegative"]
