"""Selection of the largest entries for ``gradientflow bench kernels``, compared with NumPy and PyTorch.

NumPy and PyTorch take the magnitudes and return the indices of the largest. The kernel adds gradient and residual,
finds the largest entries, and writes a message with them, the next residual, and zeros to the gradient.
"""

from __future__ import annotations

import ctypes
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from ..core.data import Values
from ..core.native import load_kernels
from .contestants import item_size

if TYPE_CHECKING:
    import torch

    Found: TypeAlias = Values | torch.Tensor | int

GROUP = "selection"
_SHARES = {"0.1 %": 0.001, "1 %": 0.01}
_LEAST_SENT = 0.8  # least share of k that a sampled threshold has to find


@dataclass(frozen=True)
class Selection:
    """A method of finding the largest float32 values.

    Attributes
    ----------
    name : str
        Name of the method, and the number of values to find.
    share : float
        The share of values to find.
    arrays : tuple of str
        Its arrays, in the order of their addresses in `call`.
    moved : int
        Bytes read and written for each element.
    call : callable
        Takes the SIMD level, the addresses of the arrays and the number of elements; gives the indices, or their
        number.
    is_exact : bool
        True if all of the largest values have to be found.
    """

    name: str
    share: float
    arrays: Mapping[str, str]
    moved: int
    call: Callable[[str, Sequence[int], int], Found]
    is_exact: bool = True
    dtype: str = "float32"

    def check(self, views: Mapping[str, Values], run: Callable[[], Found]) -> int:
        """Run it on fresh random values and count wrong results."""
        random = np.random.default_rng(secrets.randbits(48))
        for view in views.values():
            view[...] = random.standard_normal(len(view), np.float32)
        if "magnitude" in views:
            values = views["magnitude"]
            np.abs(values, out=values)
            largest = values[np.asarray(run())]
            return _differing(np.sort(largest), self._largest(values))
        x = views["gradient"] + views["residual"]
        before = views["residual"].copy()
        sent = int(run())
        kept = views["next residual"]
        chosen = np.flatnonzero(kept != x)
        expected = self._largest(np.abs(x))
        wrong = int(np.count_nonzero(views["gradient"])) + _differing(views["residual"], before)
        wrong += int(np.count_nonzero(kept[chosen])) + abs(len(chosen) - sent)
        wrong += _differing(np.sort(np.abs(x[chosen])), expected[len(expected) - sent :])
        return wrong + (sent < len(expected) * (1 if self.is_exact else _LEAST_SENT))

    def _largest(self, magnitudes: Values) -> Values:
        k = _number(self.share, len(magnitudes))
        return np.sort(np.partition(magnitudes, len(magnitudes) - k)[len(magnitudes) - k :])


def _number(share: float, count: int) -> int:
    return max(int(count * share), 1)


def _differing(found: Values, expected: Values) -> int:
    if len(found) != len(expected):
        return max(len(found), len(expected))
    return int(np.count_nonzero(found != expected))


def _values_at(address: int, count: int) -> Values:
    return np.ctypeslib.as_array((ctypes.c_float * count).from_address(address))


@cache
def _block(count: int, k: int) -> object:
    return load_kernels("cpu").block_of(count, k, "float32")


def _ours(how: str, words: str, text: str, share: float) -> Selection:
    def call(level: str, at: Sequence[int], count: int) -> int:
        gradient, residual, next_residual, entries = at
        block = _block(count, _number(share, count))
        places = gradient, "float32", residual, next_residual, 0, 0, block, entries
        return int(load_kernels("cpu").select(level, (*places, how, 1.0, 0.0, True, 0, 0.0))[0])

    arrays = dict.fromkeys(("gradient", "residual", "next residual", "entries"), "float32")
    return Selection(f"select {text} {words}", share, arrays, 4 * item_size("float32"), call, how == "exact")


def _numpy(text: str, share: float) -> Selection:
    def call(level: str, at: Sequence[int], count: int) -> Values:
        k = _number(share, count)
        found: Values = np.argpartition(_values_at(at[0], count), count - k)[count - k :]
        return found

    return Selection(f"numpy.argpartition {text}", share, {"magnitude": "float32"}, item_size("float32"), call)


def _torch(text: str, share: float) -> Selection:
    def call(level: str, at: Sequence[int], count: int) -> torch.Tensor:
        import torch

        torch.set_num_threads(1)
        values = torch.from_numpy(_values_at(at[0], count))
        return torch.topk(values, _number(share, count), sorted=False).indices

    return Selection(f"torch.topk {text}", share, {"magnitude": "float32"}, item_size("float32"), call)


SELECTIONS = tuple(
    selection
    for text, share in _SHARES.items()
    for selection in (
        _ours("sampled", "by a sample", text, share),
        _ours("exact", "exactly", text, share),
        _numpy(text, share),
        *([_torch(text, share)] if find_spec("torch") else []),
    )
)
