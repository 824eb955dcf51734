"""What the compute kernels must give, in straight-line NumPy: the same bits at every SIMD level and on every device."""

from __future__ import annotations

import numpy as np
from kernel_data import CASTABLE, FLOATS, Array, narrow, same_nan, widen

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
        momentum = step = same_nan(factor * momentum + step)
    return same_nan(weight - outer * step), momentum


def cast(values: Array, to: str, of: str, scale: float = 1.0) -> Array:
    """Each element times the scale, rounded once."""
    with np.errstate(all="ignore"):
        return narrow(same_nan(widen(values, of) * np.float32(scale)), to)


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
        result = same_nan(result)
    return narrow(result, dtype) if dtype in CASTABLE else result
