"""The contract of strategies as it was: attributes that are refused, each with what has taken its place."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from gradientflow.errors import ArgumentError

_PROFILE = "say it in profile(), which returns a strategies.Profile"
_SOURCE = "say it by gradient_source"

FORMER_OF_STRATEGIES = {
    "rate_in_momentum": "step = 'core_rate_in_momentum' says it",
    "takes_momentum": _PROFILE,
    "averages": f"{_PROFILE}(is_lossless=True)",
    "everywhere": "it is updates_every_weight of a PoolSynchronizer",
    "writes_weights": "it follows from gradients, and is true unless they are 'mean'",
    "shares_weights": "it follows from the synchronizer's shared",
    "works_on_host": "every strategy does, unless on_device is true",
    "alone_is_identity": "it is is_identity_on_one_rank",
    "follows_order": "it is uses_backward_order of the synchronizer",
}

FORMER_OF_SYNCHRONIZERS = {
    "reads_elsewhere": _SOURCE,
    "keeps_elsewhere": _SOURCE,
    "takes_any_content": _SOURCE,
    "reads_gradients": _SOURCE,
    "dropped": "it is what take_pending_error() returns",
    "exchange_failed": "abandon(failed=...) tells it",
    "drop": "it is discard()",
    "looks": "it is checks_finite",
    "kept_before": "it is state_before()",
    "bookkeeping_seconds": "report() returns it",
}


# Methods, with what they are called with now.
FORMER_SIGNATURES: Mapping[str, tuple[tuple[str, ...], str]] = {
    "begin": (("iteration",), "what a strategy does then is prepare() now"),
    "check_settings": (("settings",), "they are its argument"),
    "abandon": (("stream", "failed"), "exchange_failed is an argument now"),
    "exchanges_weights": ((), "it is a method now"),
}


def refuse_former(thing: Any, former: Mapping[str, str]) -> None:
    """Raise if a class or object has an attribute of the contract as it was, also one that it inherits.

    Raises
    ------
    gradientflow.errors.ArgumentError
        If so; it says what to write now.
    """
    who = thing.__name__ if isinstance(thing, type) else type(thing).__name__
    for name in dir(thing):
        if name in former:
            message = (
                f"{who} has {name}, which the contract of strategies no longer has: {former[name]}; if it is something "
                "else, give it another name"
            )
            raise ArgumentError(message)


def refuse_former_signatures(thing: Any) -> None:
    """Raise if a class or object has a method that takes what it took in the contract as it was.

    Raises
    ------
    gradientflow.errors.ArgumentError
        If so; it says what is different.
    """
    is_class = isinstance(thing, type)
    who = thing.__name__ if is_class else type(thing).__name__
    for name, (arguments, instead) in FORMER_SIGNATURES.items():
        given = ("self", *arguments) if is_class else arguments
        try:
            inspect.signature(getattr(thing, name)).bind(*given)
        except TypeError:
            message = f"{name} of {who} cannot be called as {name}({', '.join(arguments)}): {instead}"
            raise ArgumentError(message) from None


__all__ = ["FORMER_OF_STRATEGIES", "FORMER_OF_SYNCHRONIZERS", "refuse_former", "refuse_former_signatures"]
