"""Compute kernels of ``gradientflow bench kernels``: the arrays that each reads and writes, and the right results.

All values are small integers, and all factors powers of two, so that every result is exact in every element type and in
every order of addition. Kernels work element by element: over a buffer that repeats a block of random values, results
repeat too. The sum of a kernel is a multiple of the sum over the block, plus a remainder.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import chain
from types import ModuleType
from typing import Protocol

import numpy as np

from ..core.data import Values
from ..core.native import load_kernels

GRADIENTS = ("float16", "bfloat16", "float32")

_STORAGE: dict[str, type[np.generic]] = {"float16": np.float16, "bfloat16": np.uint16, "float32": np.float32}
_NARROW = GRADIENTS[:2]

# With the rates below, parameters are exact in bfloat16. No zeros: if the gradient is always zero, weights decay to
# subnormal numbers, with which processors can be slow.
_VALUES = np.array([-3, -2, -1, 1, 2, 3], np.float32)
_NO_RESULT = 99
_MOMENTUM = 0.5
_RATES = {"gradient_scale": 0.5, "weight_decay": 0.25, "factor": 0.5, "inner_rate": 0.25, "outer_rate": 1.0}


@dataclass(frozen=True)
class Expected:
    """The right results of a kernel.

    Attributes
    ----------
    arrays : mapping
        The values of the arrays that it writes, as float32, by name.
    addends : array or None
        The terms of the sum that it returns; None if it returns no sum.
    """

    arrays: Mapping[str, Values]
    addends: Values | None = None


class Launch(Protocol):
    """A kernel, or a copy, prepared for launching on a CUDA device."""

    def run(self) -> Sequence[float]:
        """Launch it, and wait for its numbers, if it computes any."""
        ...

    def microseconds(self, repeats: int) -> float:
        """Launch it `repeats` times in a row, and give the time of one launch by the device's clock."""
        ...


@dataclass(frozen=True)
class Kernel:
    """A kernel on gradients of one element type.

    Attributes
    ----------
    name, dtype : str
        The name of the kernel, and the element type of the gradients.
    arrays : mapping
        The element types of its arrays by name, in the order of their addresses in `call`.
    reads, writes : sequence of str
        The arrays that are read from and written to memory.
    call : callable
        Takes the SIMD level, the addresses of the arrays and the number of elements; gives the kernel's result.
    prepare : callable
        Takes the addresses on a device and the number of elements; gives the prepared kernel of the device.
    expect : callable
        The reference: takes the values of all arrays as float32.
    spoils : bool
        True if its input has infinities and NaN.
    """

    name: str
    dtype: str
    arrays: Mapping[str, str]
    reads: Sequence[str]
    writes: Sequence[str]
    call: Callable[[str, Sequence[int], int], float | None]
    prepare: Callable[[Sequence[int], int], Launch]
    expect: Callable[[Mapping[str, Values]], Expected]
    spoils: bool = False

    @property
    def moved(self) -> int:
        """Bytes read and written for each element."""
        return sum(item_size(self.arrays[name]) for name in chain(self.reads, self.writes))

    def fresh(self, length: int, seed: int) -> dict[str, Values]:
        """Draw values for all arrays, as float32; arrays that are only written get values that are no results."""
        random = np.random.default_rng(seed)
        blocks = {name: random.choice(_VALUES, length) for name in self.arrays}
        for name in set(self.arrays) - set(self.reads):
            blocks[name][:] = _NO_RESULT
        if self.spoils:
            bad = np.array([np.inf, -np.inf, np.nan], np.float32)
            for block in blocks.values():
                block[:] = np.where(random.random(length) < 0.01, random.choice(bad, length), block)
        return blocks


def item_size(dtype: str) -> int:
    """Give the bytes of one element."""
    return int(np.dtype(_STORAGE[dtype]).itemsize)


def stored(values: Values, dtype: str) -> Values:
    """Convert float32 values, which must be exact in an element type, to its storage."""
    if dtype == "bfloat16":
        return (values.view(np.uint32) >> 16).astype(np.uint16)
    return values.astype(_STORAGE[dtype], copy=False)


def active_level() -> str:
    """Name the SIMD level that the library uses."""
    return str(_compute().active_level())


def plain_copy(level: str, destination: int, source: int, size: int) -> None:
    """Copy memory with memcpy, with which kernels are compared."""
    _compute().copy(level, destination, source, size)


