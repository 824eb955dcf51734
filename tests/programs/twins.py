"""A pool on the host and one on a CUDA device, with the same gradients."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from support import RANK, BFloat16, narrow

import gradientflow as gf
from gradientflow import _core, device

DEVICES = _core.device.count()
DEVICE = RANK % DEVICES
SHAPES: list[Any] = [(30, 20), 7, (0,), (20, 101), 16, (1501,), (2, 3)]
STREAMS = 3


def stored(values: np.ndarray, dtype: str) -> np.ndarray:
    """Return values as they are stored in `dtype`: its bits, for bfloat16."""
    return narrow(values.astype(np.float32)) if dtype == "bfloat16" else values.astype(dtype)


class OnDevice:
    """Stored values in memory of the device, and what the library takes for them."""

    def __init__(self, values: np.ndarray, dtype: str) -> None:
        self._dtype = values.dtype.name
        self.array = device.asarray(values, DEVICE)
        self.array.dtype = dtype

    def get(self) -> np.ndarray:
        raw: np.ndarray = device.DeviceArray(self.array._owner, 0, (self.array.nbytes,), "uint8", DEVICE).get()
        return raw.view(self._dtype)


class Twins:
    """A pool on the host and one on the device, with the same gradients, and an optimizer on each."""

    def __init__(
        self,
        comm: gf.Communicator,
        dtype: str,
        pool: dict[str, Any],
        *,
        lars: bool = False,
        weights: str = "float32",
        **optimizer: Any,
    ) -> None:
        self.dtype = dtype
        kind: Any = gf.SparseGradientPool if "density" in pool else gf.GradientPool
        kind = gf.TopKGradientPool if "ratios" in pool else kind
        self.pools: list[Any] = [kind(comm, SHAPES, dtype, **pool, device=where) for where in ("cpu", DEVICE)]
        random = np.random.default_rng(5)
        first = [stored(random.standard_normal(math.prod(shape)), weights) for shape in self.pools[0].shapes]
        self.weights = [each.copy() for each in first]
        self.on_device = [OnDevice(each, weights) for each in first]
        make = gf.optimizers.LARS if lars else gf.optimizers.SGD
        taken: list[list[Any]] = [
            [BFloat16(each) if weights == "bfloat16" else each for each in self.weights],
            [each.array for each in self.on_device],
        ]
        self.optimizers = [make(each, its, **optimizer) for each, its in zip(self.pools, taken, strict=True)]
        self.source = device.empty(self.pools[0].nbytes, "uint8", DEVICE)
        self.elsewhere = device.empty(1, device=DEVICE)
        self._streams = [_core.device.CopyStream(DEVICE) for _ in range(STREAMS - 1)]
        self.streams = [0, *(stream.address for stream in self._streams)]

    def close(self) -> None:
        for pool in self.pools:
            pool.close()

    def keep_busy(self, stream: int) -> None:
        for _ in range(100):
            _core.device.copy(DEVICE, self.elsewhere._address, self.source._address, 4, stream)

    def put(self, index: int, stream: int) -> None:
        """Write a tensor of the device as it was drawn."""
        host, on_device = self.pools
        begin, size = host.offsets[index], math.prod(host.shapes[index]) * (4 if self.dtype == "float32" else 2)
        _core.device.copy(DEVICE, on_device.memory._address + begin, self.source._address + begin, size, stream)

    def write(self, seed: Sequence[int], factor: float = 1.0, bad: float | None = None) -> list[tuple[int, int]]:
        """Draw gradients of this rank; on the device they are written in several streams, which come back by tensor."""
        random = np.random.default_rng([*seed, RANK])
        host = self.pools[0]
        drawn = []
        for index in random.permutation(len(SHAPES)).tolist():
            values = random.standard_normal(math.prod(host.shapes[index])) * factor * 2.0 ** random.integers(-3, 4)
            if bad is not None and index == 3:
                values[77] = bad
            raw = stored(values, self.dtype).view(np.uint8)
            host.memory[host.offsets[index] :][: raw.size] = raw
            drawn.append((index, self.streams[random.integers(STREAMS)]))
        self.source.set(host.memory)
        for index, stream in drawn:
            self.put(index, stream)
        return drawn

    def ready(self, written: Sequence[tuple[int, int]]) -> None:
        for index, stream in written:
            self.pools[0].ready(index)
            self.pools[1].ready(index, stream)

    def iterate(self, step: int, factor: float = 1.0, bad: float | None = None) -> None:
        """Make an iteration with a step on both; now and then a tensor is not ready, or all are at once."""
        written = self.write([step], factor, bad)
        if step % 5 == 4:  # all in one stream, and at once
            for _, stream in written:
                _core.device.order(DEVICE, stream, self.streams[1])
            self.pools[0].ready()
            self.pools[1].ready(stream=self.streams[1])
        else:
            left_out = [each for each in written if step % 5 == 3 and each[0] == 5]
            self.ready([each for each in written if each not in left_out])
            for _, stream in left_out:  # it counts as zeros, whenever it is written
                _core.device.order(DEVICE, stream, self.streams[2])
        last = self.streams[2]
        self.pools[0].wait()
        self.pools[1].wait(stream=last)
        done = [self.optimizers[0].step(), self.optimizers[1].step(stream=last)]
        assert done[0] == done[1], step
        _core.device.order(DEVICE, last, 0)  # in which values are read, and the next gradients come from
        for stream in self.streams[1:2]:
            _core.device.order(DEVICE, last, stream)

    def check(self, what: object) -> None:
        """Everything that can be seen of both is the same."""
        host, on_device = self.pools
        assert np.array_equal(host.memory, on_device.memory.get()), (what, "gradients")
        for mine, other in zip(self.weights, self.on_device, strict=True):
            assert mine.tobytes() == other.get().tobytes(), (what, "weights")
        states = [optimizer.state_dict() for optimizer in self.optimizers]
        for name in ("momentum", "master"):
            for left, right in zip(states[0][name], states[1][name], strict=True):
                assert np.array_equal(left, right, equal_nan=True), (what, name)
        if not isinstance(host, gf.GradientPool):
            self.check_kept(what)

    def check_kept(self, what: object) -> None:
        host, on_device = self.pools
        is_top_k = isinstance(host, gf.TopKGradientPool)
        for name in ("spans", "extra", *(() if is_top_k else ("norms", "important", "sent"))):
            left, right = getattr(host, name), getattr(on_device, name)
            assert np.array_equal(left, right, equal_nan=name == "norms"), (what, name, left, right)
        for name in ("residuals", "velocities") if is_top_k else ("residuals",):
            for left, right in zip(getattr(host, name), getattr(on_device, name), strict=True):
                assert left.tobytes() == right.tobytes(), (what, name)
        if is_top_k:
            reports = [
                [each._replace(select_seconds=0, ready=None) for each in pool.layer_selections] for pool in self.pools
            ]
            assert reports[0] == reports[1], what
        assert host.overflowed == on_device.overflowed
        assert host.nonfinite_tensors == on_device.nonfinite_tensors
