"""Measurement of the compute kernels on a CUDA device: as on the processor, with the device's memory and clock."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from ..core.data import Values
from ..core.device import address, copy, synchronize
from ..core.measure import Samples, fitting_iterations, interleaved
from ..core.native import load_kernels
from .check import Trial
from .columns import KernelResult, summarize_kernel
from .contestants import Kernel, Launch, stored
from .plan import KernelsPlan, count_of

_SHORTEST_US = 4000.0  # least time of a series of launches, since its first launch waits for the host
_WARM_UP = 3


class DeviceKernelBench:
    """Measures kernels of one size on the current device, in memory for all kernels of the plan."""

    def __init__(self, plan: KernelsPlan, size: int) -> None:
        self._cuda = load_kernels("cuda")
        self.size = size
        self._count = count_of(size)
        self._arrays = [self._cuda.Memory(size) for _ in range(max(len(kernel.arrays) for kernel in plan.kernels))]
        half = max(kernel.moved for kernel in plan.kernels) * self._count // 2
        self._copies = self._cuda.Memory(half), self._cuda.Memory(half)

    def measure(self, kernel: Any, seconds: float) -> KernelResult:
        """Check a kernel on fresh random data, then time it for about `seconds`, beside a copy of as many bytes."""
        addresses = [memory.address for memory in self._arrays[: len(kernel.arrays)]]
        launch = kernel.prepare(addresses, self._count)
        wrong = self._check(kernel, addresses, launch)
        target, source = (memory.address for memory in self._copies)
        plain = self._cuda.copy(target, source, kernel.moved * self._count // 2)
        times = np.zeros((2, 0), np.int64) if wrong else take_device_times((launch, plain), seconds)
        return summarize_kernel(kernel, "none", self.size, self._count, wrong, times, "cuda")

    def _check(self, kernel: Kernel, addresses: Sequence[int], launch: Launch) -> int:
        """Run a kernel on fresh values and count wrong elements; the host holds one array at a time."""
        trial = Trial(kernel, self._count)
        for (name, dtype), place in zip(kernel.arrays.items(), addresses, strict=True):
            host = self._host_array(dtype)
            trial.fill(name, host)
            self._copy(place, address(host), host.nbytes)
        numbers = launch.run()
        wrong = int(trial.is_wrong(numbers[0] if numbers else None))
        for (name, dtype), place in zip(kernel.arrays.items(), addresses, strict=True):
            host = self._host_array(dtype)
            self._copy(address(host), place, host.nbytes)
            wrong += trial.differing(name, host)
        return wrong

    def _host_array(self, dtype: str) -> Values:
        return np.empty(self._count, stored(np.zeros(1, np.float32), dtype).dtype)

    def _copy(self, target: int, source: int, size: int) -> None:
        copy(target, source, size)
        synchronize()


def take_device_times(launches: Sequence[Launch], seconds: float) -> Samples:
    """Time launches by the device's clock for about `seconds`; give nanoseconds of a launch, [launch, iteration].

    A sample is the mean of a series that is long enough to hide the latency of its first launch. If launches are
    shorter than the host needs to submit them, the samples include that wait.
    """
    for launch in launches:
        launch.microseconds(_WARM_UP)
    round_us = max(sum(launch.microseconds(_WARM_UP) for launch in launches), 1e-3)
    repeats = max(int(_SHORTEST_US * len(launches) / round_us), 1)

    def taken(launch: Launch) -> int:
        return round(launch.microseconds(repeats) * 1e3)

    iterations = fitting_iterations(seconds, round_us * repeats / 1e6)
    return interleaved([partial(taken, launch) for launch in launches], iterations)