@cache
def _compute() -> ModuleType:
    return load_kernels("cpu")


@cache
def _prepared() -> ModuleType:
    return load_kernels("cuda")


def _on_both(
    name: str, dtype: str, fields: Callable[[Sequence[int], int], Sequence[object]]
) -> tuple[Callable[[str, Sequence[int], int], float | None], Callable[[Sequence[int], int], Launch]]:
    """Give `call` and `prepare` of a kernel that takes the same fields on the CPU and on a device."""
    return (
        lambda level, at, count: getattr(_compute(), name)(level, *fields(at, count)),
        lambda at, count: getattr(_prepared(), name)([fields(at, count)], dtype),
    )


def _reduce(dtype: str, number: int = 2) -> Kernel:
    sources = tuple(f"source {place}" for place in range(number))
    return Kernel(
        "reduce" if number == 2 else f"reduce of {number}",
        dtype,
        {**dict.fromkeys(sources, dtype), "sum": dtype},
        sources,
        ("sum",),
        lambda level, at, count: _compute().reduce(level, at[number:], at[:number], count, dtype, "sum"),
        lambda at, count: _prepared().reduce(at[number:], at[:number], count, dtype, "sum"),
        lambda values: Expected({"sum": np.stack([values[name] for name in sources]).sum(axis=0)}),
    )


def _cast(source: str, target: str) -> Kernel:
    return Kernel(
        f"cast to {target}",
        source,
        {"source": source, "target": target},
        ("source",),
        ("target",),
        lambda level, at, count: _compute().cast(level, at[1], target, at[0], source, count),
        lambda at, count: _prepared().cast(at[1], target, at[0], source, count),
        lambda values: Expected({"target": values["source"]}),
    )


def _count_nonfinite(dtype: str) -> Kernel:
    return Kernel(
        "count_nonfinite",
        dtype,
        {"gradient": dtype},
        ("gradient",),
        (),
        lambda level, at, count: _compute().count_nonfinite(level, at[0], dtype, count),
        lambda at, count: _prepared().count_nonfinite(at[0], dtype, count),
        lambda values: Expected({}, ~np.isfinite(values["gradient"])),
        spoils=True,
    )


def _update_residual(dtype: str, *, streaming: bool) -> Kernel:
    def expect(values: Mapping[str, Values]) -> Expected:
        residual = values["gradient"] + values["residual"]
        return Expected(
            {"gradient": np.zeros_like(residual), "next_residual": residual * np.float32(_MOMENTUM)}, np.abs(residual)
        )

    return Kernel(
        "update_residual streaming" if streaming else "update_residual",
        dtype,
        {"gradient": dtype, "residual": "float32", "next_residual": "float32"},
        ("gradient", "residual"),
        ("gradient", "next_residual"),
        *_on_both(
            "update_residual", dtype, lambda at, count: (at[0], dtype, *at[1:], count, 1.0, _MOMENTUM, streaming)
        ),
        expect,
    )


def _gather(dtype: str) -> Kernel:
    def expect(values: Mapping[str, Values]) -> Expected:
        sent = values["gradient"] + values["residual"]
        return Expected({"buffer": sent}, np.abs(sent))

    return Kernel(
        "gather",
        dtype,
        {"gradient": dtype, "residual": "float32", "buffer": dtype},
        ("gradient", "residual"),
        ("buffer",),
        *_on_both("gather", dtype, lambda at, count: (at[0], dtype, *at[1:], count)),
        expect,
    )


def _scatter(dtype: str) -> Kernel:
    return Kernel(
        "scatter",
        dtype,
        {"gradient": dtype, "buffer": dtype},
        ("buffer",),
        ("gradient",),
        *_on_both("scatter", dtype, lambda at, count: (at[0], dtype, at[1], count)),
        lambda values: Expected({"gradient": values["buffer"]}, np.abs(values["buffer"])),
    )


def _sum_of_squares(dtype: str) -> Kernel:
    return Kernel(
        "sum_of_squares",
        dtype,
        {"gradient": dtype},
        ("gradient",),
        (),
        lambda level, at, count: _compute().sum_of_squares(level, at[0], dtype, count),
        lambda at, count: _prepared().sum_of_squares([(at[0], count, 1.0)], dtype),
        lambda values: Expected({}, values["gradient"] ** 2),
    )


