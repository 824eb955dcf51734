"""The exchange of gradients by a strategy, as compiled programs call it: with addresses of XLA's buffers."""

from __future__ import annotations

import secrets
import zlib
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import cached_property
from threading import Lock
from typing import Any, cast
from weakref import WeakMethod

import numpy as np
import numpy.typing as npt

from gradientflow._location import load_core
from gradientflow.agreement import require_same
from gradientflow.communicator import Communicator
from gradientflow.config import settings as settings_of
from gradientflow.errors import ArgumentError, ClosedError, MismatchError, NonFiniteError
from gradientflow.memory import itemsize
from gradientflow.strategies import Layout, Settings, Strategy, Synchronizer
from gradientflow.strategies.exchange.pooled import PoolStrategy
from gradientflow.strategies.update import Iteration
from gradientflow.training.alone import alone
from gradientflow.training.binding import bind_together
from gradientflow.training.tensors import Tensors

from .packing import pack, padded, room_for, unpack

# Bytes from which on a gradient is averaged by a call of its own, where XLA has put it. Below, a copy costs little.
_LARGE = 1 << 18
TOKEN = 4  # numbers of uint32: see kernels/jax/ffi/token.hpp

Array = npt.NDArray[Any]

# There is no optimizer to ask. Only csc does, for the factor by which residuals decay, unless it has one itself: they
# stay as they are.
_SETTINGS = Settings(rate=1.0, momentum=1.0)


