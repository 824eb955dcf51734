"""Measurement of the compute kernels: for each size and kernel fill, run, check, and time interleaved with a copy."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from gradientflow.machine import format_size

from ..core.data import Values
from ..core.device import address, device_facts
from ..core.measure import Samples, fitting_iterations, interleaved
from ..core.peers import Peer
from ..core.session import Observer, Session, Timed
from .check import Trial
from .columns import KernelResult, summarize_kernel
from .contestants import Kernel, active_level, plain_copy, stored
from .device import DeviceKernelBench
from .plan import KernelsPlan, count_of
from .selection import Selection

if TYPE_CHECKING:
    from gradientflow.communicator import Communicator

Block = tuple[int, Kernel | Selection]

_LINE = 64
_SHORTEST = 1e-3  # least seconds of a timed section, which contains several calls if they are shorter
_WARM_UP = 2


class KernelsSession(Session[Block, Timed, KernelResult]):
    """One process measures the kernels; a block is one kernel at one size."""

    def __init__(self, comm: Communicator, plan: KernelsPlan, observe: Observer | None = None) -> None:
        super().__init__(comm, plan, observe)
        self.outcome.facts = device_facts(plan.device)
        self._bench: KernelBench | DeviceKernelBench | None = None

    def place(self, block: Block) -> str:
        """Name a size and a kernel."""
        size, kernel = block
        return f"{format_size(size)} {kernel.name} {kernel.dtype}"

    def measure(self, block: Block, peers: Sequence[Peer]) -> None:
        """Measure a kernel, in the same memory as previous kernels of this size."""
        size, kernel = block
        if self._bench is None or self._bench.size != size:
            self._bench = None  # frees its memory
            plan = self.plan
            on_device = plan.device == "cuda"
            self._bench = DeviceKernelBench(plan, size) if on_device else KernelBench(plan, size, active_level())
        seconds = self.plan.seconds / len(self.plan.kernels)
        result = self._bench.measure(kernel, seconds)
        self.outcome.results.append(result)
        if result.wrong:
            where = f"{kernel.name} of {kernel.dtype} at {format_size(size)}"
            self.outcome.remark(f"WRONG: {where}: {result.wrong} wrong elements and sums.")
        self.done += 1


class KernelBench:
    """Measures kernels of one size on one core with a SIMD level, in memory for all kernels of the plan."""

    def __init__(self, plan: KernelsPlan, size: int, level: str) -> None:
        self.size = size
        self._count = count_of(size)
        self._level = level
        self._arrays = [_memory(size) for _ in range(max(len(kernel.arrays) for kernel in plan.kernels))]
        half = max(kernel.moved for kernel in plan.kernels) * self._count // 2
        self._copies = _memory(half), _memory(half)

    def measure(self, kernel: Kernel | Selection, seconds: float) -> KernelResult:
        """Check a kernel on fresh random data, then time it for about `seconds`, beside a copy of as many bytes."""
        views = {
            name: memory[: self._count * stored_item.itemsize].view(stored_item)
            for (name, stored_item), memory in zip(_storage(kernel).items(), self._arrays, strict=False)
        }
        addresses = [address(view) for view in views.values()]

        def call() -> Any:
            return kernel.call(self._level, addresses, self._count)

        wrong = kernel.check(views, call) if isinstance(kernel, Selection) else self._check(kernel, views, call)
        half = kernel.moved * self._count // 2
        target, source = (address(memory) for memory in self._copies)
        contestants = call, lambda: plain_copy(self._level, target, source, half)
        times = np.zeros((2, 0), np.int64) if wrong else take_times(contestants, seconds)
        return summarize_kernel(kernel, self._level, self.size, self._count, wrong, times)

    def _check(self, kernel: Kernel, views: Mapping[str, Values], call: Callable[[], float | None]) -> int:
        """Run a kernel on fresh values and count wrong elements."""
        trial = Trial(kernel, self._count)
        for name, view in views.items():
            trial.fill(name, view)
        wrong = int(trial.is_wrong(call()))
        return wrong + sum(trial.differing(name, view) for name, view in views.items())


def take_times(contestants: Sequence[Callable[[], object]], seconds: float) -> Samples:
    """Time calls for about `seconds`; give nanoseconds of a call, [contestant, iteration]."""
    for contestant in contestants:
        for _ in range(_WARM_UP):
            contestant()
    start = time.perf_counter()
    for contestant in contestants:
        contestant()
    round_seconds = time.perf_counter() - start
    repeats = max(int(_SHORTEST * len(contestants) / max(round_seconds, 1e-9)), 1)
    iterations = fitting_iterations(seconds, round_seconds * repeats)

    def taken(contestant: Callable[[], object]) -> int:
        begin = time.perf_counter_ns()
        for _ in range(repeats):
            contestant()
        return (time.perf_counter_ns() - begin) // repeats

    collected = gc.isenabled()
    gc.disable()
    try:
        return interleaved([partial(taken, contestant) for contestant in contestants], iterations)
    finally:
        if collected:
            gc.enable()


def _storage(kernel: Kernel | Selection) -> dict[str, np.dtype[np.generic]]:
    """Give the storage dtypes of a kernel's arrays."""
    return {name: stored(np.zeros(1, np.float32), dtype).dtype for name, dtype in kernel.arrays.items()}


def _memory(size: int) -> Values:
    """Allocate memory that begins at a cache line, and write to it, so that its pages exist."""
    raw = np.zeros(size + _LINE, np.uint8)
    raw.fill(1)
    start = -address(raw) % _LINE
    return raw[start : start + size]
