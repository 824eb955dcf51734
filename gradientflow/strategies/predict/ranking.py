"""Order of strategies by their effect on the result of a step and by their times, and the advice that follows."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple, TypeVar

WORTH_IT = 1.02  # a smaller gain is within the variation of a step
_CLOSE = 1.05  # steps this close count as equally long: the effect on the result decides


class Effect(NamedTuple):
    """An effect on the result of a step.

    Attributes
    ----------
    heading : str
        Heading of the strategies with this effect in tables.
    sentence : str
        The effect as a part of a sentence.
    """

    heading: str
    sentence: str


# The order of groups in tables.
EFFECTS = {
    "exact": Effect("exact", "the result is the same"),
    "rounds": Effect("rounded", "it rounds what it sends"),
    "delays": Effect("a part later", "it sends a part later"),
    "approximates": Effect("approximate", "it sends an approximation"),
    "stale": Effect("of older weights", "its gradients are of older weights"),
    "local": Effect("weights of its own", "each rank has its own weights between exchanges"),
    "": Effect("unknown effect", "its effect on the result is not known"),
    "alone": Effect("nothing exchanged", "the ranks exchange nothing until the end"),
}

_PAGES = {
    **dict.fromkeys(("dense", "auto"), "docs/choosing.md"),
    **dict.fromkeys(("csc",), "docs/sparse.md"),
    **dict.fromkeys(("lags", "slgs", "top_k", "random_k", "dgc"), "docs/lags.md"),
    **dict.fromkeys(("local_sgd", "diloco", "sparse_loco"), "docs/local-sgd.md"),
    "hpsgd": "docs/hpsgd.md",
    **dict.fromkeys(("ssgd", "ssd_sgd"), "docs/ssd-sgd.md"),
    **dict.fromkeys(("asgd", "ssp", "dssp", "elastic_bsp"), "docs/policies.md"),
}


class Ranked(NamedTuple):
    """A strategy with the time of its step, predicted or measured.

    Attributes
    ----------
    strategy : Strategy
        The strategy.
    seconds : float
        Duration of a step.
    """

    strategy: object
    seconds: float


class Named(NamedTuple):
    """The name and effect of a strategy that is not there as an object."""

    name: str
    effect: str = "exact"

    def __str__(self) -> str:
        """Return the name."""
        return self.name


Row = TypeVar("Row")


def effect_of(strategy: object) -> str:
    """Return the effect of a strategy on the result of a step, a key of `EFFECTS`."""
    effect = str(getattr(strategy, "effect", ""))
    rounds = getattr(strategy, "wire", None) not in (None, "float32") or bool(getattr(strategy, "allow", False))
    if effect not in EFFECTS:
        return ""
    return "rounds" if effect == "exact" and rounds else effect


def is_lossless(strategy: object) -> bool:
    """Return True if a step has the same result as with dense float32."""
    return effect_of(strategy) == "exact"


def grouped(rows: Iterable[tuple[object, float, Row]]) -> list[tuple[str, list[Row]]]:
    """Group rows by the effects of their strategies, exact ones first, the shortest step of a group first.

    Parameters
    ----------
    rows : iterable of (Strategy, float, object)
        The strategy and the seconds of each row, and the row.

    Returns
    -------
    list of (str, list)
        The heading and the rows of each group.
    """
    ordered = sorted(rows, key=lambda row: row[1])
    groups = [
        (effect.heading, [row for each, _, row in ordered if effect_of(each) == name])
        for name, effect in EFFECTS.items()
    ]
    return [(heading, found) for heading, found in groups if found]


def fastest(candidates: Iterable[Ranked]) -> Ranked | None:
    """Return the strategy with the shortest step; if steps are within 5 %, the first in the order of `EFFECTS`."""
    known, order = list(candidates), list(EFFECTS)
    longest = min((each.seconds for each in known), default=0.0) * _CLOSE
    close = [each for each in known if each.seconds <= longest]
    return min(close, key=lambda each: (order.index(effect_of(each.strategy)), each.seconds), default=None)


def better(candidates: Iterable[Ranked], present: Ranked) -> Ranked | None:
    """Return the fastest strategy that gains more than the variation of a step over the present one, or None."""
    return fastest(each for each in candidates if each.seconds * WORTH_IT < present.seconds)


def advice(candidates: Sequence[Ranked], present: Ranked) -> list[str]:
    """Return sentences that recommend the fastest lossless strategy, and the fastest of all if it is another.

    Strategies that exchange nothing are not recommended, nor gains within the variation of a step.

    Parameters
    ----------
    candidates : sequence of Ranked
        Strategies to choose from, all predicted or all measured.
    present : Ranked
        The strategy in use.

    Returns
    -------
    list of str
        One or two sentences.
    """
    lossless = better((each for each in candidates if is_lossless(each.strategy)), present)
    sending = (each for each in candidates if effect_of(each.strategy) != "alone")
    fastest_of_all = better(sending, lossless or present)
    found = [_sentence(each, present) for each in (lossless, fastest_of_all) if each is not None]
    return found or [
        f"stay with {present.strategy}: {_milliseconds(present, present)} ms; no compared strategy saves 2 %"
    ]


def _sentence(found: Ranked, present: Ranked) -> str:
    effect = EFFECTS[effect_of(found.strategy)].sentence
    page = _PAGES.get(str(getattr(found.strategy, "name", "")), "docs/strategies.md")
    times = f"{_milliseconds(found, found)} ms in place of {_milliseconds(present, found)} with {present.strategy}"
    return f"take {found.strategy}: {times}; {effect}: {page}"


def _milliseconds(shown: Ranked, scale: Ranked) -> str:
    """Return the time of a strategy, with as many decimals as the time of another needs."""
    return f"{shown.seconds * 1e3:,.{0 if scale.seconds >= 0.05 else 1 if scale.seconds >= 0.005 else 2}f}"


__all__ = [
    "EFFECTS",
    "WORTH_IT",
    "Named",
    "Ranked",
    "advice",
    "better",
    "effect_of",
    "fastest",
    "grouped",
    "is_lossless",
]
