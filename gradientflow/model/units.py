"""Rates and times in words: ``25gbit``, ``20us``."""

from __future__ import annotations

import re

_RATES = {"kbit": 1e3, "mbit": 1e6, "gbit": 1e9, "tbit": 1e12}
_TIMES = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}
_NUMBER = re.compile(r"([0-9]+(?:\.[0-9]*)?|\.[0-9]+)([a-z]+)")


def bits_per_second_of(text: str) -> float | None:
    """Return the rate in words such as ``25gbit``; None if the text is no rate."""
    return _number(text, _RATES)


def seconds_of(text: str) -> float | None:
    """Return the time in words such as ``20us``; None if the text is no time."""
    return _number(text, _TIMES)


def _number(text: str, units: dict[str, float]) -> float | None:
    match = _NUMBER.fullmatch(text.replace(" ", "").lower())
    return float(match[1]) * units[match[2]] if match and match[2] in units else None


__all__ = ["bits_per_second_of", "seconds_of"]
