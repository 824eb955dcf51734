"""PowerSGD: gradients of matrices as products of two thin matrices, with error feedback."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from gradientflow.annotations import TensorLike
from gradientflow.arguments import checked_int
from gradientflow.communicator import Communicator
from gradientflow.model.computation import Computation
from gradientflow.model.costs import Call, Costs
from gradientflow.model.pooled import counts_of
from gradientflow.model.traffic import CallSequence, EveryStep, Traffic
from gradientflow.strategies.contract import Strategy, Synchronizer
from gradientflow.strategies.exchange.nonfinite import first_nonfinite
from gradientflow.strategies.exchange.survivable import SurvivableArrays
from gradientflow.strategies.layout import Layout

_PASSES = 12 * 4  # bytes of memory for each gradient

Floats = npt.NDArray[np.float32]


class PowerSGD(Strategy):
    """PowerSGD (Vogels et al., 2019): one step of a power iteration for each matrix, warm-started.

    A gradient with several dimensions counts as a matrix: its first dimension gives the rows, the rest the columns. It
    travels as two matrices of `rank` columns; the error of this approximation is added to the next gradient. Tensors
    that would not shrink to less than half travel whole.

    Parameters
    ----------
    rank : int, default 4
        Columns of the two matrices.
    warmup : int, default 10
        Iterations at the beginning in which all tensors travel whole.
    seed : int, default 0
        Seed of the matrices with which the power iteration starts.
    wire : str, optional
        Format to which values are rounded between nodes, as in `gradientflow.Communicator.allreduce`. The rounding
        error of a product is added to the next gradient, too.
    """

    name = "powersgd"
    effect = "approximates"
    not_taken = dict.fromkeys(("density", "ratio"), "all of two thin matrices is sent; rank says how thin they are") | {
        "fusion_threshold": "all matrices travel together, in two calls"
    }

    options = ("wire",)
    wire: str | None

    def __init__(self, rank: int = 4, warmup: int = 10, *, seed: int = 0, **options: object) -> None:
        super().__init__(**options)
        self.rank = checked_int("rank", rank, 1)
        self.warmup = checked_int("warmup", warmup)
        self.seed = checked_int("seed", seed)

    def bind(self, comm: Communicator, layout: Layout) -> SurvivableArrays:
        """Make the synchronizer that approximates gradients. Collective."""
        return PowerSGDSynchronizer(comm, layout, self)

    def traffic(self, computation: Computation, costs: Costs) -> Traffic:
        """Return the two allreduces after backpropagation, of left and of right matrices."""
        sizes = [_matrix(shape, self.rank) for shape in computation.shapes]
        whole = sum(count for count, size in zip(counts_of(computation), sizes, strict=True) if not size[2])
        left = whole + sum(rank * rows for rows, _, rank in sizes)
        right = sum(rank * columns for _, columns, rank in sizes)
        calls = tuple(Call("allreduce", count, "float32", self.wire) for count in (left, right) if count)
        elements = sum(rows * columns for rows, columns, rank in sizes if rank)
        # Three products with a thin matrix read the gradient; its residual is read and written before and after.
        passes = elements * _PASSES
        return EveryStep((CallSequence(calls, len(sizes), passes),), 0.0, False, 4.0 * elements)


class PowerSGDSynchronizer(SurvivableArrays):
    """Gradients as products of two matrices.

    Attributes
    ----------
    residuals : list of arrays
        Gradients less their products; empty for tensors that travel whole.
    bases : list of arrays
        The right matrices of the last iteration.
    steps : int
        Iterations so far.
    """

    state_names = ("residuals", "bases", "steps")
    strategy: PowerSGD

    def __init__(self, comm: Communicator, layout: Layout, strategy: PowerSGD) -> None:
        super().__init__(comm, layout, strategy)
        self.steps = 0
        self._sizes = [_matrix(shape, strategy.rank) for shape in layout.shapes]
        self.residuals: list[Floats] = [np.zeros((rows, columns), np.float32) for rows, columns, _ in self._sizes]
        self.bases: list[Floats] = []
        for (_, columns, rank), name in zip(self._sizes, layout.names, strict=True):
            random = np.random.default_rng([strategy.seed, *name.encode()])
            self.bases.append(random.standard_normal((columns, rank)).astype(np.float32))
        # First call: whole tensors, and left matrices. Second call: right matrices.
        plain = [0 if rank else count for (*_, rank), count in zip(self._sizes, layout.counts, strict=True)]
        left = [rows * rank for rows, _, rank in self._sizes]
        right = [columns * rank for _, columns, rank in self._sizes]
        self._everything = comm.empty(sum(layout.counts), "float32")
        self._first = comm.empty(sum(plain) + sum(left), "float32")
        self._second = comm.empty(sum(right), "float32")
        self._whole = _cut(self._everything, layout.counts)
        parts = _cut(self._first, [*plain, *left])
        self._plain = parts[: len(plain)]
        self._left = [
            part.reshape(rows, rank) for part, (rows, _, rank) in zip(parts[len(plain) :], self._sizes, strict=True)
        ]
        self._right = [
            part.reshape(columns, rank)
            for part, (_, columns, rank) in zip(_cut(self._second, right), self._sizes, strict=True)
        ]

    def gradient_ready(self, index: int, gradient: TensorLike) -> None:
        """Project a gradient."""
        flat, rank = gradient.reshape(-1), self._sizes[index][2]
        if self.steps < self.strategy.warmup:
            self._whole[index][...] = flat
        elif not rank:
            self._plain[index][...] = flat
        else:
            residual = self.residuals[index]
            residual += gradient.reshape(residual.shape) / np.float32(self.loss_scale)
            np.matmul(residual, self.bases[index], out=self._left[index])

    def backward_done(self) -> None:
        """Exchange the left matrices, then the right matrices, which need the means of the left."""
        is_warm = self.steps >= self.strategy.warmup
        self.steps += 1
        if not is_warm:
            self._average(self._everything)
            self._return(self._whole)
            return
        self._average(self._first)
        matrices = [index for index, (*_, rank) in enumerate(self._sizes) if rank]
        for index in matrices:
            self._left[index][...] = np.linalg.qr(self._left[index])[0]
            np.matmul(self.residuals[index].T, self._left[index], out=self._right[index])
        self._average(self._second)
        for index in matrices:
            self.bases[index][...] = self._right[index]
            product = self._left[index] @ self._right[index].T
            self.residuals[index] -= product
            self.gradients[index].reshape(product.shape)[...] = product * np.float32(self.loss_scale)
        self._return(self._plain)

    def take_over(self, other: Synchronizer) -> None:
        """Take the state of another synchronizer; right matrices and steps from a rank with the most steps."""
        super().take_over(other)
        steps = self.comm.allgather(np.array([self.steps])).ravel()
        self.steps = int(steps.max())
        if (steps < self.steps).any():
            leader = int(steps.argmax())
            for basis in self.bases:
                if basis.size:
                    self.comm.broadcast(basis, leader)

    def _average(self, values: Floats) -> None:
        wire = {"wire": self.strategy.wire} if self.strategy.wire else {}
        self.comm.allreduce(values, "mean", **wire)

    def nonfinite_mean(self) -> int | None:
        """Check the thin matrices in place of their products, unless the products are scaled or rounded."""
        if self.steps <= self.strategy.warmup or self.skips_nonfinite or {*self.layout.dtypes} != {"float32"}:
            return super().nonfinite_mean()
        parts = zip(self._plain, self._left, self._right, strict=True)
        return next((index for index, each in enumerate(parts) if first_nonfinite(each) is not None), None)

    def has_gradient(self, index: int) -> bool:
        """Return True if the product for a tensor is not 0: a part of its residual was sent."""
        return bool(self._sizes[index][2]) and bool(self.gradients[index].any())

    def _return(self, means: list[Floats]) -> None:
        for gradient, mean in zip(self.gradients, means, strict=True):
            if mean.size:
                gradient.reshape(-1)[...] = mean


def _matrix(shape: tuple[int, ...], rank: int) -> tuple[int, int, int]:
    """Return rows, columns, and the rank of the product; all 0 for a tensor that travels whole."""
    rows = shape[0] if len(shape) > 1 else 0
    columns = int(np.prod(shape[1:])) if rows else 0
    rank = min(rank, rows, columns)
    return (rows, columns, rank) if rank and 2 * rank * (rows + columns) < rows * columns else (0, 0, 0)


def _cut(array: TensorLike, counts: list[int] | tuple[int, ...]) -> list[Floats]:
    """Cut an array into consecutive parts with these numbers of entries."""
    return np.split(np.asarray(array), np.cumsum(counts)[:-1]) if counts else []


__all__ = ["PowerSGD"]
