"""Families of contestants, and a color for each contestant, the same in every panel and picture of a run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from .entry import BASELINE, Entry

REFERENCES = "references"
_PEERS = "PyTorch and MPI"
_OWN = "your own"
FAMILIES = (
    _PEERS,
    _OWN,
    "all of the gradients",
    "a part of the gradients",
    "parameter server",
    "rounds in the background",
    "weights now and then",
)
BASELINE_COLOR = "#d1495b"
_REFERENCE_COLORS = ("#222222", "#777777")
_COLORS = (
    *("#0b5fa5", "#e28413", "#2a9d8f", "#7a4fb5", "#5f8a3c", "#c05a9a", "#17a2b8", "#946b2d"),
    *("#3d405b", "#b5a900", "#8c1c4e", "#4fa3e0", "#00603f", "#f28ab2"),
)


def family(entry: Entry) -> str:
    """Give the family of a contestant, from the attributes of its strategy; users' strategies are one family.

    The attributes do not describe the traffic of a user's strategy.
    """
    strategy = entry.strategy
    if entry.is_reference:
        return REFERENCES
    if strategy is None:
        return _PEERS
    if entry.is_users:
        return _OWN
    if strategy.gradients == "local":
        return "weights now and then"
    if strategy.gradients == "consumed":
        return "parameter server" if entry.paced_by_policy else "rounds in the background"
    return "all of the gradients" if strategy.is_identity_on_one_rank else "a part of the gradients"


def colors_of(entries: Iterable[Entry]) -> Mapping[Entry, str]:
    """Give each contestant of a run a color; colors within a family differ as long as there are enough."""
    every = list(dict.fromkeys(entries))
    references = [entry for entry in every if entry.is_reference]
    found = {entry: _REFERENCE_COLORS[n % len(_REFERENCE_COLORS)] for n, entry in enumerate(references)}
    found[BASELINE] = BASELINE_COLOR
    others = [entry for name in FAMILIES for entry in every if family(entry) == name and entry != BASELINE]
    return found | {entry: _COLORS[number % len(_COLORS)] for number, entry in enumerate(others)}
