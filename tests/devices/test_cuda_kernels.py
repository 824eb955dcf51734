"""The twins of the compute kernels, on the CPU and on a CUDA device, against NumPy: the same test bodies for both.

Those for the device are skipped, with the reason, where there is none; that the library loads there all the same is a
test, too.
"""

from __future__ import annotations

import itertools
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pytest
from kernel_data import (
    CASTABLE,
    GUARD,
    LEVELS,
    LINE,
    PRIME,
    STORAGE,
    Array,
    Guarded,
    canonical_nan,
    check_same,
    compute,
    narrow,
    random_bits,
    sample,
    widen,
)
from kernel_references import (
    BLOCK,
    Layer,
    adam_stepped,
    add_up,
    cast,
    combined,
    corrected,
    dc_stepped,
    decoded,
    encoded,
    glu_stepped,
    largest,
    passing,
    reduced,
    replica_stepped,
    round_ended,
    sent_as,
    stepped,
)
from native import cuda

import gradientflow
from gradientflow import _core
from gradientflow._location import build_info

LEVEL = LEVELS[-1]  # others have tests of their own

# Around rows, blocks, and what a thread block of the device does at once.
LENGTHS = [0, 1, 3, 4, 7, 8, 63, 64, 65, 255, 256, 257, 1023, 2047, 2048, 2049, 4096, 8191, 8192, PRIME, 16384, 32768]

# ---- the two places --------------------------------------------------------------------------------------------------


class Memory(Protocol):
    """Elements somewhere, with guard bytes around them."""

    address: int

    @property
    def values(self) -> Array:
        """What they are now."""

    def check_guards(self) -> None:
        """Fails if a byte outside of the elements was written."""


class OnDevice:
    """As Guarded, in memory of the device."""

    def __init__(self, values: Array, offset: int = 0) -> None:
        """Copies values to memory that starts `offset` bytes after a cache line boundary."""
        self._values = values
        self._start = LINE + offset
        image = np.full(values.nbytes + 4 * LINE, GUARD, np.uint8)
        image[self._start : self._start + values.nbytes] = values.view(np.uint8)
        self._memory = cuda.Memory(image.nbytes)
        self._memory.write(image.tobytes())
        self.address: int = self._memory.address + self._start

    def _image(self) -> Array:
        return np.frombuffer(self._memory.read(), np.uint8)

    @property
    def values(self) -> Array:
        """What they are now."""
        return self._image()[self._start : self._start + self._values.nbytes].copy().view(self._values.dtype)

    def check_guards(self) -> None:
        """Fails if a byte outside of the elements was written."""
        image = self._image()
        assert (image[: self._start] == GUARD).all(), "wrote before the destination"
        assert (image[self._start + self._values.nbytes :] == GUARD).all(), "wrote past the destination"


class Processor:
    """The kernels of the CPU, call by call, under the names that those of the device have."""

    @staticmethod
    def sum_of_squares(calls: list[Any], dtype: str) -> list[float]:
        return [compute.sum_of_squares(LEVEL, source, dtype, *rest) for source, *rest in calls]

    def __getattr__(self, name: str) -> Callable[[list[Any], str], list[Any]]:
        """Give a kernel whose calls have the same fields as on the device."""
        return lambda calls, _: [getattr(compute, name)(LEVEL, *call) for call in calls]

    @staticmethod
    def reduce(*arguments: Any) -> None:
        compute.reduce(LEVEL, *arguments)

    @staticmethod
    def cast(*arguments: Any) -> None:
        compute.cast(LEVEL, *arguments)

    @staticmethod
    def count_nonfinite(*arguments: Any) -> int:
        return int(compute.count_nonfinite(LEVEL, *arguments))

    @staticmethod
    def select(call: tuple[Any, ...]) -> list[float]:
        return list(compute.select(LEVEL, call))

    @staticmethod
    def combine(*arguments: Any) -> list[float]:
        try:
            return [compute.combine(LEVEL, *arguments), 0]
        except ValueError as error:
            return [0, 1 + int(str(error).split()[1])]  # block 7 is not one ...


class Device:
    """The kernels of the device, each prepared and run at once."""

    def __getattr__(self, name: str) -> Callable[..., list[float]]:
        """Give a kernel."""
        return lambda *arguments, **options: getattr(cuda, name)(*arguments, **options).run()

    @staticmethod
    def count_nonfinite(*arguments: Any) -> int:
        (found,) = cuda.count_nonfinite(*arguments).run()
        return int(found)


