"""The result of one check."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Check:
    """What one check found.

    Attributes
    ----------
    name : str
        What was looked at.
    status : str
        "ok", "warn" or "fail".
    value : str
        What was found.
    advice : str
        What to do about it; empty where there is nothing to do.
    """

    name: str
    status: str
    value: str
    advice: str = ""
