"""The result of ``gradientflow bench kernels``, and the table of results."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ..core.measure import Samples
from ..core.plan import format_size
from ..core.table import Column, Layout, bandwidth, figure, microseconds, name, ratios_text
from .contestants import Kernel
from .selection import Selection


@dataclass(frozen=True)
class KernelResult:
    """The figures of a kernel, and of a plain copy of as many bytes; scripts rely on the names.

    Attributes
    ----------
    kernel, dtype, device, simd : str
        The kernel, the element type of the gradients, the device, and the vector instructions ("none" on a device).
    bytes, elements : int
        The requested size, and the number of gradients.
    bytes_moved : int
        Read and written by a call.
    iterations : int
        Timed calls, or timed series of calls if a call is short.
    median_us, min_us, p95_us : float or None
        Of a call; None, like all figures, if the result was wrong.
    copy_median_us : float or None
        Of a copy that reads and writes as many bytes together.
    bandwidth_GBps, copy_GBps : float or None
        Bytes moved over the medians, in 10^9 bytes per second.
    ratio : float or None
        The kernel's bandwidth over that of the copy.
    wrong : int
        Wrong elements, and wrong sums.
    """

    kernel: str
    dtype: str
    device: str
    simd: str
    bytes: int
    elements: int
    bytes_moved: int
    iterations: int
    median_us: float | None
    min_us: float | None
    p95_us: float | None
    copy_median_us: float | None
    bandwidth_GBps: float | None  # noqa: N815 - the unit's own spelling, and a name scripts rely on
    copy_GBps: float | None  # noqa: N815
    ratio: float | None
    wrong: int


def summarise_kernel(
    kernel: Kernel | Selection, simd: str, size: int, count: int, wrong: int, times: Samples, device: str = "cpu"
) -> KernelResult:
    """Make the result of a kernel from its times.

    Parameters
    ----------
    kernel : Kernel or Selection
        The kernel.
    simd : str
        The vector instructions; "none" on a device.
    size, count : int
        The requested size, and the number of gradients.
    wrong : int
        Wrong elements and sums found.
    times : array
        Nanoseconds of each call and of each copy, in two rows; ignored if the result was wrong.
    device : str
        Its device.

    Returns
    -------
    KernelResult
        The record.
    """
    moved = kernel.moved * count
    names = ("median_us", "min_us", "p95_us", "copy_median_us", "bandwidth_GBps", "copy_GBps", "ratio")
    figures: list[float | None] = [None] * len(names)
    if not wrong:
        calls, copies = times / 1e3
        median, copy = float(np.median(calls)), float(np.median(copies))
        figures = [round(number, 3) for number in (median, float(calls.min()), float(np.percentile(calls, 95)), copy)]
        figures += [round(moved / (median * 1e3), 6), round(moved / (copy * 1e3), 6), round(copy / median, 4)]
    return KernelResult(
        kernel=kernel.name,
        dtype=kernel.dtype,
        device=device,
        simd=simd,
        bytes=size,
        elements=count,
        bytes_moved=moved,
        iterations=0 if wrong else times.shape[1],
        wrong=wrong,
        **dict(zip(names, figures, strict=True)),
    )


def _columns(results: Sequence[KernelResult], with_cpu: bool) -> list[Column]:
    return [
        name("size", lambda result: format_size(result.bytes), justify="right", repeats=False),
        name("kernel", "kernel", repeats=False),
        name("gradients", "dtype"),
        figure("call", "us", "median_us", microseconds),
        figure("p95", "us", "p95_us", microseconds),
        figure("moved", "GB/s", "bandwidth_GBps", bandwidth),
        figure("copy", "GB/s", "copy_GBps", bandwidth),
        Column("moved / copy", lambda result: ratios_text((result.median_us, result.copy_median_us))),
    ]


def _legend(results: Sequence[KernelResult], with_cpu: bool) -> str:
    text = (
        "Sizes are bytes of the gradients as float32; with 16-bit floats there are as many. call is the median. moved "
        "counts the bytes that a kernel reads and writes, copy is "
    )
    if any(result.device == "cuda" for result in results):
        return text + (
            "cudaMemcpyAsync on the device on as many bytes, read and written. Times are the device's, of one of many "
            "launches in a row."
        )
    levels = ", ".join(dict.fromkeys(result.simd for result in results))
    return f"{text}memcpy on as many bytes, read and written. One processor core, {levels}."


LAYOUT = Layout(_columns, lambda result: result.bytes, _legend, ("p95", "call"))