@dataclass(frozen=True)
class Place:
    """Where the kernels run, and how elements get there."""

    kernels: Any
    memory: Callable[..., Memory]


@pytest.fixture(params=["cpu", "cuda", "emulated"])
def place(request: pytest.FixtureRequest) -> Place:
    """The CPU; a CUDA device; or, where there is none, one that is emulated."""
    return Place(Processor(), Guarded) if request.param == "cpu" else device(request)


@pytest.fixture(params=["cuda", "emulated"])
def device_place(request: pytest.FixtureRequest) -> Place:
    """Without the CPU."""
    return device(request)


def device(request: pytest.FixtureRequest) -> Place:
    cuda_devices: int = request.getfixturevalue("cuda_devices")
    if request.param == "cuda" and cuda_devices == 0:
        pytest.skip("no CUDA device")
    if request.param == "emulated":
        if cuda_devices > 0:
            pytest.skip("there is a CUDA device")
        os.environ["GRADIENTFLOW_CUDA_LIBRARY"] = str(request.getfixturevalue("emulated_cuda"))
    assert _core.device.count() > 0
    return Place(Device(), OnDevice)


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """NumPy does not warn of the awkward values that are meant to be there."""
    with np.errstate(all="ignore"):
        yield


# ---- chunks ----------------------------------------------------------------------------------------------------------


def ordinary(dtype: str, count: int, rng: np.random.Generator) -> Array:
    return narrow(rng.normal(0, 1, count).astype(np.float32), dtype)