def _momentum_step(dtype: str, copy: str | None) -> Kernel:
    def expect(values: Mapping[str, Values]) -> Expected:
        rate = {name: np.float32(number) for name, number in _RATES.items()}
        direction = values["gradient"] * rate["gradient_scale"] + rate["weight_decay"] * values["weight"]
        momentum = rate["factor"] * values["momentum"] + rate["inner_rate"] * direction
        weight = values["weight"] - rate["outer_rate"] * momentum
        return Expected({"weight": weight, "momentum": momentum} | ({"parameter": weight} if copy else {}))

    def fields(at: Sequence[int], count: int) -> Sequence[object]:
        parameter = (at[3], copy) if copy else (0, dtype)
        return at[0], at[1], dtype, at[2], count, *parameter, *_RATES.values()

    copies = {"parameter": copy} if copy else {}
    return Kernel(
        "momentum_step to 16 bits" if copy else "momentum_step",
        dtype,
        {"weight": "float32", "gradient": dtype, "momentum": "float32", **copies},
        ("weight", "gradient", "momentum"),
        ("weight", "momentum", *copies),
        *_on_both("momentum_step", dtype, fields),
        expect,
    )


def _glu_step(dtype: str) -> Kernel:
    rates = (False, 0.25, 0.5, 0.25, 2.0, 0.5, 0.5)  # in the order of the arguments

    def expect(values: Mapping[str, Values]) -> Expected:
        _, rate, scale, decay, alpha, beta, global_scale = (np.float32(number) for number in rates)
        weight = values["weight"]
        global_gradient = (values["previous weight"] - weight) * global_scale
        direction = alpha * (values["gradient"] * scale) + decay * weight + beta * global_gradient
        return Expected({"weight": weight - rate * direction})

    return Kernel(
        "glu_step",
        dtype,
        {"weight": "float32", "previous weight": "float32", "gradient": dtype},
        ("weight", "previous weight", "gradient"),
        ("weight",),
        *_on_both("glu_step", dtype, lambda at, count: (*at, dtype, count, *rates)),
        expect,
    )


def _dc_step(dtype: str) -> Kernel:
    rates = 0.25, 0.5, 0.25, 2.0, 0.5, 1.0  # in the order of the arguments

    def expect(values: Mapping[str, Values]) -> Expected:
        rate, scale, decay, _, keep, _ = (np.float32(number) for number in rates)
        gradient = values["gradient"] * scale
        mean = keep * values["mean square"] + (1 - keep) * gradient * gradient
        return Expected(
            {"weight": values["weight"] - rate * (gradient + decay * values["weight"]), "mean square": mean}
        )

    return Kernel(
        "dc_step",
        dtype,
        {"weight": "float32", "mean square": "float32", "gradient": dtype},
        ("weight", "mean square", "gradient"),
        ("weight", "mean square"),
        *_on_both("dc_step", dtype, lambda at, count: (at[0], at[1], 0, at[2], dtype, count, *rates)),
        expect,
    )


KERNELS = (
    *(_reduce(dtype) for dtype in GRADIENTS),
    *(_cast("float32", dtype) for dtype in _NARROW),
    *(_cast(dtype, "float32") for dtype in _NARROW),
    *(_count_nonfinite(dtype) for dtype in GRADIENTS),
    *(_update_residual(dtype, streaming=False) for dtype in GRADIENTS),
    *(_update_residual(dtype, streaming=True) for dtype in GRADIENTS),
    *(_gather(dtype) for dtype in GRADIENTS),
    *(_scatter(dtype) for dtype in GRADIENTS),
    *(_sum_of_squares(dtype) for dtype in GRADIENTS),
    *(_momentum_step(dtype, None) for dtype in GRADIENTS),
    *(_momentum_step(dtype, dtype) for dtype in _NARROW),
    *(_glu_step(dtype) for dtype in GRADIENTS),
    *(_dc_step(dtype) for dtype in GRADIENTS),
)

# A device has no choice of streaming stores. It reduces the data of several ranks in its memory.
DEVICE_KERNELS = (
    *(_reduce(dtype, number) for number in (2, 4, 8) for dtype in GRADIENTS),
    *(_cast(source, target) for target in GRADIENTS for source in GRADIENTS if source != target),
    *(kernel for kernel in KERNELS if kernel.name.partition(" ")[0] not in ("reduce", "cast", "update_residual")),
    *(_update_residual(dtype, streaming=False) for dtype in GRADIENTS),
)
