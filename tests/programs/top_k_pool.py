"""The top-k gradient pool: the algorithm in straight lines, nothing lost, the same bits, and what may go wrong."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from marks import on_ranks
from support import RANK, SIZE, WORLD, in_threads, raises, run_checks

import gradientflow as gf
from gradientflow.errors import (
    ArgumentError,
    ArgumentTypeError,
    ClosedError,
    CommunicationTimeoutError,
    MismatchError,
    NonFiniteError,
)

SHAPES: list[Any] = [(3, 5), (1,), (7,), (0,), (40,), (2, 30), (0, 3)]
LARGE: list[Any] = [(50, 40), (9,), (3000,), (1100,)]  # of which a dense allreduce may take fewer bytes


def rounded(values: np.ndarray, dtype: str) -> np.ndarray:
    """Return float32 numbers as they are after they have travelled."""
    if dtype == "bfloat16":  # to nearest even; there are no infinities here
        bits = values.view(np.uint32).astype(np.uint64)
        return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16 << 16).astype(np.uint32).view(np.float32)
    return values.astype(dtype).astype(np.float32)


class StraightLine:
    """Algorithm 1 of the LAGS-SGD paper for all ranks at once, written without any of the library.

    Gradients are lists by rank of lists by layer. Ties go to the lower index; what rounding takes stays; zeros are not
    sent. With a momentum: DGC's correction, and its masking.
    """

    def __init__(
        self, elements: Sequence[int], ratios: Sequence[float], wire: str, momentum: float | None, masking: bool
    ) -> None:
        self.elements, self.wire, self.momentum, self.masking = elements, wire, momentum, masking
        self.k = [min(n, math.ceil(n / ratio)) for n, ratio in zip(elements, ratios, strict=True)]
        self.residuals = [[np.zeros(n, np.float32) for n in elements] for _ in range(SIZE)]
        self.velocities = [[np.zeros(n, np.float32) for n in elements] for _ in range(SIZE)]

    def iterate(self, gradients: Sequence[Sequence[np.ndarray]], dense: Sequence[bool]) -> list[np.ndarray]:
        """Return the means, by layer."""
        self.acc: list[list[np.ndarray]] = [[] for _ in range(SIZE)]
        self.sent: list[list[np.ndarray]] = [[] for _ in range(SIZE)]
        for rank in range(SIZE):
            for layer in range(len(self.elements)):
                self._select(rank, layer, gradients[rank][layer], dense[layer])
        means = []
        for layer, n in enumerate(self.elements):
            total = np.zeros(n, np.float32)
            for rank in range(SIZE):
                total += self.sent[rank][layer]
            means.append(total * np.float32(1 / SIZE))
        self.union = [
            int(np.any([self.sent[rank][layer] != 0 for rank in range(SIZE)], axis=0).sum())
            for layer in range(len(self.elements))
        ]
        return means

    def _select(self, rank: int, layer: int, gradient: np.ndarray, dense: bool) -> None:
        velocity, residual = self.velocities[rank], self.residuals[rank]
        if self.momentum is not None:
            velocity[layer] = np.float32(self.momentum) * velocity[layer] + gradient
            gradient = velocity[layer]
        acc = gradient + residual[layer]
        sent = np.zeros_like(acc)
        if dense:
            sent[:] = acc
        else:
            order = sorted(range(len(acc)), key=lambda i: (-abs(acc[i]), i))[: self.k[layer]]
            chosen = sorted(i for i in order if acc[i] != 0)
            sent[chosen] = rounded(acc[chosen], self.wire)
        residual[layer] = acc - sent
        if self.masking:
            velocity[layer] = np.where(sent != 0, np.float32(0), velocity[layer])
            if dense:
                velocity[layer][:] = 0
        self.acc[rank].append(acc)
        self.sent[rank].append(sent)


def item(pool: gf.TopKGradientPool) -> int:
    return 4 if pool.dtype == "float32" else 2


def draw(pool: gf.TopKGradientPool, seed: Sequence[int], largest: int = 9) -> list[list[np.ndarray]]:
    """Draw flat gradients of all ranks, by tensor: small whole numbers with many ties, multiples of their number."""
    return [
        [(SIZE * random.integers(-largest, largest + 1, math.prod(shape))).astype(np.float32) for shape in pool.shapes]
        for random in (np.random.default_rng([*seed, rank]) for rank in range(SIZE))
    ]


def flat(pool: gf.TopKGradientPool) -> list[np.ndarray]:
    """Return all gradients in memory as float32, by tensor."""
    memory = pool.memory.view(np.uint16 if item(pool) == 2 else np.uint32)
    parts = [
        np.array(memory[offset // item(pool) :][: math.prod(shape)])
        for offset, shape in zip(pool.offsets, pool.shapes, strict=True)
    ]
    if pool.dtype == "bfloat16":
        return [(part.astype(np.uint32) << 16).view(np.float32) for part in parts]
    return [part.view(pool.dtype).astype(np.float32) for part in parts]


def write(pool: gf.TopKGradientPool, gradients: Sequence[np.ndarray]) -> None:
    memory = pool.memory.view(np.uint16 if item(pool) == 2 else np.float32)
    for offset, gradient in zip(pool.offsets, gradients, strict=True):
        values: Any = gradient
        if pool.dtype == "bfloat16":
            values = (np.ascontiguousarray(gradient).view(np.uint32) >> 16).astype(np.uint16)
        elif pool.dtype == "float16":
            values = gradient.astype(np.float16).view(np.uint16)
        memory[offset // item(pool) :][: gradient.size] = values


def by_layer(layers: Sequence[int], tensors: Sequence[np.ndarray]) -> list[np.ndarray]:
    joined, first = [], 0
    for number in layers:
        joined.append(np.concatenate([each.ravel() for each in tensors[first : first + number]]))
        first += number
    return joined


def same(a: np.ndarray, b: np.ndarray) -> bool:
    """Tell whether numbers are the same, bit by bit but for the sign of zeros."""
    return bool(np.array_equal(a, b))


CASES: list[dict[str, Any]] = [
    {"ratios": [5, 2, 1, 3], "shapes": LARGE, "algorithm": "mpi"},
    {"ratios": [7, 1, 30, 4], "shapes": LARGE, "algorithm": "ring", "merge_bytes": 100},
    {"ratios": 4},
    {"ratios": 1000, "merge_bytes": 0},
    {"ratios": [2, 1, 3, 1, 1.5, 60, 9], "wire": "float16"},
    {"ratios": 5, "wire": "bfloat16", "layers": [2, 1, 4], "merge_bytes": 64},
    {"ratios": 3, "momentum": 0.5, "layers": [7]},
    {"ratios": 6, "momentum": 0.25, "masking": False, "overlap": False},
    {"ratios": [8, 1000, 1, 1, 4, 10, 1], "dtype": "float16"},
    {"ratios": 7, "dtype": "bfloat16"},
    {"ratios": [1, 1, 40, 1.2], "shapes": LARGE},
    {"ratios": [10, 2, 1, 3], "shapes": LARGE, "momentum": 0.5, "merge_bytes": 0},
    {"ratios": 1, "shapes": LARGE, "momentum": 0.5, "masking": False},
]


@on_ranks(1, 2, 3)
def check_straight_line(comm: gf.Communicator) -> None:
    """Everything after every step, bit by bit: means, residuals, velocities, what was sent, numbers along."""
    for case, options in enumerate(CASES):
        given = dict(options)
        shapes, dtype = given.pop("shapes", SHAPES), given.pop("dtype", "float32")
        pool = gf.TopKGradientPool(comm, shapes, dtype, selection="exact", extra=2, **given)
        layers = given.get("layers", [1] * len(shapes))
        elements = [part.size for part in by_layer(layers, flat(pool))]
        wire = given.get("wire", "bfloat16" if dtype == "bfloat16" else "float32")
        reference = StraightLine(elements, pool.ratios, wire, given.get("momentum"), given.get("masking", True))
        for step in range(4):
            gradients = draw(pool, [case, step], 3 if item(pool) == 2 else 9)
            missing = step == 1  # the tensors of odd numbers, on odd ranks; they count as zeros
            for rank in range(1, SIZE, 2):
                for tensor in range(1, len(shapes), 2) if missing else ():
                    gradients[rank][tensor][:] = 0
            write(pool, gradients[RANK])
            pool.extra[:] = RANK, step
            order = np.random.default_rng([step, RANK]).permutation(len(shapes) + 1).tolist()
            for tensor in order:
                if not (missing and RANK % 2 and tensor % 2 and tensor < len(shapes)):
                    pool.ready(tensor)
            pool.wait()
            dense = [report.dense for report in pool.layer_selections]
            means = reference.iterate([by_layer(layers, of_rank) for of_rank in gradients], dense)
            where = (options, step)
            for layer, mean in enumerate(by_layer(layers, flat(pool))):
                assert same(mean, rounded(means[layer], dtype)), (*where, layer)
            for layer, residual in enumerate(by_layer(layers, pool.residuals)):
                assert same(residual, reference.residuals[RANK][layer]), (*where, layer)
                acc = reference.acc[RANK][layer]
                assert same(reference.sent[RANK][layer] + residual, acc), (*where, layer)
            if "momentum" in given:
                for layer, velocity in enumerate(by_layer(layers, pool.velocities)):
                    assert same(velocity, reference.velocities[RANK][layer]), (*where, layer)
            else:
                assert pool.velocities == ()
            for layer, report in enumerate(pool.layer_selections):
                assert (report.elements, report.k) == (elements[layer], reference.k[layer]), (*where, report)
                if not report.dense:
                    assert report.sent == np.count_nonzero(reference.sent[RANK][layer]), (*where, report)
                    assert report.union == reference.union[layer], (*where, report)
                    nonzero = np.abs(reference.sent[RANK][layer][reference.sent[RANK][layer] != 0])
                    assert wire != "float32" or report.threshold == (nonzero.min() if nonzero.size else 0)
            assert pool.extra.tolist() == [(SIZE - 1) / 2, step]
            assert pool.iteration == step + 1
            assert len(pool.reports) == pool.layer_selections[-1].message + 1 + dense[-1]
            pool.zero()
            assert not pool.memory.any()
        pool.close()


def check_dense_where_that_takes_fewer_bytes(comm: gf.Communicator) -> None:
    """By numbers that all ranks share; and small layers never, which go along with others."""
    pool = gf.TopKGradientPool(comm, [30_000, 10, 30_000, 30_000], ratios=[1000, 1, 1, 2.5])
    pool.ready()
    pool.wait()
    dense = [report.dense for report in pool.layer_selections]
    assert dense[:3] == [False, False, True]
    assert dense[3] == (SIZE > 4)  # 1.725 bytes an element for each rank, against 8
    assert [report.message for report in pool.layer_selections][:3] == [0, 0, 1]
    assert pool.layer_selections[2].union == 30_000


def own_sums(pool: gf.TopKGradientPool) -> np.ndarray:
    return np.concatenate([each.ravel() for each in pool.residuals])


@on_ranks(1, 3)
def check_nothing_is_lost(comm: gf.Communicator) -> None:
    """Whatever the selection, what was sent and the residual are what was put in: exactly, with one rank that sends."""
    for selection in ("sampled", "exact", "random"):
        for case, wire in enumerate(("float32", "float16", "bfloat16")):
            pool = gf.TopKGradientPool(
                comm, [5000, 3, 20_000], ratios=[10, 2, 100], selection=selection, wire=wire, threshold_reuse=2
            )
            put_in = [np.zeros(math.prod(shape)) for shape in pool.shapes]
            sent = [np.zeros(math.prod(shape)) for shape in pool.shapes]
            for step in range(7):
                sender = step % SIZE
                gradients = draw(pool, [case, step], 900)[sender]
                write(pool, gradients if sender == RANK else [np.zeros_like(each) for each in gradients])
                pool.ready()
                pool.wait()
                for tensor, mean in enumerate(flat(pool)):
                    put_in[tensor] += gradients[tensor]
                    sent[tensor] += np.round(SIZE * mean.astype(np.float64))  # whole numbers
                for report in pool.layer_selections:
                    assert report.sent <= report.k
                    assert report.union <= SIZE * report.k
                    if sender == RANK and selection != "random":
                        assert report.sent > 0.8 * min(report.k, report.elements * 0.9)
                pool.zero()
            for tensor, residual in enumerate(pool.residuals):
                kept = comm.allreduce(residual.astype(np.float64), "sum")
                assert same(sent[tensor] + kept, put_in[tensor]), (selection, wire, tensor)
            pool.close()


def check_random_entries_are_the_same_on_all_ranks(comm: gf.Communicator) -> None:
    pools = [gf.TopKGradientPool(comm, [(40, 50)], ratios=10, selection="random", seed=seed) for seed in (3, 3, 4)]
    drawn: list[list[bytes]] = []
    for pool in pools:
        drawn.append([])
        for _ in range(3):
            pool.views[0][...] = RANK + 1
            pool.ready()
            pool.wait()
            (report,) = pool.layer_selections
            assert (report.k, report.sent, report.union) == (200, 200, 200)
            drawn[-1].append((pool.views[0] != 0).tobytes())
            pool.zero()
    assert drawn[0] == drawn[1]
    assert len({*drawn[0], *drawn[2]}) == 6


def check_sampled_on_all_ranks_gives_the_same_bits(comm: gf.Communicator) -> None:
    """On all ranks, in a second run, and with messages of any size."""
    digests = []
    for merge_bytes in ("auto", 0, "1KiB", "auto"):
        pool = gf.TopKGradientPool(comm, [40_000, 7, 300, 90_000], ratios=100, merge_bytes=merge_bytes)
        digest = hashlib.sha256()
        for step in range(5):
            random = np.random.default_rng([step, RANK])
            for view in pool.views:
                view[...] = random.standard_normal(view.shape, np.float32)
            pool.ready()
            pool.wait()
            digest.update(pool.memory.tobytes())
            pool.zero()
        digests.append(digest.digest())
        everybody = comm.allgather(np.frombuffer(digests[-1], np.uint8))
        assert (everybody == everybody[0]).all()
        pool.close()
    assert len(set(digests)) == 1


def check_threads(comm: gf.Communicator) -> None:
    """Tensors become ready in several threads at once."""
    pool = gf.TopKGradientPool(comm, [50] * 40, ratios=10, layers=[1, 3] * 10, selection="exact", merge_bytes=100)
    reference = StraightLine([50, 150] * 10, pool.ratios, "float32", None, True)
    for step in range(6):
        gradients = draw(pool, [step, 7], 64)
        write(pool, gradients[RANK])
        in_threads(lambda first: [pool.ready(i) for i in range(first, 40, 4)], range(4))
        pool.wait()
        means = reference.iterate([by_layer([1, 3] * 10, each) for each in gradients], [False] * 20)
        assert same(np.concatenate(flat(pool)), np.concatenate(means))


def check_ratios_change(comm: gf.Communicator) -> None:
    """Between iterations, to more and to less, dense and back; what is kept goes along."""
    pool = gf.TopKGradientPool(comm, LARGE, ratios=100, selection="exact", momentum=0.5, threshold_reuse=3)
    elements = [math.prod(shape) for shape in LARGE]
    reference = StraightLine(elements, pool.ratios, "float32", 0.5, True)
    for step, ratios in enumerate((100, [1, 5, 2.5, 1000], 1, [1000, 1, 1, 10], [3, 3, 3, 3], 100)):
        pool.ratios = ratios  # type: ignore[assignment]
        assert pool.ratios == (tuple(map(float, ratios)) if isinstance(ratios, list) else (float(ratios),) * 4)
        reference.k = [min(n, math.ceil(n / ratio)) for n, ratio in zip(elements, pool.ratios, strict=True)]
        gradients = draw(pool, [step, 5])
        write(pool, gradients[RANK])
        for tensor in (2, 0, 3, 1):
            pool.ready(tensor)
        pool.wait()
        means = reference.iterate(gradients, [report.dense for report in pool.layer_selections])
        for layer, mean in enumerate(flat(pool)):
            assert same(mean, means[layer]), (step, layer)
            assert same(pool.residuals[layer].ravel(), reference.residuals[RANK][layer]), (step, layer)
        pool.zero()
    for wrong, message in (([1, 2], "4 layers, or one for all, not 2"), (0.5, "1 or more, not 0.5")):
        with raises(ArgumentError, message):
            pool.ratios = wrong  # type: ignore[assignment]
    with raises(ArgumentError, "1 or more, not inf"):
        pool.ratios = math.inf  # type: ignore[assignment]
    with raises(ArgumentTypeError, "ratios is a number"):
        pool.ratios = ["many"] * 4  # type: ignore[list-item,assignment]
    assert pool.ratios == (100.0,) * 4
    pool.ready(0)
    with raises(ArgumentError, "between iterations"):
        pool.ratios = 5  # type: ignore[assignment]
    pool.rollback()


def check_settings_that_differ(comm: gf.Communicator) -> None:
    """Of ranks: told on all of them, with what differs; nothing is changed, and the next iteration works."""
    if SIZE == 1:
        return
    last = RANK == SIZE - 1
    with raises(MismatchError, f"rank {SIZE - 1}: ", "momentum 0.5"):
        gf.TopKGradientPool(comm, [64], momentum=0.5 if last else None)
    with raises(MismatchError, "seed 1", "seed 2"):
        gf.TopKGradientPool(comm, [64], seed=2 if last else 1)
    for overlap in (True, False):
        pool = gf.TopKGradientPool(comm, [64, 4000, 30], ratios=[8, 100, 2], selection="exact", overlap=overlap)
        for _ in range(2):
            for view in pool.views:
                view[...] = np.arange(view.size) + RANK
            pool.ready()
            pool.wait()
        residuals = own_sums(pool)
        different: list[tuple[Any, str]] = [([8, 50, 2], "ratio 50 of layer 1"), ([8, 1, 4], "ratio 1 of layer 1")]
        for ratios, found in different:
            pool.ratios = ratios if last else [8, 100, 2]
            for view in pool.views:
                view[...] = 1
            pool.ready(0)
            pool.ready(2)
            pool.ready(1)
            with raises(MismatchError, "ratio 100 of layer 1", f"rank {SIZE - 1}: {found}"):
                pool.wait()
            assert not pool.memory.any()
            assert same(own_sums(pool), residuals)
            assert pool.layer_selections == ()
        pool.ratios = [8, 100, 2]  # type: ignore[assignment]
        pool.loss_scale = 4.0 if last else 2.0
        pool.ready()
        with raises(MismatchError, "loss scale 2", f"rank {SIZE - 1}: the same ratios, loss scale 4"):
            pool.wait()
        assert same(own_sums(pool), residuals)
        pool.loss_scale = 2.0
        pool.ready()
        pool.wait()
        assert pool.iteration == 6
        pool.close()


@on_ranks(1, 3)
def check_not_finite(comm: gf.Communicator) -> None:
    """An infinite or NaN gradient is told on all ranks, with rank and tensor, and changes nothing."""
    culprit = SIZE - 1
    for bad, options in (
        (np.nan, {"ratios": 4}),
        (np.inf, {"ratios": 4, "layers": [2, 5], "momentum": 0.5}),
        (-np.inf, {"ratios": 1, "overlap": False, "merge_bytes": 0}),
        (np.nan, {"ratios": 1, "shapes": [(9,), (1,), (3000,), (5,), (4000,)]}),
    ):
        given: dict[str, Any] = dict(options)
        pool = gf.TopKGradientPool(comm, given.pop("shapes", SHAPES), selection="exact", **given)
        for step in range(5):
            write(pool, draw(pool, [step])[RANK])
            before = [*pool.residuals, *pool.velocities]
            pool.skip_nonfinite = step == 3
            is_bad = step in (0, 2, 3)
            if is_bad and culprit == RANK:
                pool.views[4].reshape(-1)[11] = bad
            pool.ready()
            if not is_bad or step == 3:
                pool.wait()
            else:
                with raises(NonFiniteError, f"tensor 4 is not finite on rank {culprit}"):
                    pool.wait()
                assert pool.nonfinite_tensors == (culprit, range(4, 5))
            assert pool.overflowed == is_bad
            assert pool.has_nonfinite() == is_bad
            assert pool.spans.tolist() == ([] if is_bad else [[0, pool.nbytes // 4]])
            if is_bad:
                assert not pool.memory.any()
                after = [*pool.residuals, *pool.velocities]
                assert all(same(a, b) for a, b in zip(before, after, strict=True))
                pool.rollback()
                assert all(same(a, b) for a, b in zip(before, pool.residuals, strict=False))
            pool.zero()
        pool.close()
    with raises(ArgumentError, "power of two"):
        pool.loss_scale = 3.0


@on_ranks(1, 2, 3)
def check_what_is_beyond_float16(comm: gf.Communicator) -> None:
    """It stays in the residual, also of layers that are averaged as they are; an infinite gradient does not."""
    rounding = 2e-3 if SIZE & (SIZE - 1) else 0.0  # of parts of a mean
    for dtype, wire in (("float16", None), ("float16", "float16"), ("float32", "float16")):
        for ratio in (1, 8):
            pool = gf.TopKGradientPool(comm, [4000], dtype, ratios=4000, selection="exact", wire=wire)
            scale = pool.loss_scale = 4.0 if dtype == "float16" else 1.0
            write(pool, [np.full(4000, -60_000, np.float32)])
            pool.ready()
            pool.wait()
            pool.zero()
            pool.ratios = ratio  # type: ignore[assignment]
            for step in range(3):
                kept = pool.residuals[0].astype(np.float64) * scale
                gradient = -20_000.0 * (step < 2)
                write(pool, [np.full(4000, gradient, np.float32)])
                pool.ready()
                pool.wait()
                (mean,), (report,) = flat(pool), pool.layer_selections
                assert report.dense == (ratio == 1)
                most = max(-61440 if report.dense else -65504, gradient + kept.min())
                assert np.allclose(mean.min(), most, rounding), (dtype, wire, ratio, step)
                assert np.allclose(mean + pool.residuals[0] * scale, gradient + kept, rounding, 0), (wire, ratio, step)
                pool.zero()
            before = own_sums(pool)
            write(pool, [np.full(4000, np.inf, np.float32)])
            pool.ready()
            with raises(NonFiniteError, "tensor 0 is not finite on rank 0"):
                pool.wait()
            assert same(own_sums(pool), before)
            pool.close()


@on_ranks(1, 2, 3)
def check_loss_scale(comm: gf.Communicator) -> None:
    """Scaled gradients come back scaled; residuals are not."""
    runs = []
    for scale, dtype in ((1.0, "float32"), (1024.0, "float32"), (64.0, "float16")):
        pool = gf.TopKGradientPool(comm, [100, 30], dtype, ratios=6, selection="exact")
        pool.loss_scale = scale
        assert pool.loss_scale == scale
        run = []
        for step in range(5):
            gradients = draw(pool, [step, 8], 4)
            write(pool, [each * np.float32(scale) for each in gradients[RANK]])
            pool.ready()
            pool.wait()
            run += [each / np.float32(scale) for each in flat(pool)]
            run += [each.copy() for each in pool.residuals]
            pool.zero()
        runs.append(np.concatenate(run))
    assert same(runs[0], runs[1])
    if SIZE & (SIZE - 1) == 0:
        assert same(runs[0], runs[2])


def check_clipping(comm: gf.Communicator) -> None:
    """By layer, to clip * sqrt(ranks); what is shorter stays as it is. The mean of independent ones has norm clip."""
    for ratio in (4, 1):
        pool = gf.TopKGradientPool(comm, [2000, 2000], ratios=ratio, selection="exact", clip=8.0)
        limit = 8.0 * math.sqrt(SIZE)
        pool.loss_scale = 2.0
        pool.views[0][...] = 2.0 * 1000.0
        pool.views[1][...] = 2.0 * limit / 1000
        pool.ready()
        pool.wait()
        clipped, short = flat(pool)
        assert np.allclose(clipped[:500], 2.0 * limit / math.sqrt(2000), rtol=1e-5)
        assert np.allclose(short[:500], 2.0 * limit / 1000, rtol=1e-6)
        if ratio == 4:
            assert np.allclose(pool.residuals[0][500:], limit / math.sqrt(2000), rtol=1e-5)
    pool = gf.TopKGradientPool(comm, [20000], ratios=1, clip=8.0)
    pool.views[0][...] = 100 * np.random.default_rng(RANK).standard_normal(20000)
    pool.ready()
    pool.wait()
    assert abs(float(np.linalg.norm(pool.views[0])) - 8.0) < 0.4
    with raises(ArgumentError, "above 0, not -1"):
        gf.TopKGradientPool(comm, [8], clip=-1.0)


def check_rolling_back(comm: gf.Communicator) -> None:
    """An iteration that is rolled back, under way or at its end, is as if it had not been."""
    results = []
    for rolls_back in (False, True):
        pool = gf.TopKGradientPool(comm, LARGE, ratios=[20, 3, 1, 4], selection="exact", momentum=0.5)
        pool.rollback()  # there is nothing yet
        for step in range(5):
            if rolls_back and step in (0, 3):
                write(pool, draw(pool, [step, 77])[RANK])
                pool.ready()
                pool.wait()
                pool.rollback()
                assert not pool.memory.any()
                pool.rollback()
            if rolls_back and step in (0, 2):
                write(pool, draw(pool, [step, 78])[RANK])
                pool.ready(3)
                pool.rollback()
                assert not pool.memory.any()
                pool.rollback()
            write(pool, draw(pool, [step, 6])[RANK])
            pool.ready()
            pool.wait()
            results.append(np.concatenate([*flat(pool), own_sums(pool)]))
            pool.zero()
            pool.rollback()  # a step has used it
            assert same(own_sums(pool), results[-1][-len(own_sums(pool)) :])
    assert all(same(a, b) for a, b in zip(results[:5], results[5:], strict=True))


@on_ranks(1, 3)
def check_abandon(comm: gf.Communicator) -> None:
    """A rank gives up: it keeps what it had, the others get nothing of what was not complete, and all go on alike."""
    pool = gf.TopKGradientPool(comm, [16, 16, 3000], ratios=[4, 4, 1], selection="exact", momentum=0.5, extra=1)
    pool.rollback()  # nothing has begun
    assert pool.iteration == 0
    for view in pool.views:
        view[...] = 1
    pool.ready()
    pool.wait()
    pool.zero()
    before = [*pool.residuals, *pool.velocities]
    for view in pool.views:
        view[...] = 4
    gives_up = RANK == SIZE - 1
    pool.ready(0)
    pool.extra[:] = 6
    if gives_up:
        pool.ready(2)
        pool.rollback()
        assert not pool.memory.any()
        after = [*pool.residuals, *pool.velocities]
        assert all(same(a, b) for a, b in zip(before, after, strict=True))
        with raises(ArgumentError, "averaged"):
            pool.update()
    else:
        pool.ready()
        pool.wait()
        assert np.allclose(pool.views[0][4:8], 4 + 1 + 0.5)
        assert np.allclose(pool.views[1][4:8], (4 + 1 + 0.5) * (SIZE - 1) / SIZE)
        assert np.allclose(pool.views[2], 4)
        assert pool.extra[0] == 6 * (SIZE - 1) / SIZE
    pool.zero()
    if RANK == 0 and SIZE > 1:
        pool.views[1][0] = np.nan  # of which who gives up hears nothing
        pool.ready()
        with raises(NonFiniteError, "tensor 1"):
            pool.wait()
    elif SIZE > 1:
        pool.ready(1)
        pool.rollback()
    pool.ready()
    pool.wait()
    assert pool.iteration == 3 + (SIZE > 1)


@on_ranks(1, 3)
def check_nothing_ready(comm: gf.Communicator) -> None:
    """Told where nothing is ready on any rank; zeros for the others where it is so on some."""
    for overlap in (True, False):
        pool = gf.TopKGradientPool(comm, SHAPES, ratios=4, overlap=overlap)
        with raises(ArgumentError, "no rank made a tensor"):
            pool.wait()
        for view in pool.views:
            view[...] = SIZE
        if RANK == 0:
            pool.ready()
        pool.wait()
        assert {float(each) for each in np.concatenate(flat(pool))} == {0.0, 1.0}
        pool.views[0][...] = 1
        pool.ready(0)
        with raises(ArgumentError, "already ready"):
            pool.ready(0)
        with raises(ArgumentError, "which has 7"):
            pool.ready(7)
        assert pool.is_ready(0)
        assert not pool.is_ready(1)
        assert pool.ready_count == 1
        with raises(ArgumentError, "between iterations"):
            pool.zero()
        pool.wait()
    empty = gf.TopKGradientPool(comm, [])
    empty.wait()
    nothing = gf.TopKGradientPool(comm, [0, (3, 0)])
    nothing.ready()
    nothing.wait()
    assert [report.k for report in nothing.layer_selections] == [0, 0]


def check_timeout(comm: gf.Communicator) -> None:
    """A wait that ends too early can be repeated; the others do not notice."""
    pool = gf.TopKGradientPool(comm, SHAPES, ratios=4, selection="exact", merge_bytes=0)
    reference = StraightLine([math.prod(shape) for shape in pool.shapes], pool.ratios, "float32", None, True)
    for step in range(3):
        gradients = draw(pool, [step, 3])
        write(pool, gradients[RANK])
        if RANK == 0 and SIZE > 1:
            pool.ready()
            with raises(CommunicationTimeoutError, "it goes on"):
                pool.wait(0.01)
            with raises(ArgumentError, "already ready"):
                pool.ready(0)
            WORLD.Barrier()
            pool.wait(30)
        else:
            WORLD.Barrier()
            pool.ready()
            pool.wait()
        means = reference.iterate(gradients, [False] * len(SHAPES))
        assert same(np.concatenate(flat(pool)), np.concatenate(means))
    with raises(ArgumentError, "not a number"):
        pool.wait(math.nan)


@on_ranks(1, 3)
def check_state(comm: gf.Communicator) -> None:
    """A run that is saved and loaded goes on as one that is not; the mean of what is kept is the same on any ranks."""
    for options in ({}, {"momentum": 0.5, "threshold_reuse": 2}, {"selection": "random", "seed": 5}):
        given: Mapping[str, Any] = options

        def train(pool: gf.TopKGradientPool, steps: range) -> list[np.ndarray]:
            results = []
            for step in steps:
                random = np.random.default_rng([step, RANK])
                for view in pool.views:
                    view[...] = random.standard_normal(view.shape, np.float32)
                pool.ready()
                pool.wait()
                results += flat(pool)
                pool.zero()
            return [*results, *pool.residuals, *pool.velocities]

        shapes = [(30, 400), (5,), (0,), (9000,)]
        pool = gf.TopKGradientPool(comm, shapes, ratios=100, **given)
        train(pool, range(4))
        saved, consolidated = pool.state_dict(), pool.consolidated_state_dict()
        expected = train(pool, range(4, 8))
        other = gf.TopKGradientPool(comm, shapes, ratios=100, **given)
        other.check_state_dict(saved)
        other.load_state_dict(saved)
        assert other.iteration == 4
        assert all(same(a, b) for a, b in zip(expected, train(other, range(4, 8)), strict=True))
        third = gf.TopKGradientPool(comm, shapes, ratios=50, **given)
        third.load_state_dict(consolidated)
        for name in ("residuals", "velocities")[: 1 + ("momentum" in given)]:
            assert all(
                same(a, b / np.float32(SIZE)) for a, b in zip(getattr(third, name), consolidated[name], strict=True)
            )
        if SIZE > 1:
            alone = comm.split(RANK, 0)
            single = gf.TopKGradientPool(alone, shapes, ratios=100, **given)
            single.load_state_dict(consolidated)
            assert all(same(a, b) for a, b in zip(single.residuals, third.residuals, strict=True))
            with raises(ArgumentError, "ranks is 1 or more"):
                single.load_state_dict({**consolidated, "ranks": 0})
            with raises(ArgumentError, "consolidated_state_dict"):
                single.load_state_dict(saved)
            with raises(MismatchError, "states of top-k gradient pools"):
                other.load_state_dict({**saved, "iteration": 4 + (RANK == 0)})
            before = own_sums(other)
            bad = [each + np.float32(np.inf) for each in saved["residuals"]]
            with raises(ArgumentError if RANK == 0 else MismatchError, "not finite in float32"):
                other.load_state_dict({**saved, "residuals": bad} if RANK == 0 else saved)
            assert same(before, own_sums(other))
        stranger = gf.TopKGradientPool(comm, [5, 6], **given)
        with raises(ArgumentError, "another model"):
            stranger.load_state_dict(saved)
        with raises(ArgumentError, "not the state of a top-k gradient pool"):
            stranger.load_state_dict({"residuals": []})
        with raises(ArgumentError, "thresholds is a row"):
            other.load_state_dict({**saved, "thresholds": [-1.0]})
        other.set_residuals([np.full(shape, 2.0) for shape in shapes])
        assert all((residual == 2).all() for residual in other.residuals)
        pool.ready(0)
        with raises(ArgumentError, "between iterations"):
            pool.load_state_dict(saved)
        pool.wait()


def check_steps(comm: gf.Communicator) -> None:
    """An optimizer takes all of the gradients, with zeros where nothing was sent."""
    pool = gf.TopKGradientPool(comm, [40], ratios=4, selection="exact")
    weights = [np.zeros(40, np.float32)]
    optimizer = gf.optimizers.SGD(pool, weights, lr=1.0, momentum=0.5)
    pool.views[0][...] = np.where(np.arange(40) < 10, 2, 1)
    with raises(ArgumentError, "averaged"):
        optimizer.step()
    pool.ready()
    pool.wait()
    assert pool.spans.tolist() == [[0, pool.nbytes // 4]]
    assert pool.has_gradient(0)
    optimizer.step()
    pool.zero()
    pool.ready()
    pool.wait()
    optimizer.step()
    assert weights[0].tolist() == [-3.0] * 10 + [-1.0] * 10 + [0.0] * 20  # the momentum of what was sent goes on


def check_rounding_of_dense_layers_stays(comm: gf.Communicator) -> None:
    """Where residuals that are finer than 16 bits are sent with all of a layer."""
    for dtype in ("float16", "bfloat16"):
        pool = gf.TopKGradientPool(comm, [(3000,), (2500,)], dtype, 1000)
        pool.loss_scale = 4.0
        for step in range(6):
            pool.ratios = 1000.0 if step < 3 else 1.0
            gradients = [
                rounded(random.standard_normal(math.prod(shape)).astype(np.float32), dtype)
                for random, shape in zip(np.random.default_rng([RANK, step]).spawn(2), pool.shapes, strict=True)
            ]
            write(pool, gradients)
            acc = [each + gradient / np.float32(4) for each, gradient in zip(pool.residuals, gradients, strict=True)]
            pool.ready()
            pool.wait()
            if step >= 3:
                assert all(report.dense for report in pool.layer_selections)
                for wanted, residual in zip(acc, pool.residuals, strict=True):
                    assert same(residual, wanted - rounded(4 * wanted, dtype) / np.float32(4)), (dtype, step)
                    assert residual.any()
        pool.close()


def check_bad_input(comm: gf.Communicator) -> None:
    bad: list[tuple[dict[str, Any], type[Exception], str]] = [
        ({"ratios": 0}, ArgumentError, "1 or more, not 0"),
        ({"ratios": [2, 2]}, ArgumentError, "1 layers, or one for all, not 2"),
        ({"ratios": "high"}, ArgumentTypeError, "ratios is a number"),
        ({"layers": [2]}, ArgumentError, "add up to the 1 tensors"),
        ({"layers": [0, 1]}, ArgumentError, "layers is 1 or more"),
        ({"layers": 3}, ArgumentTypeError, "layers is a sequence"),
        ({"selection": "best"}, ArgumentError, "selection is 'exact', 'sampled' or 'random', not 'best'"),
        ({"selection": 3}, ArgumentTypeError, "selection is"),
        ({"momentum": 1.0}, ArgumentError, "0 to below 1, not 1"),
        ({"momentum": "a"}, ArgumentTypeError, "momentum is a number"),
        ({"clip": 0}, ArgumentError, "above 0, not 0"),
        ({"wire": "float64"}, ArgumentError, "wire is one of float32, float16, bfloat16, float8_e4m3, not 'float64'"),
        ({"wire": "float8_e4m3"}, ArgumentError, "a top-k gradient pool sends values one by one"),
        ({"merge_bytes": -1}, ArgumentError, "merge_bytes is a whole number"),
        ({"threshold_reuse": -1}, ArgumentError, "threshold_reuse is 0 or more"),
        ({"seed": -1}, ArgumentError, "seed is 0 or more"),
        ({"extra": 1.5}, ArgumentTypeError, "extra is a whole number"),
        ({"algorithm": "fast"}, ArgumentError, "fast"),
        ({"algorithm": "nccl"}, ArgumentError, "'nccl' serves tensors on CUDA devices"),
        ({"dtype": "float64"}, ArgumentTypeError, "float16, bfloat16 and float32, not float64"),
    ]
    for options, kind, message in bad:
        with raises(kind, message):
            gf.TopKGradientPool(comm, [8], **options)
    with raises(ArgumentError, "fewer than 2^32 elements, not 4294967296 as layer 1"):
        gf.TopKGradientPool(comm, [8, 2**32], "float16")
    pool = gf.TopKGradientPool(comm, [8], ratios=2)
    pool.close()
    assert pool.closed
    with raises(ClosedError, "closed"):
        pool.ready(0)
    with raises(ClosedError, "closed"):
        pool.wait()


run_checks([{}, {"inline_bytes": 0}, {"node_size": 1}], by_mpi=[check_straight_line])