def arrays(dtype: str, seed: int) -> Iterator[tuple[Array, Array, float, tuple[int, int, int]]]:
    """A gradient, its residual, a scale, and byte offsets for three arrays: aligned, or at any element."""
    rng = np.random.default_rng(seed)
    makers = ordinary, sample, random_bits
    for i, length in enumerate(LENGTHS):
        make = makers[(i + seed) % 3]
        size = np.dtype(STORAGE[dtype]).itemsize
        offsets = [0, 0, 0] if i % 2 else [int(n) for n in rng.integers(0, 16, 3)]
        scale = [1.0, 2.0**-10, 8.0][i // 3 % 3]
        places = offsets[0] * size, offsets[1] * 4, offsets[2] * size
        yield make(dtype, length, rng), make("float32", length, rng), scale, places


def check_sums(found: list[float], expected: list[float]) -> None:
    """Fails unless they have the same bits."""
    check_same(np.array(found, np.float64), canonical_nan(np.array(expected, np.float64)))


def at(memory: Memory | None) -> int:
    return 0 if memory is None else memory.address


@pytest.mark.parametrize("dtype", CASTABLE)
def test_the_residuals_of_a_list_of_chunks_are_updated(place: Place, dtype: str) -> None:
    """The residuals before and after may be missing, in some calls of a list."""
    calls, norms, results = [], [], []
    for i, (gradient, residual, scale, offsets) in enumerate(arrays(dtype, 1)):
        source = place.memory(gradient, offsets[0])
        before = place.memory(residual, offsets[1]) if i % 5 else None
        after = place.memory(np.ones_like(residual), offsets[2] * 4 // gradient.itemsize) if i % 7 else None
        calls.append((source.address, dtype, at(before), at(after), len(gradient), scale, 0.9))
        x = corrected(gradient, dtype, residual if before else None, scale)
        norms.append(add_up(np.abs(x)))
        results.append((source, np.zeros_like(gradient)))
        results += [(before, residual)] if before else []
        results += [(after, canonical_nan(x * np.float32(0.9)))] if after else []
    check_sums(place.kernels.update_residual(calls, dtype), norms)
    check_memory(results)


@pytest.mark.parametrize("dtype", CASTABLE)
def test_a_list_of_chunks_is_gathered(place: Place, dtype: str) -> None:
    calls, norms, results = [], [], []
    for i, (gradient, residual, scale, offsets) in enumerate(arrays(dtype, 2)):
        source = place.memory(gradient, offsets[0])
        before = place.memory(residual, offsets[1]) if i % 5 else None
        buffer = place.memory(np.ones_like(gradient), offsets[2])
        calls.append((source.address, dtype, at(before), buffer.address, len(gradient), scale))
        x = corrected(gradient, dtype, residual if before else None, scale)
        norms.append(add_up(np.abs(x)))
        results += [(source, gradient), (buffer, narrow(canonical_nan(x / np.float32(scale)), dtype))]
        results += [(before, residual)] if before else []
    check_sums(place.kernels.gather(calls, dtype), norms)
    check_memory(results)


@pytest.mark.parametrize("dtype", CASTABLE)
def test_a_list_of_chunks_is_scattered(place: Place, dtype: str) -> None:
    calls, norms, results = [], [], []
    for gradient, _, scale, offsets in arrays(dtype, 3):
        buffer, target = place.memory(gradient, offsets[0]), place.memory(np.ones_like(gradient), offsets[2])
        calls.append((target.address, dtype, buffer.address, len(gradient), scale))
        norms.append(add_up(np.abs(widen(gradient, dtype) * np.float32(scale))))
        results += [(buffer, gradient), (target, gradient)]
    check_sums(place.kernels.scatter(calls, dtype), norms)
    check_memory(results)


def check_memory(results: list[tuple[Memory, Array]]) -> None:
    """Fails unless each memory holds the bits it should, and nothing around it was written."""
    for memory, expected in results:
        memory.check_guards()
        check_same(memory.values, expected)


# ---- sums ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", CASTABLE)
def test_a_list_of_sums_of_squares(place: Place, dtype: str) -> None:
    calls, sums, sources = [], [], []
    for values, _, scale, offsets in arrays(dtype, 4):
        sources.append(place.memory(values, offsets[0]))
        calls.append((sources[-1].address, len(values), scale))
        x = widen(values, dtype) * np.float32(scale)
        sums.append(add_up(x * x))
    check_sums(place.kernels.sum_of_squares(calls, dtype), sums)


@pytest.mark.parametrize(("spread", "rounds"), [(0, False), (8, False), (30, True)])
def test_blocks_are_added_in_their_order(place: Place, spread: int, rounds: bool) -> None:
    """Also where their sums are so different that float64 rounds, and many: in another order the bits would differ."""
    rng = np.random.default_rng(spread)
    blocks = 300
    sizes = np.exp2(rng.integers(-spread, spread + 1, blocks) / 2).astype(np.float32)
    values = np.repeat(sizes, BLOCK) * rng.normal(0, 1, blocks * BLOCK).astype(np.float32)
    whole = place.memory(values)
    expected = add_up(values * values)
    backwards = add_up(np.flip((values * values).reshape(blocks, BLOCK), 0).ravel())
    assert (expected != backwards) == rounds
    check_sums(place.kernels.sum_of_squares([(whole.address, values.size, 1.0)], "float32"), [expected])


@pytest.mark.parametrize("bad", [np.inf, -np.inf, np.nan])
def test_one_bad_element_shows_in_its_sum_only(place: Place, bad: float) -> None:
    """Wherever it is, in a block of several or in the last row."""
    length = 2 * BLOCK + 77
    places = [0, 63, 64, BLOCK - 1, BLOCK, 2 * BLOCK, length - 1]
    values = np.ones((len(places) + 1, length), np.float32)
    for i, bad_place in enumerate(places):
        values[i, bad_place] = bad
    memory = place.memory(values.ravel())
    calls = [(memory.address + 4 * i * length, length, 1.0) for i in range(len(values))]
    found = np.array(place.kernels.sum_of_squares(calls, "float32"))
    assert not np.isfinite(found[:-1]).any()
    assert found[-1] == length


# ---- momentum SGD ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", CASTABLE)
def test_a_list_of_steps(place: Place, dtype: str) -> None:
    """Tensors of one step differ in their rates, in the copies of their weights, and in whether they have momentum."""
    names = ("gradient_scale", "weight_decay", "factor", "inner_rate", "outer_rate")
    rates = itertools.cycle(
        [(1.0, 0.0, 0.9, 0.1, 1.0), (2.0**-12, 1e-2, 0.95, 1.0, 0.03), (1 / 3, 5e-4, 0.0, 1.0, 0.7)]
    )
    copies = itertools.cycle([None, "float16", "bfloat16", "float16", "bfloat16"])
    rng = np.random.default_rng(5)
    calls, results = [], []
    for i, (gradient, momentum, _, offsets) in enumerate(arrays(dtype, 5)):
        copy, rate = next(copies), next(rates)
        weight = ordinary("float32", len(gradient), rng)
        source, velocity = place.memory(gradient, offsets[0]), place.memory(momentum, offsets[1]) if i % 7 else None
        target = place.memory(weight, offsets[2] * 4 // gradient.itemsize)
        narrow_copy = place.memory(np.ones(len(gradient), STORAGE[copy]), offsets[1] // 2) if copy else None
        state = source.address, dtype, at(velocity), len(gradient)
        calls.append((target.address, *state, at(narrow_copy), copy or "float16", *rate))
        new_weight, new_momentum = stepped(
            weight, gradient, dtype, momentum if velocity else None, dict(zip(names, rate, strict=True))
        )
        results += [(target, new_weight), (source, gradient)]
        results += [(velocity, new_momentum)] if velocity else []
        results += [(narrow_copy, narrow(new_weight, copy))] if copy else []
    place.kernels.momentum_step(calls, dtype)
    check_memory(results)


@pytest.mark.parametrize("dtype", CASTABLE)
def test_a_list_of_steps_of_adam(place: Place, dtype: str) -> None:
    """Tensors of one step differ in their rates, and in the copies of their weights."""
    rates = itertools.cycle(
        [[1.0, 0.0, 0.01, 0.0316, 0.9, 0.1, 0.999, 1e-3, 1e-8, 0.99], [2.0**-12, 0.01, 0.3, 1, 0.5, 0.5, 0, 1, 1e-3, 1]]
    )
    copies = itertools.cycle([None, "float16", "bfloat16", "float16", "bfloat16"])
    rng = np.random.default_rng(8)
    calls, results = [], []
    for gradient, mean, _, offsets in arrays(dtype, 8):
        copy, rate, count = next(copies), next(rates), len(gradient)
        weight, squares = ordinary("float32", count, rng), np.square(ordinary("float32", count, rng))
        source, target = place.memory(gradient, offsets[0]), place.memory(weight, offsets[2] * 4 // gradient.itemsize)
        means, mean_squares = place.memory(mean, offsets[1]), place.memory(squares, offsets[1])
        narrow_copy = place.memory(np.ones(count, STORAGE[copy]), offsets[1] // 2) if copy else None
        state = source.address, dtype, means.address, mean_squares.address, count
        calls.append((target.address, *state, at(narrow_copy), copy or "float16", *rate))
        new = adam_stepped(weight, gradient, dtype, mean, squares, rate)
        results += [(target, new[0]), (means, new[1]), (mean_squares, new[2]), (source, gradient)]
        results += [(narrow_copy, narrow(new[0], copy))] if copy else []
    place.kernels.adam_step(calls, dtype)
    check_memory(results)


# ---- local updates ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", CASTABLE)
def test_a_list_of_glu_updates(place: Place, dtype: str) -> None:
    """Tensors of one update differ in their rates, and in whether the previous weights are refreshed."""
    names = ("rate", "gradient_scale", "weight_decay", "alpha", "beta", "global_scale")
    rates = itertools.cycle([(0.4, 1.0, 0.0, 2.0, 0.5, 0.3), (0.1, 2.0**-12, 1e-2, 1.5, 0.0, 7.0)])
    rng = np.random.default_rng(6)
    calls, results = [], []
    for i, (gradient, before, _, offsets) in enumerate(arrays(dtype, 6)):
        weight, rate = ordinary("float32", len(gradient), rng), next(rates)
        target = place.memory(weight, offsets[2] * 4 // gradient.itemsize)
        source, previous = place.memory(gradient, offsets[0]), place.memory(before, offsets[1])
        state = previous.address, source.address, dtype, len(gradient)
        calls.append((target.address, *state, i % 3 == 0, *rate))
        new = glu_stepped(weight, before, gradient, dtype, i % 3 == 0, dict(zip(names, rate, strict=True)))
        results += [(target, new[0]), (previous, new[1]), (source, gradient)]
    place.kernels.glu_step(calls, dtype)
    check_memory(results)


@pytest.mark.parametrize("dtype", CASTABLE)
def test_a_list_of_delay_compensated_updates(place: Place, dtype: str) -> None:
    """Those whose weights have been replaced since the gradient was computed, and others."""
    names = ("rate", "gradient_scale", "weight_decay", "lambda_0", "decay", "epsilon")
    rates = itertools.cycle([(0.4, 1.0, 0.0, 2.0, 0.95, 1e-7), (0.1, 2.0**-12, 1e-2, 0.04, 0.5, 1e-3)])
    rng = np.random.default_rng(7)
    calls, results = [], []
    for i, (gradient, mean, _, offsets) in enumerate(arrays(dtype, 7)):
        weight, rate = ordinary("float32", len(gradient), rng), next(rates)
        before = ordinary("float32", len(gradient), rng) if i % 2 else None
        target = place.memory(weight, offsets[2] * 4 // gradient.itemsize)
        source, squares = place.memory(gradient, offsets[0]), place.memory(np.abs(mean), offsets[1])
        old = None if before is None else place.memory(before, offsets[1])
        state = squares.address, at(old), source.address, dtype, len(gradient)
        calls.append((target.address, *state, *rate))
        new = dc_stepped(weight, np.abs(mean), before, gradient, dtype, dict(zip(names, rate, strict=True)))
        results += [(target, new[0]), (squares, new[1]), (source, gradient)]
        results += [] if old is None or before is None else [(old, before)]
    place.kernels.dc_step(calls, dtype)
    check_memory(results)


@pytest.mark.parametrize("dtype", CASTABLE)
def test_a_list_of_steps_of_a_replica(place: Place, dtype: str) -> None:
    """The first step of a round keeps the weights."""
    rates = {"rate": 0.25, "gradient_scale": 2.0**-3, "weight_decay": 1e-2}
    rng = np.random.default_rng(8)
    calls, results = [], []
    for i, (gradient, sums, _, offsets) in enumerate(arrays(dtype, 8)):
        weight, kept = (ordinary("float32", len(gradient), rng) for _ in range(2))
        target = place.memory(weight, offsets[2] * 4 // gradient.itemsize)
        source, total = place.memory(gradient, offsets[0]), place.memory(sums, offsets[1])
        before = place.memory(kept, offsets[1]) if i % 2 else None
        state = at(before), total.address, source.address, dtype, len(gradient)
        calls.append((target.address, *state, *rates.values()))
        new = replica_stepped(weight, sums, gradient, dtype, rates)
        results += [(target, new[0]), (total, new[1]), (source, gradient)]
        results += [] if before is None else [(before, weight)]
    place.kernels.replica_step(calls, dtype)
    check_memory(results)


@pytest.mark.parametrize("dtype", CASTABLE)
def test_a_list_of_ends_of_rounds(place: Place, dtype: str) -> None:
    """With and without weights that were kept, a mean, and a gradient."""
    rates = {"rate": 0.25, "gradient_scale": 2.0**-3, "weight_decay": 1e-2}
    rng = np.random.default_rng(9)
    calls, results = [], []
    for i, (gradient, sums, _, offsets) in enumerate(arrays(dtype, 9)):
        weight, kept, mean = (ordinary("float32", len(gradient), rng) for _ in range(3))
        target = place.memory(weight, offsets[2] * 4 // gradient.itemsize)
        source = place.memory(gradient, offsets[0]) if i % 3 else None
        total = place.memory(sums, offsets[1])
        before = place.memory(kept, offsets[1]) if i % 2 else None
        means = place.memory(mean, offsets[2] * 4 // gradient.itemsize) if i % 5 else None
        places = (target.address, at(before), at(means), total.address, at(source))
        calls.append((*places, dtype, len(gradient), *rates.values()))
        new = round_ended(
            weight,
            None if before is None else kept,
            None if means is None else mean,
            sums,
            None if source is None else gradient,
            dtype,
            rates,
        )
        results += [(target, new[0]), (total, new[1])]
        results += [] if before is None else [(before, kept)]
        results += [] if means is None else [(means, np.zeros_like(mean))]
        results += [] if source is None else [(source, gradient)]
    place.kernels.round_step(calls, dtype)
    check_memory(results)


# ---- parts of lists --------------------------------------------------------------------------------------------------


def test_part_of_a_list_is_a_list(device_place: Place) -> None:
    """The calls before it are left alone."""
    place = device_place
    lengths = [PRIME, 0, 64, 5000, 2048, 1]
    values = [np.full(length, i + 1, np.float32) for i, length in enumerate(lengths)]
    for skipped in range(len(lengths) + 1):
        sources, targets = [place.memory(v) for v in values], [place.memory(np.zeros_like(v)) for v in values]
        calls = [(t.address, "float32", s.address, n, 1.0) for t, s, n in zip(targets, sources, lengths, strict=True)]
        norms = [float((i + 1) * length) for i, length in enumerate(lengths)]
        check_sums(place.kernels.scatter(calls, "float32", skipped=skipped), norms[skipped:])
        check_memory([(t, 0 * v if i < skipped else v) for i, (t, v) in enumerate(zip(targets, values, strict=True))])


# ---- entries ---------------------------------------------------------------------------------------------------------


def select(place: Place, layer: Layer, k: int, values: str, *how: Any, offset: int = 0) -> tuple[list[float], Array]:
    """One selection, checked but for what is chosen. Gives its numbers, and the indices of what was sent."""
    count = len(layer.gradient)
    block = compute.block_of(count, k, values)
    gradient = place.memory(layer.gradient, offset * layer.gradient.itemsize)
    before = [None if a is None else place.memory(a, offset * 4) for a in (layer.residual, layer.velocity)]
    residual = place.memory(np.ones(count, np.float32), offset * 4)
    velocity = None if layer.momentum is None else place.memory(np.ones(count, np.float32), offset * 4)
    data = place.memory(np.full(block.bytes, 7, np.uint8))
    places = gradient.address, layer.dtype, at(before[0]), residual.address, at(before[1]), at(velocity)
    rates = layer.scale, layer.momentum or 0.0, layer.masking
    name, seed, threshold = how
    found = place.kernels.select((*places, block, data.address, name, *rates, seed, threshold))
    sent = data.values.tobytes()
    indices, _ = decoded(sent, count, k, values)
    x, v = layer.x, layer.v
    assert sent == encoded(indices, x[indices], count, k, values)
    check_memory([(gradient, np.zeros_like(layer.gradient))])
    check_memory([(m, a) for m, a in zip(before, (layer.residual, layer.velocity), strict=True) if m and a is not None])
    if not found[2]:
        x[indices] -= sent_as(x[indices], values)
        check_memory([(residual, x)])
        if velocity is not None and v is not None:
            v[indices] = 0 if layer.masking else v[indices]
            check_memory([(velocity, v)])
    assert found[0] == len(indices)
    return found, indices


def layers(dtype: str, seed: int) -> Iterator[tuple[Layer, int]]:
    """Ordinary ones, and ones with ties, zeros, subnormal numbers and what is too large for float16; and offsets."""
    rng = np.random.default_rng(seed)
    for i, length in enumerate([1, 7, 64, 2047, 2048, 2049, PRIME]):
        few = narrow(rng.choice(np.array([0, -0.0, 1, -1, 2, 1e-41, 1e6], np.float32), length), dtype)
        for gradient in (ordinary(dtype, length, rng), few):
            residual = ordinary("float32", length, rng) if i % 3 == 0 else None
            momentum, velocity = (0.9, ordinary("float32", length, rng)) if i % 2 else (None, None)
            yield Layer(gradient, dtype, residual, velocity, 0.5, momentum, i % 4 == 1), i % 5


@pytest.mark.parametrize(("dtype", "values"), [(d, v) for d in CASTABLE for v in CASTABLE if v == "float32" or d == v])
def test_the_largest_entries_are_sent(place: Place, dtype: str, values: str) -> None:
    for layer, offset in layers(dtype, 9):
        count = len(layer.gradient)
        x = layer.x
        if not np.isfinite(x).all():
            assert dtype == "float16"
            assert select(place, layer, 1, values, "exact", 0, 0.0)[0] == [0, 0, np.sum(~np.isfinite(x))]
            continue
        for k in sorted({0, 1, count // 300, count // 3, count} & {*range(count + 1)}):
            found, indices = select(place, layer, k, values, "exact", 0, 0.0, offset=offset)
            np.testing.assert_array_equal(indices, largest(layer.x, k, values))
            assert found[1:] == [np.abs(x[indices]).min() if len(indices) else 0, 0]


def test_samples_and_thresholds(place: Place) -> None:
    """As on the CPU, entry by entry: with a sample, and with thresholds that are right or too low or too high."""
    rng = np.random.default_rng(10)
    count, k = 70_000, 5000
    layer = Layer(ordinary("float32", count, rng), "float32", ordinary("float32", count, rng))
    right = float(np.sort(np.abs(layer.x))[-k])
    numbers = []
    for seed, threshold in [*((seed, 0.0) for seed in range(4)), *((1, f * right) for f in (1e-9, 0.9, 1, 1.05, 2))]:
        found, indices = select(place, layer, k, "float32", "sampled", seed, threshold)
        same = select(Place(Processor(), Guarded), layer, k, "float32", "sampled", seed, threshold)
        assert found == same[0]
        np.testing.assert_array_equal(indices, same[1])
        np.testing.assert_array_equal(indices, passing(layer.x, k, "float32", found[1]))
        numbers.append(found[0])
    assert numbers[4:] == [k, k, k, numbers[7], k]
    assert k > numbers[7] >= 0.8 * k
    sparse = Layer(layer.gradient, "float32", None)
    sparse.gradient[200:] = 0
    assert select(place, sparse, k, "float32", "sampled", 0, 0.0)[0][0] == 200


@pytest.mark.parametrize(("count", "k"), [(1, 1), (9, 9), (40, 39), (5000, 4), (5000, 2500), (50_000, 700), (7, 0)])
def test_entries_are_drawn(place: Place, count: int, k: int) -> None:
    """As on the CPU, by the seed alone."""
    layer = Layer(np.zeros(count, np.float32), "float32", ordinary("float32", count, np.random.default_rng(11)))
    for seed in (0, 1, 2**64 - 1):
        found, indices = select(place, layer, k, "bfloat16", "random", seed, 0.0)
        assert found == [k, 0, 0]
        np.testing.assert_array_equal(
            indices, select(Place(Processor(), Guarded), layer, k, "bfloat16", "random", seed, 0.0)[1]
        )


@pytest.mark.parametrize(
    ("form", "count", "k"), [("words", 70_000, 1), ("offsets", 140_000, 200), ("bitmap", 5000, 900)]
)
@pytest.mark.parametrize("values", CASTABLE)
def test_blocks_of_entries_are_added_up(place: Place, form: str, count: int, k: int, values: str) -> None:
    """And blocks that are none are told, and nothing is written."""
    rng = np.random.default_rng(12)
    block = compute.block_of(count, k, values)
    assert block.indices == form
    for dtype, number in itertools.product(CASTABLE, (0, 1, 5)):
        gradient = ordinary(dtype, count, rng)
        entries = []
        for _ in range(number):
            indices = np.sort(rng.permutation(count)[: rng.integers(k // 2, k + 1)])
            entries.append((indices, sample("float32", len(indices), rng)))
            entries[-1][1][np.isnan(entries[-1][1])] = 1
        data = [np.frombuffer(encoded(*e, count, k, values), np.uint8) for e in entries]
        blocks = [place.memory(some) for some in data]
        target = place.memory(gradient)
        arguments = target.address, dtype, 1 / 3, block
        bad = data[-1].copy() if data else np.zeros(block.bytes, np.uint8)
        bad[:4].view(np.uint32)[:] = k + 1 if number == 1 else (1 if bad[0] != 1 else 0)
        spoiled = place.memory(bad)
        if form != "words" or number == 1:
            addresses = [b.address for b in (*blocks, spoiled)]
            assert place.kernels.combine(*arguments, addresses) == [0, number + 1]
        check_memory([(target, gradient)])
        expected, union = combined(gradient, dtype, [(i, sent_as(x, values)) for i, x in entries], 1 / 3)
        assert place.kernels.combine(*arguments, [b.address for b in blocks]) == [union, 0]
        check_memory([(target, expected), *zip(blocks, data, strict=True)])


def test_indices_that_do_not_ascend_are_told(place: Place) -> None:
    for count, k in ((1_000_000, 3), (140_000, 200)):
        block = compute.block_of(count, k, "float32")
        for first, second in ((5, 5), (9, 3), (count - 1, count)):
            indices = np.arange(k) if k > 3 else np.array([1, 2, 3])
            data = bytearray(encoded(indices, np.ones(k, np.float32), count, k, "float32"))
            size, kind = (4, np.uint32) if block.indices == "words" else (2, np.uint16)
            if second == count and size == 2:
                first, second = 65535, 65535
            data[4 + size : 4 + 3 * size] = np.array([first, second], kind).tobytes()
            blocks, target = (
                place.memory(np.frombuffer(bytes(data), np.uint8)),
                place.memory(np.ones(count, np.float32)),
            )
            assert place.kernels.combine(target.address, "float32", 1.0, block, [blocks.address]) == [0, 1]
            check_memory([(target, np.ones(count, np.float32))])


# ---- casts, counts and reductions ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("to", "of"), list(itertools.product(CASTABLE, CASTABLE)))
def test_casts(place: Place, to: str, of: str) -> None:
    for values, _, scale, offsets in arrays(of, 6):
        source = place.memory(values, offsets[0])
        target = place.memory(
            np.ones(len(values), STORAGE[to]), offsets[0] // values.itemsize * np.dtype(STORAGE[to]).itemsize
        )
        place.kernels.cast(target.address, to, source.address, of, len(values), scale)
        check_memory([(source, values), (target, cast(values, to, of, scale))])


@pytest.mark.parametrize("of", ["float16", "bfloat16"])
def test_every_16_bit_pattern_is_cast(place: Place, of: str) -> None:
    patterns = np.arange(65536, dtype=np.uint16).view(STORAGE[of])
    source = place.memory(patterns)
    for to in CASTABLE:
        target = place.memory(np.zeros(65536, STORAGE[to]))
        place.kernels.cast(target.address, to, source.address, of, 65536, 1.0)
        check_memory([(target, cast(patterns, to, of))])


@pytest.mark.parametrize("dtype", CASTABLE)
def test_counts_of_what_is_not_finite(place: Place, dtype: str) -> None:
    for values, _, _, offsets in arrays(dtype, 7):
        source = place.memory(values, offsets[0])
        found = place.kernels.count_nonfinite(source.address, dtype, len(values))
        assert found == np.count_nonzero(~np.isfinite(widen(values, dtype)))
    every = place.memory(np.full(100_000, np.nan, np.float32))
    assert place.kernels.count_nonfinite(every.address, "float32", 100_000) == 100_000


@pytest.mark.parametrize("dtype", list(STORAGE))
def test_reductions(place: Place, dtype: str) -> None:
    """Of each op, over lengths, numbers of sources and destinations, alignments, and in place."""
    rng = np.random.default_rng(8)
    size = np.dtype(STORAGE[dtype]).itemsize
    is_float = dtype.startswith(("float", "bfloat"))
    ops = ["max", "min"] if dtype == "bool" else ["sum", "prod", "max", "min", *(["mean"] if is_float else [])]
    pairs = itertools.cycle(itertools.product(range(1, 5), range(4)))
    for i, (length, op, make) in enumerate(
        itertools.product([0, 1, 15, 16, 17, 255, 300, PRIME], ops, (sample, random_bits))
    ):
        sources, destinations = next(pairs)
        values = [make(dtype, length, rng) for _ in range(sources)]
        offset = size * int(rng.integers(0, 16)) if i % 3 == 0 else 0
        divisor = int(rng.integers(1, 9)) if op == "mean" else 1
        placed = [place.memory(value, offset if s == 0 else 0) for s, value in enumerate(values)]
        others = [place.memory(np.zeros_like(values[0])) for _ in range(destinations)]
        targets = others or [placed[-1]]
        place.kernels.reduce([t.address for t in targets], [s.address for s in placed], length, dtype, op, divisor)
        expected = reduced(values, dtype, op, divisor)
        check_memory([(target, expected) for target in targets])
        check_memory(list(zip(placed, values, strict=True))[: None if others else -1])


def test_wrong_use_is_refused_alike(place: Place) -> None:
    """In a sentence, before anything is done."""
    kernels = {
        place.kernels.update_residual: (0, 0, 0, 1.0, 1.0),
        place.kernels.gather: (0, 0, 0, 1.0),
        place.kernels.scatter: (0, 0, 1.0),
    }
    for (kernel, rest), dtype in itertools.product(kernels.items(), ("float64", "int32")):
        with pytest.raises(TypeError, match=rf"float16, bfloat16 or float32, not {dtype}"):
            kernel([(0, dtype, *rest)], dtype)
    with pytest.raises(TypeError, match=r"cast is between float16, bfloat16 and float32, not int8"):
        place.kernels.cast(0, "int8", 0, "float32", 0, 1.0)
    with pytest.raises(TypeError, match=r"count_nonfinite is for float16, bfloat16 and float32, not bool"):
        place.kernels.count_nonfinite(0, "bool", 0)
    with pytest.raises(TypeError, match="op 'mean' needs a floating dtype"):
        place.kernels.reduce([0], [0], 0, "int8", "mean", 1)
    with pytest.raises(ValueError, match="at least one source"):
        place.kernels.reduce([], [0], 0, "int8", "sum", 1)


# ---- without a GPU ---------------------------------------------------------------------------------------------------


def test_a_machine_without_a_driver_has_no_devices() -> None:
    """The library loads there, asks in vain, and goes on."""
    program = "from gradientflow._location import load_core; print(load_core().device.count())"
    hidden = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
    hidden.pop("GRADIENTFLOW_CUDA_LIBRARY", None)
    done = subprocess.run([sys.executable, "-c", program], env=hidden, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "0\n"), done.stderr


def test_what_was_built_is_recorded() -> None:
    library = Path(gradientflow.__file__).parent / "lib" / "libgradientflow_cuda.so"
    assert library.exists() == bool(build_info()["cuda"])


def test_the_library_needs_no_library_of_cuda() -> None:
    ldd = shutil.which("ldd")
    if ldd is None:
        pytest.skip("needs ldd")
    package = Path(gradientflow.__file__).parent
    libraries = [*(package / "lib").glob("*.so"), Path(_core.__file__)]
    assert len(libraries) >= 2
    for library in libraries:
        needed = subprocess.run([ldd, str(library)], capture_output=True, text=True, check=True).stdout
        assert "libc.so" in needed
        assert not re.search(r"libcuda|libcudart|libnv", needed), needed
