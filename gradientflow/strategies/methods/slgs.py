"""Single-layer gradient sparsification: one top-k over all gradients, after backpropagation."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gradientflow.strategies.exchange.top_k import TopKStrategy, checked_selection
from gradientflow.strategies.options import TopKOptions

if TYPE_CHECKING:
    from typing_extensions import Unpack


class SLGS(TopKStrategy):
    """One top-k over the whole gradient, with error feedback, after backpropagation: nothing is overlapped.

    Each dtype has a top-k of its own.

    Parameters
    ----------
    ratio : float, default 1000
        Compression ratio, 1 or more: n / ratio entries for n parameters are sent, rounded up.
    selection : {"sampled", "exact"}
        Method to find the largest entries, as in `gradientflow.TopKGradientPool`.
    warmup, monitor, wire, algorithm
        As in `LAGS`.
    """

    name = "slgs"
    overlap = False

    def __init__(self, ratio: float = 1000.0, *, selection: str = "sampled", **options: Unpack[TopKOptions]) -> None:
        super().__init__(ratio, **options)
        self.selection = checked_selection(selection)

    def layers(self, tensors: int) -> list[int]:
        """Return the number of tensors in each layer of a pool: all tensors are one layer."""
        return [tensors]


__all__ = ["SLGS"]
