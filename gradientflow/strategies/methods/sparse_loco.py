"""SparseLoCo: every few steps the largest changes of weights are sent, with two bits for each value."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from gradientflow.arguments import checked_float
from gradientflow.communicator import Communicator
from gradientflow.errors import ArgumentError
from gradientflow.model.computation import Computation
from gradientflow.model.costs import Call, Costs
from gradientflow.model.pooled import counts_of
from gradientflow.model.traffic import EveryFewSteps, Traffic
from gradientflow.plain import Plain
from gradientflow.strategies.exchange.nonfinite import is_finite
from gradientflow.strategies.exchange.periodic import PeriodicStrategy, PeriodicSynchronizer
from gradientflow.strategies.layout import Layout

_BLOCK = 4096  # entries
_SENT = 64  # entries of a block that are sent
_INDEX_BYTES = _SENT * 12 // 8
_CODE_BYTES = _SENT * 2 // 8
_PASSES = 20 * 4  # bytes of memory for each weight: residuals, selection, codes, weights
BLOCK_BYTES = _INDEX_BYTES + _CODE_BYTES + 4  # indices, codes, and the scale

Floats = npt.NDArray[np.float32]
Bytes = npt.NDArray[np.uint8]


class SparseLoCo(PeriodicStrategy):
    """SparseLoCo (Sarfi et al., 2025): DiLoCo without outer momentum, with top-k, two bits and error feedback.

    Every `period` steps each rank adds the change of its weights to its residuals, and sends the 64 largest of each
    4,096 entries. All other entries stay residuals.

    Parameters
    ----------
    period : int, default 30
        Steps from one exchange to the next.
    outer_rate : float, default 1
        Factor of the mean of the entries that the ranks send.
    decay : float, default 0.95
        Factor of the residuals at every exchange, from 0 to 1.
    """

    name = "sparse_loco"
    not_taken = (
        dict.fromkeys(("density", "ratio"), "it sends 64 of each 4,096 entries, as the method has it")
        | dict.fromkeys(("fragments", "delay", "mixing"), "entries are chosen, sent and applied at once")
        | {"wire": "what it sends has two bits already", "outer_momentum": "the residuals take its place"}
    )

    def __init__(self, period: int = 30, outer_rate: float = 1.0, decay: float = 0.95, **options: object) -> None:
        super().__init__(period, **options)
        if not checked_float("outer_rate", outer_rate) > 0:
            raise ArgumentError(f"outer_rate is above 0, not {outer_rate!r}")
        if not 0 <= checked_float("decay", decay) <= 1:
            raise ArgumentError(f"decay is from 0 to 1, not {decay!r}")
        self.outer_rate, self.decay = outer_rate, decay

    def bind(self, comm: Communicator, layout: Layout) -> PeriodicSynchronizer:
        """Make the synchronizer, which counts steps and exchanges weights. Collective."""
        return SparseLoCoSynchronizer(comm, layout, self)

    def traffic(self, computation: Computation, costs: Costs) -> Traffic:
        """Return the exchange of the largest entries, an allgather."""
        parameters = sum(counts_of(computation))
        call = Call("allgather", -(-parameters // _BLOCK) * BLOCK_BYTES, "uint8", in_node_memory=False)
        passes = parameters * (_PASSES + 4.0 * costs.cluster.ranks)  # the entries of each rank are decoded
        return EveryFewSteps((call,), self.period, passes=passes, memory=12.0 * parameters)


class SparseLoCoSynchronizer(PeriodicSynchronizer):
    """Exchange of the largest entries of differences; `residuals` are the changes not sent yet."""

    state_names = (*PeriodicSynchronizer.state_names, "residuals")
    strategy: SparseLoCo

    def __init__(self, comm: Communicator, layout: Layout, strategy: SparseLoCo) -> None:
        super().__init__(comm, layout, strategy)
        self.residuals = [np.zeros(count, np.float32) for count in layout.counts]
        self._left: list[Floats] = []  # residuals that the exchange under way will leave

    def begin_exchange(self, fragment: int, differences: np.ndarray) -> None:
        """Exchange at once the largest entries of residuals plus differences.

        The residuals do not change if a value of any rank is not finite: that rank then sends NaNs.
        """
        parts = []
        self._left = []
        for residual, difference in zip(self.residuals, self.differences, strict=True):
            values = residual * np.float32(self.strategy.decay)
            values += difference
            sent = encode(values)
            values -= decode(sent, residual.size)
            parts.append(sent)
            self._left.append(values)
        everything = np.concatenate(parts) if parts else np.zeros(0, np.uint8)
        label = f"largest differences after step {self.step_of(fragment)}"
        for rank, sent in enumerate(self.comm.allgather(everything, label=label)):
            offset = 0
            self.marks(fragment)[rank] = 0
            for mine, difference in zip(parts, self.differences, strict=True):
                values = decode(sent[offset : offset + mine.size], difference.size)
                if not is_finite(values):
                    self.marks(fragment)[rank] = 1
                difference[...] = values if rank == 0 else difference + values
                offset += mine.size
        for difference in self.differences:
            difference /= self.comm.size
        if is_finite(differences):
            self._keep_left()

    def _keep_left(self) -> None:
        for residual, values in zip(self.residuals, self._left, strict=True):
            residual[...] = values

    def catch_up(self, state: Plain, begins: bool) -> None:
        """Keep as residuals the entries that were not sent in the exchange that other ranks have ended."""
        was_sent = self._pending() and state["exchanges"] > self.exchanges
        if was_sent and all(is_finite(values) for values in self._left):
            self._keep_left()
        super().catch_up(state, begins)


def encode(values: Floats) -> Bytes:
    """Return the largest entries of each block: indices of 12 bits, values of two bits, and a scale.

    The scale is the largest magnitude of the block, and values are -3/4, -1/4, 1/4 or 3/4 of it. A block of zeros has
    the scale 0, and a block with a value that is not finite has the scale NaN.

    Parameters
    ----------
    values : array of float32
        Flat array.
    """
    blocks = -(-values.size // _BLOCK)
    padded = np.zeros((blocks, _BLOCK), np.float32)
    padded.reshape(-1)[: values.size] = values
    # If magnitudes are equal, the entry with the lower index is sent, as everywhere.
    magnitudes = np.abs(padded)
    magnitudes[np.isnan(magnitudes)] = np.inf  # so that NaNs are sent: otherwise they are sorted last
    order = np.argsort(-magnitudes, axis=1, kind="stable")[:, :_SENT]
    places = np.sort(order, axis=1).astype(np.uint16)
    chosen = np.take_along_axis(padded, places.astype(np.int64), axis=1)
    scale = magnitudes.max(axis=1, initial=0)
    scale[np.isinf(scale)] = np.nan
    codes = ((chosen < 0) * 2 + (np.abs(chosen) * 2 >= scale[:, None])).astype(np.uint8)
    sent = np.empty((blocks, BLOCK_BYTES), np.uint8)
    even, odd = places[:, ::2], places[:, 1::2]
    pairs = np.stack([even & 0xFF, (even >> 8) | ((odd & 0xF) << 4), odd >> 4], axis=2)
    sent[:, :_INDEX_BYTES] = pairs.reshape(blocks, _INDEX_BYTES)
    shifted = codes.reshape(blocks, _CODE_BYTES, 4) << np.array([0, 2, 4, 6], np.uint8)
    sent[:, _INDEX_BYTES:-4] = np.bitwise_or.reduce(shifted, axis=2)
    sent[:, -4:] = scale.astype("<f4")[:, None].view(np.uint8)
    return sent.reshape(-1)


def decode(sent: Bytes, count: int) -> Floats:
    """Return `count` entries from the result of `encode`, with zeros where nothing was sent."""
    rows = np.ascontiguousarray(sent).reshape(-1, BLOCK_BYTES)
    first, second, third = (rows[:, start:_INDEX_BYTES:3].astype(np.uint16) for start in range(3))
    places = np.stack([first | ((second & 0xF) << 8), (second >> 4) | (third << 4)], axis=2).reshape(len(rows), _SENT)
    codes = (rows[:, _INDEX_BYTES:-4, None] >> np.array([0, 2, 4, 6], np.uint8)).reshape(len(rows), _SENT) & 3
    scale = np.ascontiguousarray(rows[:, -4:]).view("<f4")
    levels = np.array([0.25, 0.75, -0.25, -0.75], np.float32)[codes] * scale
    padded = np.zeros((len(rows), _BLOCK), np.float32)
    np.put_along_axis(padded, places.astype(np.int64), levels, axis=1)
    return padded.reshape(-1)[:count]


__all__ = ["SparseLoCo", "decode", "encode"]
