"""Sparsification with error feedback: the base of strategies that send single entries of each layer."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

from gradientflow._location import core
from gradientflow.arguments import checked_float, checked_int
from gradientflow.communicator import Communicator
from gradientflow.errors import ArgumentError, ArgumentTypeError
from gradientflow.model.computation import Computation
from gradientflow.model.costs import Costs
from gradientflow.model.pooled import top_k_traffic
from gradientflow.model.traffic import Traffic
from gradientflow.pools.top_k import TopKGradientPool
from gradientflow.strategies.contract import Synchronizer
from gradientflow.strategies.layout import Layout
from gradientflow.strategies.predict.monitor import Monitor, MonitorTable
from gradientflow.strategies.predict.tables import text_table
from gradientflow.strategies.update import Profile, Update
from gradientflow.wires import check_single

from .pooled import PoolStrategy
from .residual import ResidualSynchronizer

_POOL_OPTIONS = ("selection", "threshold_reuse", "merge_bytes", "seed", "momentum", "masking", "clip", "overlap")


class TopKStrategy(PoolStrategy):
    """A strategy that sends some entries of each layer, and keeps the rest in residuals.

    Attributes named like arguments of `gradientflow.TopKGradientPool` are passed to the pools.

    Parameters
    ----------
    ratio : float
        Compression ratio: n / ratio entries of a layer of n elements are sent, rounded up.
    warmup : int
        Iterations in which the ratio grows: 4, 16, 64, ... up to `ratio`, for equally many iterations each.
    monitor : bool or int
        True to measure `TopKSynchronizer.monitor` in every iteration; n to measure it in every n-th.
    wire, algorithm
        As in `gradientflow.GradientPool`.
    """

    pool = TopKGradientPool
    overlap = True
    effect = "delays"

    options = ("wire", "algorithm")

    def __init__(self, ratio: float, *, warmup: int = 0, monitor: int = False, **options: object) -> None:
        super().__init__(**options)
        check_single(self.wire, self.name)
        self.final_ratio = checked_ratio("ratio", ratio)
        self.ratio: float | str = ratio
        self.warmup = checked_int("warmup", warmup)
        self.monitor = monitor if isinstance(monitor, bool) else checked_int("monitor", monitor)

    def profile(self) -> Profile:
        """Return the warm-up; the profile says that nothing is lost."""
        return super().profile()._replace(is_lossless=True)

    def ratio_at(self, iteration: int) -> float:
        """Return the ratio of an iteration, 0, 1, ..., with the warm-up."""
        final = self.final_ratio
        if iteration >= self.warmup:
            return final
        stages = max(1, math.ceil(math.log(final, 4) - 1e-9) - 1)  # stages with ratios below the final one
        return min(final, 4.0 ** (1 + iteration * stages // self.warmup))

    def bind(self, comm: Communicator, layout: Layout) -> TopKSynchronizer:
        """Make top-k pools, one for each dtype. Collective."""
        return TopKSynchronizer(comm, layout, self)

    def pool_options(self, tensors: int) -> dict[str, object]:
        """Return ratio and layers of pools, and the attributes named like their arguments."""
        own = {name: getattr(self, name) for name in _POOL_OPTIONS if hasattr(self, name)}
        return {"ratios": self.ratio_at(0), "layers": self.layers(tensors), **own}

    def layers(self, tensors: int) -> list[int]:
        """Return the number of tensors in each layer of a pool: each tensor is a layer."""
        return [1] * tensors

    def traffic(self, computation: Computation, costs: Costs) -> Traffic:
        """Return the entries of each layer, in messages of several layers."""
        return self._traffic_of_ratios(computation, costs, [self.ratio_at(self.warmup)])

    def _traffic_of_ratios(self, computation: Computation, costs: Costs, ratios: Sequence[float]) -> Traffic:
        return top_k_traffic(
            computation,
            costs.cluster,
            self.layers(len(computation.shapes)),
            ratios,
            merge_bytes=getattr(self, "merge_bytes", "auto"),
            wire=self.wire,
            algorithm=self.algorithm,
            overlap=self.overlap,
        )


class TopKSynchronizer(ResidualSynchronizer):
    """Top-k pools.

    Attributes
    ----------
    monitor : MonitorTable or None
        The last measurements, if the strategy monitors; they are made after the step.
    """

    strategy: TopKStrategy
    pools: tuple[TopKGradientPool, ...]
    _place_of: Mapping[int, tuple[TopKGradientPool, int]]

    def __init__(self, comm: Communicator, layout: Layout, strategy: TopKStrategy) -> None:
        super().__init__(comm, layout, strategy)
        self.monitor: MonitorTable | None = None
        self._monitor = Monitor()
        if strategy.overlap and layout.device == "cpu":
            self.gradient_source = "elsewhere"

    @property
    def iterations(self) -> int:
        """The number of iterations that have ended."""
        return max((pool.iteration for pool in self.pools), default=0)

    @property
    def ratios(self) -> tuple[float, ...]:
        """The ratio of each tensor."""
        found = {index: float(pool.ratios[layer]) for pool, layer, index in self._layers()}
        return tuple(found[index] for index in range(len(self.layout)))

    @ratios.setter
    def ratios(self, ratios: Sequence[float]) -> None:
        wanted: list[list[float]] = [[1.0] * len(pool.ratios) for pool in self.pools]
        places = {id(pool): each for pool, each in zip(self.pools, wanted, strict=True)}
        for pool, layer, index in self._layers():
            places[id(pool)][layer] = max(places[id(pool)][layer], float(ratios[index]))
        for pool, each in zip(self.pools, wanted, strict=True):
            if list(pool.ratios) != each:
                pool.ratios = each

    def _layers(self) -> Iterator[tuple[TopKGradientPool, int, int]]:
        """Yield, for each tensor, its pool, the number of its layer in that pool, and the index of the tensor."""
        for (_, indices), pool in zip(self.layout.groups, self.pools, strict=True):
            counts = self.strategy.layers(len(indices))
            layers = [layer for layer, count in enumerate(counts) for _ in range(count)]
            for layer, index in zip(layers, indices, strict=True):
                yield pool, layer, index

    # ---- the moments of an iteration -----------------------------------------------------------------------------

    def prepare(self) -> None:
        """Set the loss scale and the ratio of the pools."""
        super().prepare()
        self._ramp()

    def ready(self, index: int, stream: object = None, elsewhere: int | None = None) -> None:  # noqa: D102
        if elsewhere is None:
            super().ready(index, stream)
        else:
            pool, place = self._place_of[index]
            pool._native.ready_elsewhere(place, elsewhere)

    def _ramp(self) -> None:
        ratio = self.strategy.ratio_at(self.iterations)
        for pool in self.pools:
            if set(pool.ratios) != {ratio}:
                pool.ratios = [ratio] * len(pool.ratios)

    def wait(self, stream: object = None) -> Update:  # noqa: D102
        self._monitor.reset()
        update = super().wait(stream)
        every = int(self.strategy.monitor)
        if every and update.kind == "apply" and self.iterations % every == 0:
            self._monitor.take(self.layout, self.pools, self.comm.size)
        return update

    def after_step(self) -> None:
        """Take the measurements of the monitor, if they are due."""
        self.monitor = self._monitor.measure(self.comm) or self.monitor

    def take_over(self, other: Synchronizer) -> None:
        """Take residuals of another synchronizer, by the names of tensors, and measurements on the same ranks."""
        assert isinstance(other, TopKSynchronizer)
        super().take_over(other)
        self.monitor = other.monitor
        if other.comm is self.comm:
            self._monitor = other._monitor

    # ---- information ---------------------------------------------------------------------------------------------

    def ratio_table(self) -> str:
        """Return a table of the layers: the current ratios, and the last iteration on this rank."""
        return text_table(*self._table())

    def _table(self) -> tuple[list[str], list[list[str]]]:
        """Return the headings and the rows of the table, in the order of backpropagation."""
        selections = {id(pool): pool.layer_selections for pool in self.pools}  # empty after an iteration that failed
        layers: dict[tuple[int, int], list[int]] = {}
        for pool, layer, index in self._layers():
            layers.setdefault((id(pool), layer), []).append(index)
        ratios, rows = self.ratios, []
        for (number, layer), tensors in sorted(layers.items(), key=lambda item: item[1]):
            elements, ratio = sum(self.layout.counts[index] for index in tensors), ratios[tensors[0]]
            now = [
                self.layout.names[tensors[0]],
                f"{elements:,}",
                f"{ratio:,.6g}",
                f"{core.k_of(elements, ratio):,}",
            ]
            last = ["-"] * 3
            if selections[number]:
                selection = selections[number][layer]
                form = "dense" if selection.dense else selection.indices
                last = [f"{selection.sent:,}", form, f"{1e3 * selection.select_seconds:.3f}"]
            rows.append([*now, *last])
        return ["layer", "elements", "ratio", "k", "sent\nlast", "as\nlast", "selecting\nms"], rows


def checked_selection(selection: object) -> str:
    """Return the method to find the largest entries: "sampled" or "exact".

    Raises
    ------
    gradientflow.errors.ArgumentError
        If it is neither.
    """
    if selection not in ("sampled", "exact"):
        raise ArgumentError(f"selection is 'sampled' or 'exact', not {selection!r}")
    return str(selection)


def checked_ratio(name: str, ratio: object) -> float:
    """Return a compression ratio as a float.

    Raises
    ------
    gradientflow.errors.ArgumentError
        If it is below 1, or not finite.
    gradientflow.errors.ArgumentTypeError
        If it is no number.
    """
    if isinstance(ratio, bool):
        raise ArgumentTypeError(f"{name} is a number of 1 or more, not {ratio!r}")
    found = checked_float(name, ratio)
    if not 1 <= found < math.inf:
        raise ArgumentError(f"{name} is a number of 1 or more, not {ratio!r}")
    return found


__all__ = ["TopKStrategy", "TopKSynchronizer", "checked_ratio", "checked_selection"]
