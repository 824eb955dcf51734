"""CUDA tensors for synchronizers in memory of the host: gradients are copied to the host, and weights to the device."""

from __future__ import annotations

import ctypes
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from operator import attrgetter
from typing import Any

import numpy as np
import numpy.typing as npt

from gradientflow import device
from gradientflow._location import core
from gradientflow.annotations import StateDict, Stream, TensorLike
from gradientflow.communicator import Communicator
from gradientflow.errors import ArgumentError
from gradientflow.memory import aligned_offsets, itemsize
from gradientflow.strategies.contract import Strategy, Synchronizer
from gradientflow.strategies.layout import Layout
from gradientflow.strategies.update import Iteration, Phase, Update

_DEFAULT_STREAM = 0
_PAGE = 4096  # bytes


def bind(strategy: Strategy, comm: Communicator, layout: Layout) -> Synchronizer:
    """Bind a strategy. If it works on the host and the tensors are on a CUDA device, stage it. Collective."""
    if layout.device != "cpu" and not strategy.on_device:
        return StagedSynchronizer(comm, layout, strategy)
    return strategy.bind(comm, layout)


class StagedSynchronizer(Synchronizer):
    """A link between tensors of a device and a synchronizer on the host.

    Gradients are copied to pinned memory of the host on a separate stream. The copy waits for the work that is in the
    stream when `ready` is called, and runs in parallel with later work. Gradients are handed over in the order of
    `ready`, by the first call that finds their copies complete; `flush` waits for the last copy. Means are copied back
    to the device, and so are weights that may have been written.

    Weights are copied to the host before the host's synchronizer reads them. If the strategy makes the step, they are
    copied before the first gradient of every iteration, on the same stream. If an optimizer makes the step, they are
    copied when weights are exchanged.

    Outside of `ready`, `flush` and `wait`, copies are ordered with the default stream.

    Attributes
    ----------
    host : Synchronizer
        The synchronizer that does the work.
    """

    host: TensorLike

    def __init__(self, comm: Communicator, layout: Layout, strategy: Strategy) -> None:
        super().__init__(comm, layout, strategy)
        self._core = core.device
        self._device = device.device_number(layout.device)
        self._copies = self._core.CopyStream(self._device)
        self._memory: list[device.DeviceArray] = []
        self._pinned: list[object] = []
        self.weights = list(layout.weights) if strategy.gradients != "mean" else []
        self._mirrors = self._make_mirrors() if self.weights else []
        self._take_weights(_DEFAULT_STREAM)
        mirrors = _NoWeights() if strategy.gradients == "mean" else tuple(self._mirrors)
        self.host = strategy.bind(comm, replace(layout, device="cpu", weights=mirrors))
        self.extra = self.host.extra
        self.uses_backward_order = self.host.uses_backward_order
        self._reads_gradients = self.host.gradient_source != "none"
        try:
            self._lay_out()
        except BaseException:
            self.host.close(orderly=False)
            raise
        self._takes_weights = True  # True until a step is made: every iteration then copies weights to the host
        self._phase = Phase.IDLE  # IDLE, HANDING_OVER or HANDED_OVER
        self._queue: deque[tuple[int | None, TensorLike]] = deque()  # gradients on their way to the host; None: weights
        self._is_ready: set[int] = set()

    def _make_mirrors(self) -> list[np.ndarray]:
        """Make places on the host for the weights: float32 for 16-bit weights, like their master weights."""
        sizes = [count * itemsize(dtype) for count, dtype in zip(self.layout.counts, self._kinds, strict=True)]
        offsets = aligned_offsets(sizes)
        memory = _pages(offsets[-1])
        self._pin(memory)
        return [
            memory[begin : begin + size].view(dtype)
            for begin, size, dtype in zip(offsets[:-1], sizes, self._kinds, strict=True)
        ]

    @property
    def _kinds(self) -> list[str]:
        return ["float64" if dtype == "float64" else "float32" for dtype in self.layout.dtypes]

    def _lay_out(self) -> None:
        """Make places on the device for the gradients, laid out as on the host."""
        self._copies_to_host = [(0, 0, 0)] * len(self.layout)  # destination, source, bytes
        for index, mirror in enumerate(self._mirrors):
            self.host.weights[index] = mirror  # master weights in place of 16-bit weights
        for group, (dtype, indices) in enumerate(self.layout.groups):
            below, offsets = self.host.memory(group), self.host.offsets(group)
            above = device.empty(below.nbytes, "uint8", self._device)
            self._pin(below)
            self._memory.append(above)
            for index, offset in zip(indices, offsets, strict=True):
                nbytes = self.layout.counts[index] * itemsize(dtype)
                self._copies_to_host[index] = below.ctypes.data + offset, above._address + offset, nbytes

    def _pin(self, memory: npt.NDArray[np.uint8]) -> None:
        self._pinned.append(self._core.pin(memory.ctypes.data, memory.nbytes))

    def __getattr__(self, name: str) -> Any:
        """Return an attribute of the host's synchronizer that `Synchronizer` lacks."""
        if name == "host":  # not set yet
            raise AttributeError(name)
        return getattr(self.host, name)

    # ---- memory --------------------------------------------------------------------------------------------------

    def memory(self, group: int) -> device.DeviceArray:  # noqa: D102
        return self._memory[group]

    def offsets(self, group: int) -> Sequence[int]:  # noqa: D102
        return self.host.offsets(group)  # type: ignore[no-any-return]

    def zero(self, group: int, stream: Stream = None) -> None:  # noqa: D102
        memory = self._memory[group]
        self._core.clear(self._device, memory._address, memory.nbytes, stream or _DEFAULT_STREAM)

    def _arrays(self, group: int) -> Sequence[object]:
        dtype, indices = self.layout.groups[group]
        return [
            device.DeviceArray(self._memory[group]._owner, offset, self.layout.shapes[index], dtype, self._device)
            for offset, index in zip(self.offsets(group), indices, strict=True)
        ]

    # ---- the moments of an iteration -----------------------------------------------------------------------------

    def set_iteration(self, iteration: Iteration) -> None:  # noqa: D102
        super().set_iteration(iteration)
        self.host.set_iteration(iteration)

    def ready(self, index: int, stream: Stream = None, elsewhere: int | None = None) -> None:  # noqa: D102
        if index in self._is_ready:
            raise ArgumentError(f"the gradient of {self.layout.names[index]} was already ready in this iteration")
        self._begin(stream)
        self._is_ready.add(index)
        if self._reads_gradients or self.skips_nonfinite:
            self._copies.follow(stream or _DEFAULT_STREAM)
            self._copies.copy(*self._copies_to_host[index])
        self._queue.append((index, self._copies.mark()))
        while self._queue and self._queue[0][1].happened:
            self._hand_over()

    def flush(self, stream: object = None) -> None:  # noqa: D102
        self._begin(stream)
        for index, (below, _, nbytes) in enumerate(self._copies_to_host):
            if index not in self._is_ready:
                ctypes.memset(below, 0, nbytes)
        while self._queue:
            self._queue[0][1].wait()
            self._hand_over()
        self._phase = Phase.HANDED_OVER
        self.host.flush()

    def wait(self, stream: Stream = None) -> Update:  # noqa: D102
        if self._phase is not Phase.HANDED_OVER:
            self.flush(stream)
        self._end()
        gives = self.strategy.gradients == "consumed"
        with self._giving_weights(stream or _DEFAULT_STREAM) if gives else nullcontext():
            update = self.host.wait()
        if update.kind != "apply":
            return update  # type: ignore[no-any-return]
        if self._reads_gradients:  # the host may have changed them
            self._copies.follow(stream or _DEFAULT_STREAM)
            for below, above, nbytes in self._copies_to_host:
                self._copies.copy(above, below, nbytes)
            self._copies.hold(stream or _DEFAULT_STREAM)
        return self.update()

    def update(self) -> Update:  # noqa: D102
        native = core.Update
        groups = enumerate(self.layout.groups)
        return Update("apply", tuple(native(self._memory[g], dtype, self.offsets(g)) for g, (dtype, _) in groups))

    def after_step(self) -> None:  # noqa: D102
        self._takes_weights = False
        if not (self.weights and self.host.exchanges_weights()):
            self.host.after_step()
            return
        if self.strategy.gradients == "local":
            self._take_weights(_DEFAULT_STREAM)
        with self._giving_weights():
            self.host.after_step()

    def rollback(self, phase: Phase, stream: object = None) -> None:  # noqa: D102
        if phase is not Phase.AVERAGED:
            self._copies.wait()
            if self._queue and self._queue[0][0] is None:
                self._hand_over()
            self._end()
        self.host.rollback(phase)

    def finish(self) -> None:  # noqa: D102
        self._take_weights_to_change(_DEFAULT_STREAM)
        with self._giving_weights():
            self.host.finish()

    def close(self, orderly: bool = True) -> None:  # noqa: D102
        try:
            self._copies.wait()
        finally:
            self._pinned.clear()
            self.host.close(orderly)

    @contextmanager
    def common_weights(self) -> Iterator[None]:  # noqa: D102
        self._take_weights_to_change(_DEFAULT_STREAM)
        with self._giving_weights(), self.host.common_weights():
            self._give_weights()
            yield

    def _begin(self, stream: Stream) -> None:
        """Begin the iteration on the host, once the weights that it needs have been copied there."""
        if self._phase is not Phase.IDLE:
            return
        self._phase = Phase.HANDING_OVER
        if self._takes_weights or self.strategy.gradients == "consumed":
            self._check_weights()
            self._send_weights_down(stream or _DEFAULT_STREAM)
        self._queue.append((None, self._copies.mark()))

    def _hand_over(self) -> None:
        index, _ = self._queue.popleft()
        if index is None:
            self.host.begin(Iteration(self.settings, self.loss_scale, self.skips_nonfinite))
        else:
            self.host.ready(index)

    def _end(self) -> None:
        self._queue.clear()
        self._is_ready.clear()
        self._phase = Phase.IDLE

    # ---- weights -------------------------------------------------------------------------------------------------

    def _take_weights_to_change(self, stream: int) -> None:
        self._check_weights()
        self._take_weights(stream)

    def _check_weights(self) -> None:
        for name, weight in zip(self.layout.names, self.weights, strict=False):
            _, dtype = self._core.place_of(weight)
            if "16" in dtype:
                raise ArgumentError(
                    f"{self.strategy.name} changes weights of float32, and {name} on a CUDA device is {dtype}: use "
                    "master weights, which the optimizers of the core have"
                )

    def _take_weights(self, stream: int) -> None:
        """Copy the weights to the host, after the work in the stream, and wait; 16-bit weights become float32."""
        rounded = self._send_weights_down(stream)
        self._copies.wait()
        for index, (bits, dtype) in rounded.items():
            if dtype == "float16":
                self._mirrors[index][...] = bits.view(np.float16)
            else:
                self._mirrors[index].view(np.uint32)[...] = bits.astype(np.uint32) << 16

    def _send_weights_down(self, stream: int) -> dict[int, tuple[npt.NDArray[np.uint16], str]]:
        """Start copying the weights to the host; return 16-bit weights, as bits, with their dtypes."""
        rounded = {}
        self._copies.follow(stream)
        for index, (weight, mirror) in enumerate(zip(self.weights, self._mirrors, strict=True)):
            address, dtype = self._core.place_of(weight)
            below: np.ndarray = mirror
            if "16" in dtype:
                below = np.empty(len(mirror), np.uint16)
                rounded[index] = below, dtype
            self._copies.copy(below.ctypes.data, address, below.nbytes)
        return rounded

    @contextmanager
    def _giving_weights(self, stream: int = _DEFAULT_STREAM) -> Iterator[None]:
        """Copy weights to the device after a ``with`` block that may write them, even if it fails."""
        try:
            yield
        finally:
            self._give_weights(stream)

    def _give_weights(self, stream: int = _DEFAULT_STREAM) -> None:
        """Copy the weights to the device, in the order of a stream."""
        self._copies.follow(stream)
        for weight, mirror in zip(self.weights, self._mirrors, strict=True):
            address, dtype = self._core.place_of(weight)
            if "16" not in dtype:
                self._copies.copy(address, mirror.ctypes.data, mirror.nbytes)
        self._copies.hold(stream)

    # ---- state ---------------------------------------------------------------------------------------------------

    def state_dict(self) -> StateDict:  # noqa: D102
        self._take_weights_to_save()
        return self.host.state_dict()  # type: ignore[no-any-return]

    def consolidated_state_dict(self) -> StateDict:  # noqa: D102
        self._take_weights_to_save()
        return self.host.consolidated_state_dict()  # type: ignore[no-any-return]

    def _take_weights_to_save(self) -> None:
        """Take the weights that the optimizer or the user has changed; within an iteration the host may change them."""
        if self.weights and (self.strategy.gradients == "local" or self._phase is Phase.IDLE):
            self._take_weights(_DEFAULT_STREAM)

    def load_state_dict(self, state: Mapping[str, object] | None) -> None:  # noqa: D102
        self._take_weights(_DEFAULT_STREAM)
        with self._giving_weights():
            self.host.load_state_dict(state)
        self._takes_weights = True

    def take_over(self, other: Synchronizer) -> None:  # noqa: D102
        assert isinstance(other, StagedSynchronizer)
        other._take_weights_to_change(_DEFAULT_STREAM)
        with other._giving_weights():  # the host may apply pending exchanges
            self.host.take_over(other.host)
        self._take_weights(_DEFAULT_STREAM)


# Methods and properties taken from the synchronizer on the host.
for _name in (
    *("check_complete", "check_settings", "check_state_dict", "check_change", "summary", "has_state", "has_gradient"),
    *("takes_residuals", "take_residuals", "take_momentum"),
    *("report", "reports", "bytes_sent", "take_pending_error"),
):
    setattr(StagedSynchronizer, _name, property(attrgetter(f"host.{_name}")))


class _NoWeights(tuple[TensorLike, ...]):
    """The weights in the layout of a strategy that writes none. They are not copied; reading them is an error."""

    def __iter__(self) -> Iterator[TensorLike]:
        raise ArgumentError(
            "weights on a CUDA device are copied to the host for strategies that write them, whose gradients are "
            "'local' or 'consumed'; this one has none"
        )


def _pages(nbytes: int) -> npt.NDArray[np.uint8]:
    """Return zero-filled memory that shares no page with other memory, so that it can be pinned."""
    whole = -(-nbytes // _PAGE) * _PAGE
    memory = np.zeros(whole + _PAGE, np.uint8)
    begin = -memory.ctypes.data % _PAGE
    return memory[begin : begin + whole]


__all__ = ["StagedSynchronizer", "bind"]
