"""What the compute kernels must give, in straight-line NumPy: the same bits at every SIMD level and on every device."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from kernel_data import CASTABLE, FLOATS, Array, canonical_nan, narrow, widen

BLOCK, LANES = 2048, 64  # of sums


def add_up(addends: Array) -> float:
    """In float32 lane by lane within a block, the lanes by halves, in float64 over the blocks."""
    total = 0.0
    for begin in range(0, len(addends), BLOCK):
        block = addends[begin : begin + BLOCK]
        lanes = np.zeros(LANES, np.float32)
        for row in range(0, len(block), LANES):
            some = block[row : row + LANES]
            lanes[: len(some)] += some
        while len(lanes) > 1:
            half = len(lanes) // 2
            lanes = lanes[:half] + lanes[half:]
        total += float(lanes[0])
    return total


def corrected(gradient: Array, dtype: str, residual: Array | None, scale: float) -> Array:
    """The gradient times its scale, with the residual added where there is one."""
    fresh: Array = widen(gradient, dtype) * np.float32(scale)
    return fresh if residual is None else fresh + residual


def stepped(
    weight: Array, gradient: Array, dtype: str, momentum: Array | None, rates: dict[str, float]
) -> tuple[Array, Array | None]:
    """The weights and the momentum after a step, in float32 from operation to operation."""
    scale, decay, factor, inner, outer = (
        np.float32(rates[name]) for name in ("gradient_scale", "weight_decay", "factor", "inner_rate", "outer_rate")
    )
    step = inner * (widen(gradient, dtype) * scale + decay * weight)
    if momentum is not None:
        momentum = step = canonical_nan(factor * momentum + step)
    return canonical_nan(weight - outer * step), momentum


ADAM = ("gradient_scale", "weight_decay", "rate", "root", "beta_1", "alpha_1", "beta_2", "alpha_2", "epsilon", "keep")


def adam_stepped(
    weight: Array, gradient: Array, dtype: str, mean: Array, mean_square: Array, rates: Sequence[float]
) -> tuple[Array, Array, Array]:
    """The weights, the mean and the mean square after a step of Adam, whose rates are in the order of ADAM."""
    scale, decay, rate, root, beta_1, alpha_1, beta_2, alpha_2, epsilon, keep = np.array(rates, np.float32)
    g = widen(gradient, dtype) * scale + decay * weight
    mean = canonical_nan(beta_1 * mean + alpha_1 * g)
    mean_square = canonical_nan(beta_2 * mean_square + alpha_2 * g * g)
    return canonical_nan(keep * weight - rate * mean / (np.sqrt(mean_square) / root + epsilon)), mean, mean_square


def glu_stepped(
    weight: Array, pre_weight: Array, gradient: Array, dtype: str, refreshes: bool, rates: dict[str, float]
) -> tuple[Array, Array]:
    """The weights and the previous weights after a local update."""
    rate, scale, decay, alpha, beta, global_scale = (
        np.float32(rates[name]) for name in ("rate", "gradient_scale", "weight_decay", "alpha", "beta", "global_scale")
    )
    direction = alpha * (widen(gradient, dtype) * scale) + decay * weight
    direction = direction + beta * ((pre_weight - weight) * global_scale)
    return canonical_nan(weight - rate * direction), weight if refreshes else pre_weight


def dc_stepped(
    weight: Array, mean_square: Array, before: Array | None, gradient: Array, dtype: str, rates: dict[str, float]
) -> tuple[Array, Array]:
    """The weights and the mean squares after a local update with delay compensation."""
    rate, scale, decay, lambda_0, keep, epsilon = (
        np.float32(rates[name]) for name in ("rate", "gradient_scale", "weight_decay", "lambda_0", "decay", "epsilon")
    )
    direction = widen(gradient, dtype) * scale
    squares = direction * direction
    mean_square = canonical_nan(keep * mean_square + (np.float32(1) - keep) * squares)
    if before is not None:
        direction = direction + lambda_0 / np.sqrt(mean_square + epsilon) * squares * (weight - before)
    return canonical_nan(weight - rate * (direction + decay * weight)), mean_square


def replica_stepped(
    weight: Array, sums: Array, gradient: Array, dtype: str, rates: dict[str, float]
) -> tuple[Array, Array]:
    """The weights and the sums after a step on a replica."""
    rate, scale, decay = (np.float32(rates[name]) for name in ("rate", "gradient_scale", "weight_decay"))
    direction = widen(gradient, dtype) * scale + decay * weight
    return canonical_nan(weight - rate * direction), canonical_nan(sums + direction)


def round_ended(
    weight: Array,
    before: Array | None,
    mean: Array | None,
    sums: Array,
    gradient: Array | None,
    dtype: str,
    rates: dict[str, float],
) -> tuple[Array, Array]:
    """The weights and the sums after the end of a round."""
    rate, scale, decay = (np.float32(rates[name]) for name in ("rate", "gradient_scale", "weight_decay"))
    if gradient is not None:
        sums = canonical_nan(sums + (widen(gradient, dtype) * scale + decay * weight))
    base = weight if before is None else before
    return base if mean is None else canonical_nan(base - rate * mean), sums


def cast(values: Array, to: str, of: str, scale: float = 1.0) -> Array:
    """Each element times the scale, rounded once."""
    with np.errstate(all="ignore"):
        return narrow(canonical_nan(widen(values, of) * np.float32(scale)), to)


def combine(a: Array, b: Array, op: str) -> Array:
    """One step of a reduction; a is the earlier operand."""
    if op in ("sum", "mean"):
        return a + b
    if op == "prod":
        return a * b
    a_wins = (a >= b) if op == "max" else (a <= b)
    if a.dtype.kind == "f":
        a_wins |= np.isnan(a)
    return np.where(a_wins, a, b)


def reduced(sources: list[Array], dtype: str, op: str, divisor: int = 1) -> Array:
    """The result of a reduction."""
    accumulated = [widen(source, dtype) for source in sources] if dtype in CASTABLE else sources
    result = accumulated[0]
    with np.errstate(all="ignore"):
        for source in accumulated[1:]:
            result = combine(result, source, op)
        if op == "mean":
            result = result / result.dtype.type(divisor)
    if dtype in FLOATS and op not in ("max", "min"):
        result = canonical_nan(result)
    return narrow(result, dtype) if dtype in CASTABLE else result


# ---- entries ---------------------------------------------------------------------------------------------------------


@dataclass
class Layer:
    """What goes into a selection."""

    gradient: Array
    dtype: str
    residual: Array | None
    velocity: Array | None = None
    scale: float = 1.0
    momentum: float | None = None  # None: there is no velocity
    masking: bool = True

    @property
    def v(self) -> Array | None:
        """The next velocity, where there is one."""
        if self.momentum is None:
            return None
        before = np.zeros(len(self.gradient), np.float32) if self.velocity is None else self.velocity
        return np.float32(self.momentum) * before + widen(self.gradient, self.dtype) * np.float32(self.scale)

    @property
    def x(self) -> Array:
        """What is selected from."""
        residual = np.zeros(len(self.gradient), np.float32) if self.residual is None else self.residual
        v = self.v
        return corrected(self.gradient, self.dtype, residual, self.scale) if v is None else v + residual


def sent_as(values: Array, dtype: str) -> Array:
    """Values as they travel, as float32: rounded, and in float16 no larger than its largest."""
    if dtype == "float16":
        values = np.clip(values, np.float32(-65504), np.float32(65504))
    return widen(narrow(values, dtype), dtype)


def largest(x: Array, k: int, values: str) -> Array:
    """The indices, ascending, of the k elements of largest magnitude, of equal ones the first; none travels as 0."""
    order = np.argsort(-np.abs(x), kind="stable")[:k]
    return np.sort(order[sent_as(x[order], values) != 0])


def passing(x: Array, k: int, values: str, threshold: float) -> Array:
    """Those that pass a threshold, if they are at least 0.8 k; no more than the k largest, which stand in for fewer."""
    chosen = largest(x, k, values)
    some = chosen[np.abs(x[chosen]) >= np.float32(threshold)]
    return some if len(some) * 5 >= k * 4 else chosen


def block_format(count: int, k: int, values: str) -> tuple[str, int, int, int]:
    """The smallest form of the indices, where indices and values begin, and the size of a block."""
    sizes = {"words": 4 * k, "offsets": (2 * k + 3) // 4 * 4 + -(-count // 65536) * 4, "bitmap": -(-count // 32) * 4}
    smallest = min(sizes, key=lambda name: sizes[name])
    value_begin = 4 + sizes[smallest]
    return smallest, 4, value_begin, value_begin + (k * (4 if values == "float32" else 2) + 3) // 4 * 4


def encoded(indices: Array, x: Array, count: int, k: int, values: str) -> bytes:
    """The block of these entries."""
    name, _, _, size = block_format(count, k, values)
    parts = [np.array([len(indices)], np.uint32).tobytes()]
    if name == "words":
        parts.append(np.pad(indices.astype(np.uint32), (0, k - len(indices))).tobytes())
    elif name == "offsets":
        offsets = np.pad((indices % 65536).astype(np.uint16), (0, k + k % 2 - len(indices)))
        pages = np.bincount(indices // 65536, minlength=-(-count // 65536)).astype(np.uint32)
        parts += [offsets.tobytes(), pages.tobytes()]
    else:
        bits = np.zeros(-(-count // 32) * 32, np.uint8)
        bits[indices] = 1
        parts.append(np.packbits(bits, bitorder="little").tobytes())
    clipped = np.clip(x, np.float32(-65504), np.float32(65504)) if values == "float16" else x
    parts.append(narrow(clipped.astype(np.float32), values).tobytes())
    return b"".join(parts).ljust(size, b"\0")


def decoded(block: bytes, count: int, k: int, values: str) -> tuple[Array, Array]:
    """The indices and, as float32, the values of the entries of a block."""
    name, begin, value_begin, _ = block_format(count, k, values)
    number = int(np.frombuffer(block, np.uint32, 1)[0])
    if name == "words":
        indices = np.frombuffer(block, np.uint32, number, begin).astype(np.int64)
    elif name == "offsets":
        pages = -(-count // 65536)
        entries = np.frombuffer(block, np.uint32, pages, value_begin - 4 * pages)
        offsets = np.frombuffer(block, np.uint16, number, begin)
        indices = np.repeat(np.arange(pages) * 65536, entries) + offsets
    else:
        bits = np.frombuffer(block, np.uint8, value_begin - begin, begin)
        indices = np.flatnonzero(np.unpackbits(bits, bitorder="little"))
    storage = {"float16": np.float16, "bfloat16": np.uint16, "float32": np.float32}[values]
    return indices, widen(np.frombuffer(block, storage, number, value_begin), values)


def combined(gradient: Array, dtype: str, blocks: list[tuple[Array, Array]], scale: float) -> tuple[Array, int]:
    """The gradient after the entries of all blocks, in their order, were added up; and how many elements have one."""
    sums = np.full(len(gradient), np.float32(-0.0))
    has_entry = np.zeros(len(gradient), np.bool_)
    for indices, values in blocks:
        sums[indices] += values
        has_entry[indices] = True
    return np.where(has_entry, cast(sums, dtype, "float32", scale), gradient), int(has_entry.sum())
