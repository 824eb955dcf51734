"""The kernels of sparse communication by entry against straight-line NumPy, at every SIMD level."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_data import (
    CASTABLE,
    LEVELS,
    LINE,
    Array,
    Guarded,
    check_same,
    compute,
    narrow,
    sample,
)
from kernel_references import Layer, block_format, combined, decoded, encoded, largest, passing, sent_as

FORMATS = {"words": (70_000, 1), "offsets": (70_000, 100), "bitmap": (1000, 300)}


# ---- one selection, checked ------------------------------------------------------------------------------------------


def address(memory: Guarded | None) -> int:
    return 0 if memory is None else memory.address


def select_at(
    level: str, layer: Layer, k: int, values: str, how: str, offset: int = 0, seed: int = 0, threshold: float = 0.0
) -> tuple[Any, ...]:
    """One selection. Gives its numbers, the block, the next residual and the next velocity."""
    count = len(layer.gradient)
    block = compute.block_of(count, k, values)
    gradient = Guarded(layer.gradient, offset * layer.gradient.itemsize % LINE)
    inputs = [None if a is None else Guarded(a, offset * 4 % LINE) for a in (layer.residual, layer.velocity)]
    residual = Guarded(np.full(count, 7, np.float32), offset * 4 % LINE)
    velocity = None if layer.momentum is None else Guarded(np.full(count, 7, np.float32), offset * 4 % LINE)
    data = Guarded(np.full(block.bytes, 7, np.uint8), offset % LINE)
    numbers = compute.select(level, (
        gradient.address, layer.dtype, address(inputs[0]), residual.address, address(inputs[1]), address(velocity),
        block, data.address, how, layer.scale, layer.momentum or 0.0, layer.masking, seed, threshold,
    ))  # fmt: skip
    for memory in (gradient, residual, velocity, data, *inputs):
        if memory is not None:
            memory.check_guards()
    for memory, before in zip(inputs, (layer.residual, layer.velocity), strict=True):
        if memory is not None and before is not None:
            check_same(memory.values, before)
    assert not gradient.bytes.any(), "the gradient is not zero"
    return numbers, data.bytes.tobytes(), residual.values, None if velocity is None else velocity.values


def check_result(result: tuple[Any, ...], layer: Layer, k: int, values: str, chosen: Array) -> None:
    """Fails unless these entries were sent, and all else stayed."""
    (number, threshold, nonfinite), block, next_residual, next_velocity = result
    x = layer.x
    assert (number, nonfinite) == (len(chosen), 0)
    assert block == encoded(chosen, x[chosen], len(x), k, values)
    kept = x.copy()
    kept[chosen] = x[chosen] - sent_as(x[chosen], values)
    check_same(next_residual, kept)
    if values == "float32":
        assert not next_residual[chosen].any()
    if next_velocity is not None:
        v = layer.v
        assert v is not None
        if layer.masking:
            v[chosen] = 0
        check_same(next_velocity, v)
    if len(chosen) and threshold:
        assert threshold == np.abs(x[chosen]).min()


def check_exact(layer: Layer, k: int, values: str, offset: int = 0) -> None:
    """The k largest, at all levels."""
    for level in LEVELS:
        result = select_at(level, layer, k, values, "exact", offset)
        check_result(result, layer, k, values, largest(layer.x, k, values))


def check_sampled(layer: Layer, k: int, values: str, seed: int) -> int:
    """About k, at all levels the same: all that are as large as the least of them. Gives their number."""
    results = [select_at(level, layer, k, values, "sampled", seed=seed) for level in LEVELS]
    number, threshold, _ = results[0][0]
    chosen = passing(layer.x, k, values, threshold)
    for result in results:
        check_result(result, layer, k, values, chosen)
    most = len(largest(layer.x, k, values))
    assert 0.8 * most <= number <= most
    return int(number)


def normal(count: int, rng: np.random.Generator, dtype: str = "float32", **more: Any) -> Layer:
    """A layer of ordinary values."""
    gradient = narrow(rng.normal(0, 1, count).astype(np.float32), dtype)
    return Layer(gradient, dtype, rng.normal(0, 1, count).astype(np.float32), **more)


@pytest.mark.parametrize(("dtype", "values"), list(itertools.product(CASTABLE, CASTABLE)))
def test_the_largest_are_sent_at_every_length(dtype: str, values: str) -> None:
    rng = np.random.default_rng(1)
    for count in [*range(20), 31, 33, 63, 64, 65, 127, 1000, 4095, 4097, 9000]:
        for k in sorted({0, 1, count // 100, count // 3, count} & {*range(count + 1)}):
            layer = normal(count, rng, dtype, scale=float(rng.choice([1.0, 0.1])))
            check_exact(layer, k, values, int(rng.integers(0, 16)))
            layer = Layer(layer.gradient, dtype, None, layer.residual, 0.5, 0.9, bool(rng.integers(0, 2)))
            check_exact(layer, k, values)


def awkward(count: int, rng: np.random.Generator) -> dict[str, Array]:
    """Layers that estimates, buffers and ties could go wrong with."""
    ones = np.ones(count, np.float32)
    sign = rng.choice(np.array([-1, 1], np.float32), count)
    base = rng.normal(0, 1, count).astype(np.float32)
    one_huge, last_huge, sparse = base * 0, base.copy(), base * (rng.random(count) < 0.0003)
    one_huge[count // 3], last_huge[-1] = -3e38, 1e30
    return {
        "equal": sign,
        "zeros": ones * rng.choice(np.array([-0.0, 0.0], np.float32), count),
        "few values": np.float32(2) ** rng.integers(-3, 3, count).astype(np.float32) * sign,
        "ascending": np.linspace(0.001, 1, count, dtype=np.float32),
        "descending": np.linspace(1, 0.001, count, dtype=np.float32),
        "one huge": one_huge,
        "huge at the end": last_huge,
        "denormal": base * np.float32(1e-40),
        "periodic": np.where(np.arange(count) % 100 == 7, ones * 50, base),
        "blocks": np.where((np.arange(count) // 5000) % 50 == 49, base * 1000, base),
        "heavy tail": (rng.standard_cauchy(count) ** 3).astype(np.float32).clip(-3e38, 3e38),
        "mostly zeros": sparse,
        "beyond float16": base * np.float32(1e6),
    }


NAMES = [*awkward(10, np.random.default_rng(0))]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    "values", [pytest.param(each, marks=() if each == "float32" else pytest.mark.thorough) for each in CASTABLE]
)
def test_awkward_layers(name: str, values: str) -> None:
    rng = np.random.default_rng(2)
    count = 100_000
    x = awkward(count, rng)[name]
    layer = Layer(x * 0, "float32", x)
    for k in (1, 700, 5000, 20_000):
        check_exact(layer, k, values)
        check_sampled(layer, k, values, seed=k)


@pytest.mark.parametrize("dtype", CASTABLE)
def test_a_sample_finds_about_k(dtype: str) -> None:
    """Mostly k, hardly ever fewer; whatever the seed, and with a velocity, too."""
    rng = np.random.default_rng(3)
    layer = normal(200_000, rng, dtype, velocity=rng.normal(0, 1, 200_000).astype(np.float32), momentum=0.9)
    for k in (400, 4500, 9000):
        numbers = [check_sampled(layer, k, "float16", seed) for seed in (0, 1, 2**63 + 5)]
        assert max(numbers) == k


@pytest.mark.parametrize("factor", [0.0, 0.2, 0.95, 1.0, 1.05, 3.0, 1e30])
def test_a_threshold_from_before(factor: float) -> None:
    """Too low, the k largest are sent; a little too high, those that pass; much too high, it is not heeded."""
    rng = np.random.default_rng(4)
    for count, k in ((200_000, 1000), (5000, 50)):
        layer = normal(count, rng)
        at = np.float32(np.abs(layer.x[largest(layer.x, k, "float32")]).min() * np.float32(factor))
        chosen = passing(layer.x, k, "float32", at) if factor else largest(layer.x, k, "float32")
        assert len(chosen) == k or factor == 1.05
        for level in LEVELS:
            result = select_at(level, layer, k, "float32", "sampled", threshold=at)
            if factor or count == 5000:
                check_result(result, layer, k, "float32", chosen)
    for threshold in (-1.0, np.inf, np.nan):
        with pytest.raises(ValueError, match="the threshold of a selection must be finite and not negative, not"):
            select_at("baseline", layer, 3, "float32", "sampled", threshold=threshold)


def test_entries_are_drawn_by_the_seed_alone() -> None:
    rng = np.random.default_rng(5)
    for count, k in ((1, 1), (10, 10), (1000, 3), (50_000, 500), (50_000, 0)):
        drawn = []
        for layer, level in itertools.product((normal(count, rng), normal(count, rng, "float16")), LEVELS):
            result = select_at(level, layer, k, "bfloat16", "random", seed=77)
            indices, _ = decoded(result[1], count, k, "bfloat16")
            assert len(indices) == k
            check_result(result, layer, k, "bfloat16", indices)
            drawn.append(indices)
        assert all((indices == drawn[0]).all() for indices in drawn)


def test_each_element_is_drawn_as_often() -> None:
    """Over many seeds, within four standard deviations; pairs of neighbors, too."""
    count, k, seeds = 40, 10, 4000
    layer = Layer(np.zeros(count, np.float32), "float32", np.ones(count, np.float32))
    hits = np.zeros((seeds, count))
    for seed in range(seeds):
        indices, _ = decoded(select_at(LEVELS[-1], layer, k, "float32", "random", seed=seed)[1], count, k, "float32")
        hits[seed, indices] = 1
    for share, found in ((k / count, hits), (k * (k - 1) / count / (count - 1), hits[:, 1:] * hits[:, :-1])):
        assert np.abs(found.mean(0) - share).max() < 4 * np.sqrt(share * (1 - share) / seeds)


@pytest.mark.parametrize("how", ["exact", "sampled", "random"])
def test_nonfinite_elements_are_counted_and_nothing_is_sent(how: str) -> None:
    rng = np.random.default_rng(6)
    for count, k, bad in itertools.product((1, 70, 9000, 300_000), (0, 1, 500, 5000), (1, 7, 10**9)):
        layer = normal(count, rng)
        where = rng.permutation(count)[:bad]
        layer.gradient[where] = rng.choice(np.array([np.inf, -np.inf, np.nan], np.float32), len(where))
        for level in LEVELS:
            numbers, block, _, _ = select_at(level, layer, min(k, count), "float16", how)
            assert numbers == (0, 0.0, len(where))
            assert not any(block)


# ---- blocks ----------------------------------------------------------------------------------------------------------


def test_the_smallest_form_is_taken() -> None:
    for name, (count, k) in FORMATS.items():
        assert compute.block_of(count, k, "float16").indices == name
    for count, k, values in itertools.product((0, 1, 31, 33, 65536, 65537, 10**9), range(300), CASTABLE):
        if k <= count:
            block = compute.block_of(count, k, values)
            found = block.indices, block.index_begin, block.value_begin, block.bytes
            assert found == block_format(count, k, values)
            assert (block.count, block.k, block.values) == (count, k, values)
    for count, k in ((3, 4), (2**32, 1)):
        with pytest.raises(
            ValueError, match=f"at most as many as the layer has elements, below 2.32, not {k} of {count}"
        ):
            compute.block_of(count, k, "float32")
    with pytest.raises(TypeError, match="float16, bfloat16 or float32, not float64"):
        compute.block_of(4, 3, "float64")


def check_combine(
    gradient: Array, dtype: str, entries: list[tuple[Array, Array]], k: int, values: str, scale: float, offset: int = 0
) -> None:
    """The sum of blocks, at all levels."""
    count = len(gradient)
    block = compute.block_of(count, k, values)
    blocks = [np.frombuffer(encoded(i, x, count, k, values), np.uint8) for i, x in entries]
    with np.errstate(all="ignore"):
        expected, union = combined(gradient, dtype, [(i, sent_as(x, values)) for i, x in entries], scale)
    for level in LEVELS:
        memory = [Guarded(data, offset) for data in blocks]
        target = Guarded(gradient, offset * gradient.itemsize % LINE)
        addresses = [m.address for m in memory]
        assert compute.combine(level, target.address, dtype, scale, block, addresses) == union
        target.check_guards()
        check_same(target.values, expected)


def some_entries(count: int, k: int, rng: np.random.Generator) -> tuple[Array, Array]:
    """Up to k of them."""
    indices = np.sort(rng.permutation(count)[: rng.integers(k // 2, k + 1)])
    return indices, rng.normal(0, 1, len(indices)).astype(np.float32)


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("values", CASTABLE)
def test_blocks_are_added_up(form: str, values: str) -> None:
    rng = np.random.default_rng(7)
    (count, k), ranks = FORMATS[form], 5
    for dtype, number in itertools.product(CASTABLE, (0, 1, ranks, 130)):
        gradient = narrow(rng.normal(0, 1, count).astype(np.float32), dtype)
        entries = [some_entries(count, k, rng) for _ in range(number)]
        check_combine(gradient, dtype, entries, k, values, 1 / 3, int(rng.integers(0, 16)))


@settings(max_examples=150)
@given(data=st.data())
def test_blocks_of_any_entries_are_added_up(data: st.DataObject) -> None:
    """Whatever the layer, the entries, and the values, NaN and infinity among them."""
    count = data.draw(
        st.one_of(st.integers(0, 200), st.integers(4000, 5000), st.integers(60_000, 140_000)), label="count"
    )
    indices = st.lists(st.integers(0, max(count - 1, 0)), max_size=min(count, 60), unique=True).map(sorted)
    chosen = data.draw(st.lists(indices, max_size=5), label="indices")
    k = data.draw(st.integers(max([0, *map(len, chosen)]), min(count, 80)), label="k")
    values, dtype = (data.draw(st.sampled_from(CASTABLE)) for _ in range(2))
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32), label="seed"))
    entries = []
    for some in chosen:
        x = sample("float32", len(some), rng)
        entries.append((np.array(some, np.int64), np.where(np.isnan(x), np.float32(1), x)))
    for (index, x), (again, y) in zip(
        entries, (decoded(encoded(*e, count, k, values), count, k, values) for e in entries), strict=True
    ):
        np.testing.assert_array_equal(index, again)
        check_same(sent_as(x, values), y)
    check_combine(sample(dtype, count, rng), dtype, entries, k, values, data.draw(st.sampled_from([1.0, 0.25, 3.0])))


def words(*numbers: int) -> bytes:
    return np.array(numbers, np.uint32).tobytes()


@pytest.mark.parametrize("form", FORMATS)
def test_what_is_not_a_block_is_refused(form: str) -> None:
    """And the gradient left as it was."""
    count, k = FORMATS[form]
    k = k + 2 if form == "words" else k
    count = count * 5 if form == "words" else count
    block = compute.block_of(count, k, "float32")
    assert block.indices == form
    good = encoded(np.arange(k), np.ones(k, np.float32), count, k, "float32")
    begin, end = block.index_begin, block.value_begin

    def changed(at: int, content: bytes) -> bytes:
        return good[:at] + content + good[at + len(content) :]

    order = "its indices do not ascend, or go beyond the layer's"
    bad = [(changed(0, words(k + 1)), f"{k + 1} entries, where it has room for {k}")]
    if form == "words":
        bad += [(changed(end - 4, words(n)), order) for n in (count, 2**32 - 1, 1, 0)]
    elif form == "offsets":
        bad += [(changed(begin + 2 * k - 2, b"\1\0"), order), (changed(begin, b"\1\0"), order)]
        bad += [(changed(end - 8, words(k - 1)), "indices of fewer"), (changed(end - 8, words(2**32 - 1)), "of more")]
        bad += [(changed(end - 8, words(k - 1, 1))[:begin] + changed(begin + 2 * k - 2, b"\xff\xff")[begin : end - 8]
                 + words(k - 1, 1) + good[end:], order)]  # fmt: skip
    else:
        bad += [(changed(begin, b"\0"), "indices of fewer"), (changed(end - 8, words(1)), "indices of more")]
        bad += [(changed(begin, b"\x7f")[: end - 4] + words(1 << 31) + good[end:], order)]
    gradient = Guarded(np.full(count, 5, np.float32))
    for (data, sentence), level in itertools.product(bad, LEVELS):
        memory = [Guarded(np.frombuffer(some, np.uint8)) for some in (good, data)]
        with pytest.raises(ValueError, match=f"block 1 is not one of entries: .*{sentence}"):
            compute.combine(level, gradient.address, "float32", 1.0, block, [m.address for m in memory])
        gradient.check_guards()
        assert (gradient.values == 5).all()
