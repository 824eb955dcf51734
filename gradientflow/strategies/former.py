"""The contract of strategies as it was: attributes that are refused, each with what has taken its place."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from gradientflow.errors import ArgumentError

_PROFILE = "say it in profile(), which returns a strategies.Profile"
_SOURCE = "say it by gradient_source"

FORMER_OF_STRATEGIES = {
    "rate_in_momentum": "step = 'core_rate_in_momentum' says it",
    "takes_momentum": _PROFILE,
    "averages": f"{_PROFILE}(is_lossless=True)",
    "warmup": _PROFILE,
    "period": _PROFILE,
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


def refuse_former(who: str, attributes: Iterable[str], former: Mapping[str, str]) -> None:
    """Raise if a class or object has an attribute of the contract as it was.

    Raises
    ------
    gradientflow.errors.ArgumentError
        If so; it says what to write now.
    """
    for name in attributes:
        if name in former:
            message = f"{who} has {name}, which the contract of strategies no longer has: {former[name]}"
            raise ArgumentError(message)


__all__ = ["FORMER_OF_STRATEGIES", "FORMER_OF_SYNCHRONIZERS", "refuse_former"]
