"""Plain top-k sparsification with error feedback."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gradientflow.arguments import checked_float
from gradientflow.errors import ArgumentError
from gradientflow.strategies.exchange.top_k import TopKStrategy
from gradientflow.strategies.options import TopKOptions

if TYPE_CHECKING:
    from typing_extensions import Unpack


class TopK(TopKStrategy):
    """Plain top-k with error feedback: the entries of largest magnitude of each layer, selected exactly.

    Parameters
    ----------
    ratio : float, default 1000
        Compression ratio, 1 or more: n / ratio entries of a layer of n elements are sent, rounded up.
    density : float, optional
        Share of entries that is sent, 1 / ratio; given in place of a ratio.
    warmup, monitor, wire, algorithm
        As in `LAGS`.
    """

    name = "top_k"
    selection = "exact"

    def __init__(self, ratio: float = 1000.0, *, density: float | None = None, **options: Unpack[TopKOptions]) -> None:
        if density is not None:
            if ratio != 1000.0:
                raise ArgumentError(f"top_k takes a ratio or a density, not both, {ratio!r} and {density!r}")
            if not 0 < checked_float("density", density) <= 1:
                raise ArgumentError(f"density is above 0 and at most 1, not {density!r}")
        final = ratio if density is None else 1 / density
        super().__init__(final, **options)
        self.ratio = ratio
        self.density = density


__all__ = ["TopK"]