class Exchange:
    """The exchange of gradients of one layout by a strategy.

    Nothing is made before the first call: by then all ranks call, and a program may be traced on one rank only.

    Parameters
    ----------
    strategy : Strategy
        How gradients are averaged.
    layout : Layout
        Of the gradients.
    comm : callable
        Returns the communicator.
    place : int
        Of the transformation among those of the program, in the order in which they were made.

    Attributes
    ----------
    number : int
        The number that programs have for it.
    hash : int
        A hash of what a state belongs to, in its token.
    """

    def __init__(self, strategy: Strategy, layout: Layout, comm: Callable[[], Communicator], place: int) -> None:
        self.strategy = strategy
        self.layout = layout
        self._comm = comm
        self._place = place
        run = WeakMethod(self._run)  # the native exchange, which this one has, must not keep it alive
        self._native = load_core().jax.Exchange(lambda *addresses: _alive(run)(*addresses))
        self.number: int = self._native.number
        self.hash = zlib.crc32(repr((strategy.name, layout.names, layout.shapes, layout.dtypes)).encode())
        self._nonce = np.frombuffer(secrets.token_bytes(8), np.uint64).copy()  # another one for each state it gives
        self._given: bytes | None = None  # the last token of a state that is the synchronizer's own
        self._bound: Synchronizer | None = None
        self._lock = Lock()  # threads of XLA's may run two programs at once
        self._kept: object = None  # what the native exchange uses
        self._placed: Any = None  # the gradients of the synchronizer, and where they are
        self._addresses: list[int] = []

    # ---- states --------------------------------------------------------------------------------------------------

    @cached_property
    def first_state(self) -> tuple[Array, list[Array], Array]:
        """The state before the first call: token, arrays and text."""
        token = np.array([0, self.hash, 0, 0], np.uint32)
        with alone(settings_of(None)) as comm:
            synchronizer = self.strategy.bind(comm, self.layout)
            arrays, text = pack(synchronizer.state_dict())
            synchronizer.close()
        room = room_for(text, len(self.layout)) if text != b"{}" else 0
        return token, arrays, np.frombuffer(padded(text, room) if room else b"", np.uint8)

    def _load(self, synchronizer: Synchronizer, token: Array, operands: Sequence[int]) -> None:
        """Load the state of the operands, unless it is the one that the synchronizer has. Collective."""
        if token.tobytes() == self._given:
            return
        if not token[2:].any():  # of init()
            if self._given is not None:
                synchronizer.load_state_dict(None)
            return
        arrays = [np.empty_like(each) for each in self.first_state[1]]
        text = np.empty_like(self.first_state[2])
        load_core().jax.copy(operands, [each.ctypes.data for each in (*arrays, text)], self._state_bytes)
        state = unpack(arrays, text.tobytes(), synchronizer.state_dict())
        synchronizer.check_state_dict(state)
        synchronizer.load_state_dict(state)

    def _save(self, synchronizer: Synchronizer, results: Sequence[int]) -> None:
        arrays, text = pack(synchronizer.state_dict())
        stored = [*arrays, np.frombuffer(padded(text, len(self.first_state[2])), np.uint8)]
        load_core().jax.copy([each.ctypes.data for each in stored], results, self._state_bytes)

    @cached_property
    def _state_bytes(self) -> list[int]:
        _, arrays, text = self.first_state
        return [each.nbytes for each in (*arrays, text)]

    # ---- calls ---------------------------------------------------------------------------------------------------

    @cached_property
    def _gradient_bytes(self) -> list[int]:
        return [count * itemsize(dtype) for count, dtype in zip(self.layout.counts, self.layout.dtypes, strict=True)]

    def _run(self, operands: list[int], results: list[int]) -> bool:
        """Exchange gradients; return False if the native exchange is to do that from now on."""
        with self._lock:
            return self._run_alone(operands, results)

    def _run_alone(self, operands: list[int], results: list[int]) -> bool:
        if self._bound is None:
            self._check_others()
        if self.strategy.is_plain_mean:
            self._prepare_dense(cast("PoolStrategy", self.strategy))
            return False
        if self._bound is None:
            self._bound = self._bind()
        synchronizer = self._bound
        copy = load_core().jax.copy
        token = np.empty(TOKEN, np.uint32)
        copy([operands[0]], [token.ctypes.data], [token.nbytes])
        behind = 1 + len(self.layout)
        count = int(token[0])
        has_state = bool(self._state_bytes[-1])
        if has_state:
            self._load(synchronizer, token, operands[behind:])
        self._given = None  # as long as this call has not succeeded
        self._exchange(synchronizer, count, operands[1:behind], results[1:behind])
        token[0] = count + 1
        if has_state:
            self._save(synchronizer, results[behind:])
            self._nonce += 1
            token[2:] = self._nonce.view(np.uint32)
            self._given = token.tobytes()
        copy([token.ctypes.data], [results[0]], [token.nbytes])
        return True

    def _check_others(self) -> None:
        """Raise on all ranks unless each makes this first call with this strategy. Collective.

        Threads may begin in another order.
        """
        comm = self._comm()
        places = comm.allgather(np.array([self._place])).ravel().tolist()
        if len(set(places)) > 1:
            message = (
                f"the ranks call different transformations of gradientflow.jax.average for the first time, number "
                f"{', '.join(map(str, places))} of those that each has made: make them in the same order on all ranks, "
                "and their first calls, too"
            )
            raise MismatchError(message)
        require_same(comm, "strategies", {"strategy": repr(self.strategy)})

    def _exchange(self, synchronizer: Synchronizer, count: int, gradients: Sequence[int], means: Sequence[int]) -> None:
        core = load_core().jax
        try:
            synchronizer.begin(Iteration(lambda _: _SETTINGS))
            core.write_marks(count, synchronizer.extra)
            if synchronizer.gradient_source.startswith("elsewhere"):
                for index, address in enumerate(gradients):
                    synchronizer.ready(index, None, address)
            else:
                core.copy(gradients, self._places(), self._gradient_bytes)
                for index in range(len(gradients)):
                    synchronizer.ready(index)
            synchronizer.flush()
            synchronizer.wait()
        except NonFiniteError:  # on all ranks, which have ended the iteration
            raise
        except BaseException:
            synchronizer.abandon()
            raise
        core.check_marks(count, synchronizer.extra)
        core.copy(self._places(), means, self._gradient_bytes)
        synchronizer.after_step()

    def _places(self) -> list[int]:
        """Return the addresses of the gradients in the synchronizer, which may bind pools anew."""
        assert self._bound is not None
        gradients = self._bound.gradients
        if self._placed is not gradients:
            self._placed, self._addresses = gradients, [each.ctypes.data for each in gradients]
        return self._addresses

    def _bind(self) -> Synchronizer:
        """Bind the strategy to the tensors. Collective."""
        layout = replace(self.layout, extra=load_core().jax.marks_needed())
        return bind_together(self.strategy, self._comm(), layout, cast("Tensors", _Streams()))

    def _prepare_dense(self, strategy: PoolStrategy) -> None:
        """Make what averages all gradients without Python. Collective."""
        core, layout, comm = load_core().jax, self.layout, self._comm()
        places: list[tuple[int | None, int, str, str | None]] = [
            (None, 0, name, strategy.wire_of(dtype)) for name, dtype in zip(layout.names, layout.dtypes, strict=True)
        ]
        pools: list[Any] = []
        for dtype, indices in layout.groups:
            small = [index for index in indices if self._gradient_bytes[index] < _LARGE]
            if not small:
                continue
            for place, index in enumerate(small):
                places[index] = (len(pools), place, layout.names[index], None)
            extra = 1 if pools else core.marks_needed()
            pools.append(strategy.make_pool(comm, [layout.shapes[index] for index in small], dtype, extra=extra))
        large = comm._own_part(0)  # so that these calls and the program's own do not mix
        self._native.use_dense(large._native, strategy.algorithm, [pool._native for pool in pools], places)
        self._kept = (large, pools)


def _alive(method: WeakMethod[Callable[..., bool]]) -> Callable[..., bool]:
    found = method()
    if found is None:
        message = "the transformation with which the program was compiled is gone"
        raise ClosedError(message)
    return found


class _Streams:
    """What binding needs of an adapter's tensors."""

    def default_stream(self) -> AbstractContextManager[object]:
        return nullcontext()


def check_strategy(strategy: Strategy) -> None:
    """Raise unless a strategy averages gradients in every step, and nothing else.

    Raises
    ------
    gradientflow.errors.ArgumentError
        If it writes weights, or shares them.
    """
    if strategy.gradients != "mean":
        message = (
            f"{strategy!r} writes weights itself, and inside of jax.jit they cannot be changed: "
            "use gradientflow.training.ArrayLoop outside of it, as docs/examples/train_jax_local_sgd.py does"
        )
        raise ArgumentError(message)
    if getattr(strategy, "share", None) is not None:
        message = f"{strategy!r}: arrays of JAX stay where they are, and only gradientflow.torch shares weights"
        raise ArgumentError(message)


__all__ = ["TOKEN", "Exchange", "check_strategy"]
