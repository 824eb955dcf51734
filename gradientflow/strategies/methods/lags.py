"""Layer-wise adaptive gradient sparsification: each layer sends as much as backpropagation of the next layer hides."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from gradientflow.annotations import State, StateDict
from gradientflow.arguments import checked_int
from gradientflow.communicator import Communicator
from gradientflow.errors import ArgumentError
from gradientflow.model.computation import Computation
from gradientflow.model.costs import Costs
from gradientflow.model.pooled import SELECTION_PASSES, Allgathers, Allreduces, counts_of
from gradientflow.model.traffic import Traffic
from gradientflow.pools.base import native_threshold
from gradientflow.strategies.contract import Synchronizer
from gradientflow.strategies.exchange.state import in_order
from gradientflow.strategies.exchange.top_k import (
    TopKStrategy,
    TopKSynchronizer,
    checked_ratio,
    checked_selection,
)
from gradientflow.strategies.layout import Layout
from gradientflow.strategies.options import LayerOptions
from gradientflow.strategies.predict.adaptive import Stage, adaptive_ratio, stages_of
from gradientflow.strategies.predict.call_time import CallTime
from gradientflow.strategies.update import Update

if TYPE_CHECKING:
    from typing_extensions import Unpack

ADAPTIVE = "adaptive"
_MAX_RATIO = 1000.0

_LARGE = 1 << 14  # elements of a layer that ends a stage of backpropagation
_REMEMBERED = 20  # iterations whose median times are used
_NEVER = 2**62

logger = logging.getLogger("gradientflow")

Times = npt.NDArray[np.float64]


class LAGS(TopKStrategy):
    """Layer-wise adaptive gradient sparsification, pipelined with backpropagation (LAGS-SGD paper).

    As soon as the gradient of a layer is final, it is added to the residual of the layer, and the entries of largest
    magnitude are sent, while the next layer is computed.

    Parameters
    ----------
    ratio : float or "adaptive", default "adaptive"
        Compression ratio: n / ratio entries of a layer of n elements are sent, rounded up. A number, 1 or more, is used
        for all layers. With "adaptive" each layer takes the smallest ratio with which its communication hides behind
        backpropagation of the next layer. Adaptive ratios are fitted to measured times, and are the same on all ranks.
    max_ratio : float, default 1000
        The largest adaptive ratio, used for the last layer of backpropagation, and for layers whose communication
        cannot be hidden.
    warmup : int, default 10
        Iterations with `max_ratio` in which backpropagation is measured, if the ratio is adaptive. Otherwise iterations
        in which the ratio grows: 4, 16, 64, ... up to `ratio`, for equally many iterations each.
    refit_every : int, default 0
        Iterations after which the ratios are fitted again, to the latest measurements. With 0 they are fitted once. See
        `AdaptiveSynchronizer.refit`.
    selection : {"sampled", "exact"}
        Method to find the largest entries, as in `gradientflow.TopKGradientPool`.
    threshold_reuse : int, default 10
        Iterations that reuse a threshold, as in `gradientflow.TopKGradientPool`: thresholds change slowly, and an
        estimate takes a third of the time of the selection.
    merge_bytes : int or "auto"
        Least bytes of a message, as in `gradientflow.TopKGradientPool`: layers with fewer bytes are sent together.
    monitor : bool or int
        True to measure `TopKSynchronizer.monitor` in every iteration; n to measure it in every n-th.
    wire, algorithm
        As in `gradientflow.GradientPool`.

    Raises
    ------
    gradientflow.errors.ArgumentError
        If a number is out of range.

    Examples
    --------
    >>> import gradientflow.torch as gft
    >>> optimizer = gft.DistributedOptimizer(
    ...     torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), model, strategy="lags(max_ratio=500)"
    ... )
    """

    name = "lags"

    def __init__(
        self,
        ratio: float | str = ADAPTIVE,
        max_ratio: float = _MAX_RATIO,
        *,
        warmup: int = 10,
        refit_every: int = 0,
        selection: str = "sampled",
        threshold_reuse: int = 10,
        merge_bytes: int | str = "auto",
        **options: Unpack[LayerOptions],
    ) -> None:
        if isinstance(ratio, str) and ratio != ADAPTIVE:
            raise ArgumentError(f"ratio is a number of 1 or more, or {ADAPTIVE!r}, not {ratio!r}")
        checked_ratio("max_ratio", max_ratio)
        final = max_ratio if isinstance(ratio, str) else ratio
        super().__init__(final, warmup=warmup, **options)
        if refit_every and ratio != ADAPTIVE:
            raise ArgumentError(f"refit_every goes with an adaptive ratio, not with {ratio!r}")
        if max_ratio != _MAX_RATIO and ratio != ADAPTIVE:
            raise ArgumentError(f"max_ratio goes with an adaptive ratio, not with {ratio!r}")
        self.ratio = ratio
        self.max_ratio = max_ratio
        self.refit_every = checked_int("refit_every", refit_every)
        native_threshold(merge_bytes, "merge_bytes")
        self.selection, self.merge_bytes = checked_selection(selection), merge_bytes
        self.threshold_reuse = checked_int("threshold_reuse", threshold_reuse)

    def traffic(self, computation: Computation, costs: Costs) -> Traffic:
        """Return the entries of each layer. An adaptive ratio is fitted as in training, but to the model's times."""
        if self.ratio != ADAPTIVE:
            return super().traffic(computation, costs)
        counts = counts_of(computation)
        stages = stages_of(counts, _LARGE)
        ready = computation.ready
        ratios = [self.max_ratio] * len(counts)
        for number, stage in enumerate(stages):
            elements = tuple(counts[index] for index in stage)
            selecting = costs.pass_seconds(sum(elements) * SELECTION_PASSES)
            following = stages[number + 1] if number + 1 < len(stages) else None
            computing = None if following is None else ready[following[-1]] - ready[stage[-1]]
            found = Stage(elements, selecting, computing)
            ratio = adaptive_ratio(
                found, Allreduces(costs, self.wire), Allgathers(costs, self.wire), costs.cluster.ranks, self.max_ratio
            )
            for index in stage:
                ratios[index] = ratio
        return self._traffic_of_ratios(computation, costs, ratios)

    def ratio_at(self, iteration: int) -> float:
        """Return the ratio of an iteration, with the warm-up; an adaptive ratio counts as `max_ratio`."""
        return super().ratio_at(self.warmup if self.ratio == ADAPTIVE else iteration)

    def bind(self, comm: Communicator, layout: Layout) -> TopKSynchronizer:
        """Make top-k pools, one for each dtype. Collective."""
        if self.ratio != ADAPTIVE:
            return super().bind(comm, layout)
        return AdaptiveSynchronizer(comm, layout, self)


