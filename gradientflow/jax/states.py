"""States of a strategy in the form that compiled programs hold: arrays of fixed shapes in XLA's memory."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from functools import cached_property

import numpy as np

from gradientflow._location import core
from gradientflow.annotations import StateDict
from gradientflow.config import settings as settings_of
from gradientflow.strategies import Layout, Strategy
from gradientflow.training.alone import alone

from .packing import pack, padded, room_for, unpack

TOKEN = 5  # length in uint32 numbers: see kernels/jax/ffi/token.hpp

Array = np.ndarray


class StateFormat:
    """The states of a strategy for gradients of one layout.

    Parameters
    ----------
    strategy : Strategy
        The strategy that averages gradients.
    layout : Layout
        Layout of the gradients.

    Attributes
    ----------
    hash : int
        Hash of strategy and layout, in the token of each state.
    made : int
        Number of states made; the next state gets the number after it.
    """

    def __init__(self, strategy: Strategy, layout: Layout) -> None:
        self._strategy = strategy
        self._layout = layout
        self.made = 0
        self.hash = zlib.crc32(repr((strategy.name, layout.names, layout.shapes, layout.dtypes)).encode())

    @property
    def next_token(self) -> Array:
        """The token of the next state, before its first call."""
        return np.array([0, self.hash, 0, 0, self.made + 1], np.uint32)

    @cached_property
    def first(self) -> tuple[list[Array], Array]:
        """The first content of a state, beside its token: arrays and text."""
        with alone(settings_of(None)) as comm:
            synchronizer = self._strategy.bind(comm, self._layout)
            arrays, text = pack(synchronizer.state_dict())
            synchronizer.close()
        room = room_for(text, len(self._layout)) if text != b"{}" else 0
        return arrays, np.frombuffer(padded(text, room) if room else b"", np.uint8)

    @cached_property
    def sizes(self) -> list[int]:
        """The bytes of each array, and of the text."""
        arrays, text = self.first
        return [each.nbytes for each in (*arrays, text)]

    def read(self, addresses: Sequence[int], like: Mapping[str, object]) -> StateDict:
        """Return the state at these addresses; `like` is a state of the same synchronizer."""
        arrays, text = self.first
        arrays, text = [np.empty_like(each) for each in arrays], np.empty_like(text)
        core.jax.copy(addresses, [each.ctypes.data for each in (*arrays, text)], self.sizes)
        return unpack(arrays, text.tobytes(), like)

    def write(self, state: Mapping[str, object], addresses: Sequence[int]) -> None:
        """Write a state to addresses."""
        arrays, text = pack(state)
        stored = [*arrays, np.frombuffer(padded(text, self.sizes[-1]), np.uint8)]
        core.jax.copy([each.ctypes.data for each in stored], addresses, self.sizes)


__all__ = ["TOKEN", "StateFormat"]
