"""Deep gradient compression: top-k of each layer with momentum correction, masking, clipping and a warm-up."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gradientflow.arguments import checked_float
from gradientflow.communicator import Communicator
from gradientflow.errors import ArgumentError
from gradientflow.strategies.exchange.top_k import TopKStrategy, TopKSynchronizer, checked_selection
from gradientflow.strategies.layout import Layout
from gradientflow.strategies.options import TopKOptions
from gradientflow.strategies.update import Profile, SettingsOf

if TYPE_CHECKING:
    from typing_extensions import Unpack


class DGC(TopKStrategy):
    """Deep gradient compression (Lin et al., 2018).

    Each rank keeps the momentum of its own gradients, ``u = momentum * u + g``, and selects entries from
    ``residual + u``. So the optimizer must have no momentum.

    Parameters
    ----------
    ratio : float, default 1000
        Compression ratio, 1 or more: n / ratio entries of a layer of n elements are sent, rounded up.
    momentum : float, default 0.9
        Momentum of the correction, from 0 to below 1. With 0 there is no correction, and the optimizer may have a
        momentum.
    clip : float, optional
        The approximate norm to which the mean gradient of a layer is clipped: each of P ranks clips its own gradient to
        ``clip * sqrt(P)``, since the mean of P independent gradients is shorter by sqrt(P).
    masking : bool, default True
        True to zero the momentum of entries that were sent.
    warmup : int, default 0
        Iterations in which the ratio grows: 4, 16, 64, ... up to `ratio`, for equally many iterations each. The share
        that is not sent is 75 %, 93.75 %, 98.4 %, 99.6 %, and 99.9 % in the end.
    selection : {"sampled", "exact"}
        Method to find the largest entries, as in `gradientflow.TopKGradientPool`.
    monitor, wire, algorithm
        As in `LAGS`.
    """

    name = "dgc"

    def __init__(
        self,
        ratio: float = 1000.0,
        momentum: float = 0.9,
        *,
        clip: float | None = None,
        masking: bool = True,
        selection: str = "sampled",
        **options: Unpack[TopKOptions],
    ) -> None:
        super().__init__(ratio, **options)
        if not 0 <= checked_float("momentum", momentum) < 1:
            raise ArgumentError(f"momentum is from 0 on and below 1, not {momentum!r}")
        if clip is not None and not checked_float("clip", clip) > 0:
            raise ArgumentError(f"clip is above 0, not {clip!r}")
        self.momentum, self.clip, self.masking = momentum, clip, masking
        self.selection = checked_selection(selection)

    def profile(self) -> Profile:
        """Return the warm-up. The profile is without loss only if there is neither momentum nor clipping."""
        is_plain = self.momentum == 0 and self.clip is None
        return super().profile()._replace(is_lossless=is_plain, takes_momentum=self.momentum == 0)

    def bind(self, comm: Communicator, layout: Layout) -> TopKSynchronizer:
        """Make top-k pools, one for each dtype. Collective."""
        return DGCSynchronizer(comm, layout, self)

    def pool_options(self, tensors: int) -> dict[str, object]:
        """Return the arguments of a pool; a momentum of 0 becomes None."""
        return {**super().pool_options(tensors), "momentum": self.momentum or None}


class DGCSynchronizer(TopKSynchronizer):
    """Pools with momentum correction."""

    strategy: DGC

    @property
    def takes_residuals(self) -> bool:
        """True without momentum: otherwise residuals are sums of velocities, not of gradients."""
        return not self.strategy.momentum

    def check_settings(self, settings: SettingsOf) -> None:
        """Raise if the optimizer has a momentum, too."""
        if not self.strategy.momentum:
            return
        for index, name in enumerate(self.layout.names):
            momentum = settings(index).momentum
            if momentum:
                raise ArgumentError(
                    f"dgc has the momentum ({self.strategy.momentum}) in what it sends, and the optimizer has one of "
                    f"{momentum} for {name}: make the optimizer with momentum=0, or dgc"
                )


__all__ = ["DGC"]