class AdaptiveSynchronizer(TopKSynchronizer):
    """Top-k pools whose ratios are fitted to measured times.

    Attributes
    ----------
    stages : list of range
        The tensors of each stage, which are sent together, in the order of backpropagation: see `stages_of`.
    """

    strategy: LAGS

    def __init__(self, comm: Communicator, layout: Layout, strategy: LAGS) -> None:
        super().__init__(comm, layout, strategy)
        self.stages = stages_of(layout.counts, _LARGE)
        self._computing: deque[Times] = deque(maxlen=_REMEMBERED)  # times at which each tensor was ready and selected
        self._selecting: deque[Times] = deque(maxlen=_REMEMBERED)  # seconds for each tensor; NaN without selection
        self._selecting_known = np.zeros(len(layout))  # latest seconds for each tensor
        self._next_fit = max(1, strategy.warmup)  # number of the iteration after which ratios are fitted
        self._fitted: list[Stage] = []
        self._sending: list[float] = []  # predicted seconds of sending each stage

    # ---- the moments of an iteration -----------------------------------------------------------------------------

    def _ramp(self) -> None:
        """Keep the fitted ratios."""

    def wait(self, stream: object = None) -> Update:  # noqa: D102
        update = super().wait(stream)
        if update.kind == "apply":
            self._note_times()
        return update

    def after_step(self) -> None:
        """Take the measurements of the monitor, and fit the ratios, if they are due."""
        super().after_step()
        if self.iterations >= self._next_fit:
            self.refit()
            every = self.strategy.refit_every
            self._next_fit = self.iterations + every if every else _NEVER

    def _computing_seconds(self, moments: Times) -> Times:
        """Return the seconds of backpropagation of each stage, up to its last tensor, without the selection."""
        begun, ended = moments
        seconds = np.full(len(self.stages), np.nan)
        before = np.nan
        for number, stage in enumerate(self.stages):
            tensors = slice(stage.start, stage.stop)
            if np.isnan(ended[tensors]).all():
                before = np.nan
                continue
            last = stage.start + int(np.nanargmax(begun[tensors]))
            inside = np.nansum((ended - begun)[tensors]) - (ended[last] - begun[last])
            seconds[number] = max(0.0, begun[last] - before - inside)
            before = ended[last]
        return seconds

    def _note_times(self) -> None:
        """Record when tensors were ready, and the seconds of the selection, with a share of gathering and scattering.

        On a device backpropagation continues during the selection.
        """
        moments, seconds = np.full((2, len(self.layout)), np.nan), np.full(len(self.layout), np.nan)
        for (_, indices), pool in zip(self.layout.groups, self.pools, strict=True):
            selections = pool.layer_selections
            selecting = sum(selection.select_seconds for selection in selections)
            times = max(1.0, pool.bookkeeping_seconds / selecting) if selecting > 0 else 1.0
            for selection in selections:
                index = indices[selection.first_tensor]
                if selection.ready is not None:
                    moments[0, index] = selection.ready
                    moments[1, index] = selection.ready + (selection.select_seconds if pool.device is None else 0.0)
                if selection.ratio > 1:
                    seconds[index] = times * selection.select_seconds
        self._computing.append(moments)
        self._selecting.append(seconds)

    # ---- ratios --------------------------------------------------------------------------------------------------

    def refit(self) -> None:
        """Measure the link, and fit the ratios to it and to the times of the last iterations. Collective.

        Between iterations. All ranks take the largest ratio that a rank has found. A stage keeps its ratio if no rank
        has measured the backpropagation that could hide the stage.
        """
        with self.comm.span("refit"):
            dtype, _ = max(self.layout.groups, key=lambda group: sum(self.layout.counts[i] for i in group[1]))
            wire, algorithm = self.strategy.wire_of(dtype), self.strategy.algorithm
            dense = CallTime.of_allreduce(self.comm, dtype, wire, algorithm, self.layout.device)
            sparse = CallTime.of_allgather(self.comm)
            self._fitted = self._measured_stages()
            found = np.zeros(len(self.stages))
            for number, stage in enumerate(self._fitted):
                is_last = number + 1 == len(self._fitted)
                if is_last or stage.computing_seconds is not None:
                    found[number] = adaptive_ratio(stage, dense, sparse, self.comm.size, float(self.strategy.max_ratio))
            self.comm.allreduce(found, "max")
            ratios = list(self.ratios)
            for tensors, ratio in zip(self.stages, found.tolist(), strict=True):
                for index in tensors:
                    ratios[index] = ratio or ratios[index]
            self.ratios = ratios
            self._sending = [
                dense.seconds(sum(stage.elements)) if ratio == 1 else sparse.seconds(stage.entries(ratio))
                for stage, ratio in zip(self._fitted, (ratios[each.start] for each in self.stages), strict=True)
            ]
        if self.comm.rank == 0:
            logger.info("lags has fitted its ratios after %d iterations:\n%s", self.iterations, self.ratio_table())

    def _measured_stages(self) -> list[Stage]:
        """Return the stages with the times measured on this rank."""
        computing = _median([self._computing_seconds(each) for each in self._computing], len(self.stages))
        selecting = _median(self._selecting, len(self.layout))
        known = ~np.isnan(selecting)
        self._selecting_known[known] = selecting[known]
        counts = self.layout.counts
        behind = [None if np.isnan(each) else float(each) for each in computing[1:]]
        return [
            Stage(
                tuple(counts[index] for index in stage),
                float(sum(self._selecting_known[index] for index in stage)),
                seconds,
            )
            for stage, seconds in zip(self.stages, [*behind, None], strict=True)
        ]

    def _table(self) -> tuple[list[str], list[list[str]]]:
        headings, rows = super()._table()
        extra = [["", ""] for _ in rows]
        for stage, measured, sending in zip(self.stages, self._fitted, self._sending, strict=False):
            behind = measured.computing_seconds
            extra[stage.stop - 1] = [f"{1e3 * sending:.3f}", "-" if behind is None else f"{1e3 * behind:.3f}"]
        return [*headings, "sending\nms", "hides in\nms"], [
            [*row, *more] for row, more in zip(rows, extra, strict=True)
        ]

    # ---- state ---------------------------------------------------------------------------------------------------

    def state_dict(self) -> StateDict:
        """Return the states of this rank's pools, the ratios, and the iteration of the next fit."""
        return {**super().state_dict(), "ratios": list(self.ratios), "next_fit": self._next_fit}

    def check_state_dict(self, state: State) -> None:
        """Raise unless the state is for these tensors, in any order."""
        super().check_state_dict(state)
        if "ratios" not in state:
            return
        ratios = [checked_ratio("a ratio of the state", each) for each in state["ratios"]]
        checked_int("next_fit", state.get("next_fit"))
        if len(ratios) != len(self.layout):
            raise ArgumentError(f"the state has {len(ratios)} ratios for {len(self.layout)} tensors")

    def load_state_dict(self, state: State | None) -> None:
        """Load a state. Without a state, or with a consolidated state, the ratios are fitted again. Collective."""
        super().load_state_dict(state)
        self._computing.clear()
        self._selecting.clear()
        is_own = state is not None and all(pool["rank"] is not None for pool in state["pools"].values())
        if state is not None and is_own and "ratios" in state:
            self.ratios, self._next_fit = list(state["ratios"]), int(state["next_fit"])
        else:
            self._reset_ratios()

    def _reset_ratios(self) -> None:
        """Begin with the largest ratios, and fit them after the warm-up."""
        self.ratios = [float(self.strategy.max_ratio)] * len(self.layout)
        self._next_fit = self.iterations + max(1, self.strategy.warmup)

    def summary(self, state: State) -> dict[str, str]:
        """Return iteration, order and ratios of a state."""
        ratios = ", ".join(f"{each:.6g}" for each in state.get("ratios", ()))
        return {**super().summary(state), "the ratios": ratios, "the next fit": str(state.get("next_fit"))}

    def take_over(self, other: Synchronizer) -> None:
        """Take residuals, ratios and iteration of another synchronizer, by the names of tensors.

        If `other` had other ranks, the ratios are fitted again.
        """
        assert isinstance(other, AdaptiveSynchronizer)
        super().take_over(other)
        if other.comm is self.comm:
            self.ratios = in_order(other.ratios, other.layout.names, self.layout, self.ratios)
            self._next_fit = other._next_fit
        else:
            self._reset_ratios()


def _median(samples: Sequence[Times], count: int) -> Times:
    """Return the medians of the known values, NaN where no value is known."""
    found = np.full(count, np.nan)
    if len(samples):
        table = np.array(samples)
        known = ~np.isnan(table).all(axis=0)
        found[known] = np.nanmedian(table[:, known], axis=0)
    return found


__all__ = ["LAGS", "AdaptiveSynchronizer"]
