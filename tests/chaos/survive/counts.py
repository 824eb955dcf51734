"""Whether servers that apply pushes as they come have applied each once: every process counts in entries of its own."""

from __future__ import annotations

import numpy as np

from .ending import Ending
from .log import read
from .task import RATE, SIZES, Vector

_PROCESSES = 64  # that are told apart
_UNDER_WAY = 4  # pushes of a process that may be lost with a rank: not all servers have them, or their copies


def contribution(ranks: int, own: int, step: int) -> Vector:
    """Return what a process pushes: one, in entries of its own in every part of the weights."""
    found: Vector = (np.arange(sum(SIZES)) % _PROCESSES == own).astype(np.float32)
    return found


def problem(ending: Ending) -> str:
    """Give what is wrong; nothing if all is right.

    No push may be applied twice, and none be missing but those that were under way when ranks died.
    """
    with np.load(ending.folder / f"left.{next(iter(ending.words))}.npz") as left:
        applied = -left["weights"] / np.float32(RATE)
    for number, log in read(ending.folder).items():
        kinds = [entry[0] for entry in log]
        begun, ended = kinds.count("gradient"), kinds.count("step")
        found = applied[number::_PROCESSES]
        if found.max() > begun or (found != np.round(found)).any():
            return f"of {begun} pushes of process {number} {found.max():g} have been applied"
        if found.min() < ended - _UNDER_WAY * ending.hits:
            return f"of {ended} pushes of process {number} only {found.min():g} have been applied"
    return ""


__all__ = ["contribution", "problem"]
