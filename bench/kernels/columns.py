"""The result of ``gradientflow bench kernels``, and the table of results."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from ..core.measure import Samples
from ..core.results import SIZE, TimedResult, gigabytes_per_second, quantiles
from ..core.table import Column, Layout, bandwidth, columns_of, name, ratios_text, shown
from .contestants import Kernel
from .selection import Selection


@dataclass(frozen=True, kw_only=True)
class KernelResult(TimedResult):
    """The figures of a kernel, and of a plain copy of as many bytes; `wrong` counts elements and sums.

    Attributes
    ----------
    kernel, dtype, device, simd : str
        The kernel, the element type of the gradients, the device, and the vector instructions ("none" on a device).
    bytes, elements : int
        The requested size, and the number of gradients.
    bytes_moved : int
        Bytes that a call reads and writes.
    iterations : int
        Timed calls, or timed series of calls if a call is short.
    copy_median_us : float or None
        Time of a copy that reads and writes as many bytes together.
    bandwidth_GBps, copy_GBps : float or None
        Bytes moved over the medians, in 10^9 bytes per second.
    ratio : float or None
        The kernel's bandwidth over that of the copy.
    """

    kernel: str
    dtype: str
    device: str
    simd: str
    bytes: int
    elements: int
    bytes_moved: int
    iterations: int
    copy_median_us: float | None = field(metadata=shown("copy"))
    bandwidth_GBps: float | None = field(metadata=shown("moved", "GB/s", bandwidth))  # noqa: N815 - spelled like the unit
    copy_GBps: float | None = field(metadata=shown("copy", "GB/s", bandwidth))  # noqa: N815 - spelled like the unit
    ratio: float | None = field(metadata=shown("moved / copy"))


def summarize_kernel(
    kernel: Kernel | Selection, simd: str, size: int, count: int, wrong: int, times: Samples, device: str = "cpu"
) -> KernelResult:
    """Make the result of a kernel; `times` has the nanoseconds of its calls and of the copies, in two rows."""
    moved = kernel.moved * count
    calls, copies = (None, None) if wrong else times
    call, copy = quantiles(calls), quantiles(copies)["median_us"]
    return KernelResult(
        kernel=kernel.name,
        dtype=kernel.dtype,
        device=device,
        simd=simd,
        bytes=size,
        elements=count,
        bytes_moved=moved,
        iterations=0 if wrong else times.shape[1],
        **call,
        copy_median_us=copy,
        bandwidth_GBps=gigabytes_per_second(moved, call["median_us"]),
        copy_GBps=gigabytes_per_second(moved, copy),
        ratio=None if wrong else round(copy / call["median_us"], 4),
        wrong=wrong,
    )


def _columns(results: Sequence[KernelResult], with_cpu: bool) -> list[Column]:
    return [
        SIZE,
        name("kernel", "kernel", repeats=False),
        name("gradients", "dtype"),
        *columns_of(KernelResult, results, "median_us", "p95_us", "bandwidth_GBps", "copy_GBps"),
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


LAYOUT = Layout(_columns, lambda result: result.bytes, _legend)
