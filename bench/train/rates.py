"""Learning rates of ``gradientflow bench train``: one for all, and rates of single contestants."""

from __future__ import annotations

import math
from collections.abc import Sequence

from gradientflow.errors import GradientFlowError
from gradientflow.strategies import parse_strategy

from ..core.plan import PlanError

OwnRates = tuple[tuple[str, float], ...]  # (name of a contestant or strategy, or a strategy's words; rate)


def parse_rates(words: Sequence[str]) -> tuple[float | None, OwnRates]:
    """Read the values of ``--lr``: a rate for all or None, and rates of single contestants by name.

    Each value has rates separated by semicolons: ``0.1`` for all, ``hpsgd=0.05`` or ``csc(density=0.1)=0.2`` by name.
    """
    for_all: float | None = None
    own: dict[str, float] = {}
    for text in filter(None, (each.strip() for word in words for each in word.split(";"))):
        named, _, number = text.rpartition("=")
        try:
            rate = float(number)
        except ValueError:
            message = f"--lr takes RATE for all, or NAME=RATE for one strategy or contestant, not {text!r}"
            raise PlanError(message) from None
        name = _as_shown(named.strip())
        if (name in own) if name else for_all is not None:
            raise PlanError(f"--lr has two rates for {name or 'all'}: leave one of them out")
        check_rate(rate)
        if name:
            own[name] = rate
        else:
            for_all = rate
    return for_all, tuple(own.items())


def check_rate(rate: float) -> None:
    """Refuse an invalid learning rate."""
    if not 0 < rate < math.inf:
        raise PlanError(f"--lr needs more than 0, not {rate:g}")


def _as_shown(name: str) -> str:
    """Give the words of a strategy in the form that results show."""
    if "(" in name:
        try:
            return str(parse_strategy(name))
        except GradientFlowError:  # a user's strategy, named without its file
            pass
    return name.rpartition(".py:")[2]


__all__ = ["OwnRates", "check_rate", "parse_rates"]
