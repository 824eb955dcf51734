"""Result of a check."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Check:
    """Result of a check.

    Attributes
    ----------
    name : str
        Subject of the check.
    status : str
        "ok", "warn" or "fail".
    value : str
        Finding.
    advice : str
        Remedy; empty if none is needed.
    """

    name: str
    status: str
    value: str
    advice: str = ""
