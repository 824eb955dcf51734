"""Random sparsification with error feedback: a baseline for top-k."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gradientflow.arguments import checked_int
from gradientflow.strategies.exchange.top_k import TopKStrategy
from gradientflow.strategies.options import TopKOptions

if TYPE_CHECKING:
    from typing_extensions import Unpack


class RandomK(TopKStrategy):
    """Random entries of each layer with error feedback: drawn in each iteration, the same on all ranks.

    Parameters
    ----------
    ratio : float, default 1000
        Compression ratio, 1 or more: n / ratio entries of a layer of n elements are sent, rounded up.
    seed : int, default 0
        Seed of the selection.
    warmup, monitor, wire, algorithm
        As in `LAGS`.
    """

    name = "random_k"
    selection = "random"

    def __init__(self, ratio: float = 1000.0, *, seed: int = 0, **options: Unpack[TopKOptions]) -> None:
        super().__init__(ratio, **options)
        self.seed = checked_int("seed", seed)


__all__ = ["RandomK"]
