"""Exchange of gradients by a strategy, called by compiled programs with addresses of XLA's buffers."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import cached_property
from typing import cast
from weakref import WeakMethod

import numpy as np

from gradientflow._location import core
from gradientflow.communicator import Communicator
from gradientflow.errors import ArgumentError, ClosedError, NonFiniteError
from gradientflow.memory import itemsize
from gradientflow.metrics.registry import Values
from gradientflow.metrics.watch import watch
from gradientflow.pools.base import BasePool
from gradientflow.pools.exchange_figures import exchange_figures
from gradientflow.pools.gradient import GradientPool
from gradientflow.strategies import Layout, Settings, Strategy, Synchronizer
from gradientflow.strategies.exchange.pooled import PoolStrategy
from gradientflow.strategies.update import Iteration, Phase
from gradientflow.training.binding import bind_together
from gradientflow.training.tensors import Tensors

from .states import TOKEN, StateFormat

# Least bytes of a gradient that is averaged by a separate call, in XLA's buffer. A smaller gradient is cheap to copy.
_LARGE = 1 << 18
_NONCE = slice(2, 4)  # part of a token: zero in a state of init()
_FRESH = b""  # stands for the token of a state of init()

Array = np.ndarray

# There is no optimizer to ask for its momentum, by which residuals of csc decay. Unless csc itself sets a momentum, its
# residuals do not decay.
_SETTINGS = Settings(rate=1.0, momentum=1.0)


class GradientExchange:
    """Exchange of gradients of one layout by a strategy, for successive calls.

    Parameters
    ----------
    strategy : Strategy
        The strategy that averages gradients.
    layout : Layout
        Layout of the gradients.
    states : StateFormat
        The strategy's states for the layout.
    comm : callable
        Function that makes the communicator, for this exchange only, at the first call. Collective.

    Attributes
    ----------
    native : object
        The object that the core calls.
    """

    def __init__(
        self, strategy: Strategy, layout: Layout, states: StateFormat, comm: Callable[[], Communicator]
    ) -> None:
        self.strategy = strategy
        self.layout = layout
        self._states = states
        self._comm = comm
        self.native = core.jax.Exchange(held_weakly(WeakMethod(self._run)))
        self._nonce = np.frombuffer(secrets.token_bytes(8), np.uint64).copy()  # different for each state returned
        self._loaded: bytes | None = _FRESH  # token of the state in the synchronizer
        self._bound: Synchronizer | None = None
        self._pools: tuple[BasePool, ...] = ()  # pools of dense exchanges
        self._watched_comm: Communicator | None = None
        self._kept: object = None  # objects that the native exchange uses
        self._placed: object = None  # gradients of the synchronizer, whose addresses are in _addresses
        self._addresses: list[int] = []

    def _load(self, synchronizer: Synchronizer, token: Array, operands: Sequence[int]) -> None:
        """Load the state of the operands, unless the synchronizer already has it. Collective."""
        found = token.tobytes() if token[_NONCE].any() else _FRESH
        if found == self._loaded:
            return
        if found == _FRESH:
            synchronizer.load_state_dict(None)
            return
        state = self._states.read(operands, synchronizer.state_dict())
        synchronizer.check_state_dict(state)
        synchronizer.load_state_dict(state)

    @cached_property
    def _gradient_bytes(self) -> list[int]:
        return [count * itemsize(dtype) for count, dtype in zip(self.layout.counts, self.layout.dtypes, strict=True)]

    def _run(self, operands: list[int], results: list[int], refused: bool) -> bool:
        """Exchange gradients. Return False if the native exchange has to make all further exchanges."""
        if self.strategy.is_plain_mean:
            self._prepare_dense(cast("PoolStrategy", self.strategy))
            return False
        if self._bound is None:
            self._bound = self._bind()
            self._watch(self._bound.comm)
        synchronizer = self._bound
        copy = core.jax.copy
        token = np.empty(TOKEN, np.uint32)
        copy([operands[0]], [token.ctypes.data], [token.nbytes])
        behind = 1 + len(self.layout)
        has_state = bool(self._states.sizes[-1])
        if has_state:
            self._load(synchronizer, token, operands[behind:])
        self._loaded = None  # until this call has succeeded
        self._exchange(synchronizer, int(token[0]), refused, operands[1:behind], results[1:behind])
        token[0] += 1
        if has_state:
            self._states.write(synchronizer.state_dict(), results[behind:])
            self._nonce += 1
            token[_NONCE] = self._nonce.view(np.uint32)
            self._loaded = token.tobytes()
        copy([token.ctypes.data], [results[0]], [token.nbytes])
        return True

    def _exchange(
        self,
        synchronizer: Synchronizer,
        count: int,
        refused: bool,
        gradients: Sequence[int],
        means: Sequence[int],
    ) -> None:
        phase = Phase.HANDING_OVER
        try:
            synchronizer.begin(Iteration(lambda _: _SETTINGS))
            core.jax.write_marks(count, refused, synchronizer.extra)
            if synchronizer.gradient_source.startswith("elsewhere"):
                for index, address in enumerate(gradients):
                    synchronizer.ready(index, None, address)
            else:
                core.jax.copy(gradients, self._places(), self._gradient_bytes)
                for index in range(len(gradients)):
                    synchronizer.ready(index)
            synchronizer.flush()
            phase = Phase.WAIT_FAILED
            synchronizer.wait()
        except NonFiniteError:  # raised on all ranks, which have ended the iteration
            raise
        except BaseException:
            synchronizer.rollback(phase)
            raise
        core.jax.check_marks(count, synchronizer.extra)
        core.jax.copy(self._places(), means, self._gradient_bytes)
        synchronizer.after_step()

    def _places(self) -> list[int]:
        """Return the addresses of the gradients in the synchronizer, which may have bound pools again."""
        assert self._bound is not None
        gradients = self._bound.gradients
        if self._placed is not gradients:
            self._placed, self._addresses = gradients, [each.ctypes.data for each in gradients]
        return self._addresses

    def _bind(self) -> Synchronizer:
        """Bind the strategy to the tensors. Collective."""
        layout = replace(self.layout, extra=core.jax.marks_needed())
        return bind_together(self.strategy, self._comm(), layout, cast("Tensors", _Streams()))

    def _prepare_dense(self, strategy: PoolStrategy) -> None:
        """Prepare the pools that average all gradients without Python. Collective."""
        layout, comm = self.layout, self._comm()
        places: list[tuple[int | None, int, str, str | None]] = [
            (None, 0, name, strategy.wire_of(dtype)) for name, dtype in zip(layout.names, layout.dtypes, strict=True)
        ]
        pools: list[GradientPool] = []
        for dtype, indices in layout.groups:
            small = [index for index in indices if self._gradient_bytes[index] < _LARGE]
            if not small:
                continue
            for place, index in enumerate(small):
                places[index] = (len(pools), place, layout.names[index], None)
            extra = 1 if pools else core.jax.marks_needed()
            pool = strategy.make_pool(comm, [layout.shapes[index] for index in small], dtype, extra=extra)
            pools.append(cast("GradientPool", pool))
        self.native.use_dense(comm._native, strategy.algorithm, [pool._native for pool in pools], places)
        self._kept = (comm, pools)
        self._pools = tuple(pools)
        self._watch(comm)

    def _watch(self, comm: Communicator) -> None:
        self._watched_comm = comm
        watch("jax", f"average with {self.strategy.name}", comm, self.metrics, comm)

    def metrics(self) -> Values:
        """Return the metrics of the exchanges so far. Does not communicate; from any thread."""
        comm = self._watched_comm
        if comm is None:
            return {}
        pools = self._pools or getattr(self._bound, "pools", ())
        found: Values = {"gradientflow_participants": float(comm.size)}
        if comm.bytes_sent is not None:
            found["gradientflow_sent_bytes_total"] = float(comm.bytes_sent)
        if pools:
            found["gradientflow_steps_total"] = float(pools[0].iteration)
            reports = [report for pool in pools for report in pool.reports]
            found |= exchange_figures(reports, shares_memory=comm.local_size > 1, has_times=True)
        return found


def held_weakly(method: WeakMethod[Callable[..., object]]) -> Callable[..., object]:
    """Return a function that calls a method. The core holds the function, which must not keep the object alive."""

    def call(*arguments: object) -> object:
        found = method()
        if found is None:
            raise ClosedError("the transformation with which the program was compiled is gone")
        return found(*arguments)

    return call


class _Streams:
    """The part of an adapter's tensors that binding needs."""

    def default_stream(self) -> AbstractContextManager[object]:
        return nullcontext()


def check_strategy(strategy: Strategy) -> None:
    """Raise unless a strategy only averages gradients, in every step.

    Raises
    ------
    gradientflow.errors.ArgumentError
        If the strategy writes or shares weights.
    """
    if strategy.gradients != "mean":
        raise ArgumentError(
            f"{strategy!r} writes weights itself, and inside of jax.jit they cannot be changed: "
            "use gradientflow.training.ArrayLoop outside of it, as docs/examples/train_jax_local_sgd.py does"
        )
    if getattr(strategy, "share", None) is not None:
        message = f"{strategy!r}: arrays of JAX stay where they are, and only gradientflow.torch shares weights"
        raise ArgumentError(message)


__all__ = ["GradientExchange", "check_strategy", "held_weakly"]
