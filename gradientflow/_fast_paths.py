"""Fast paths into the core, for methods whose usual calls need not pass through Python.

A Python method that forwards to `self._native` remains the definition: it has the signature and the documentation, and
serves every unusual call. If the core has a fast path for it (``bindings/fast_path.hpp``), the fast path replaces the
method in its class once the core is loaded, unless a program has already replaced it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

_Method = TypeVar("_Method", bound=Callable[..., object])

_definitions: set[object] = set()


def has_fast_path(method: _Method) -> _Method:
    """Mark a method for which the core has a fast path."""
    _definitions.add(method)
    return method


def take_fast_paths(cls: type, native: Any) -> None:
    """Replace methods of a class by the core's fast paths, except methods that a program has replaced.

    Parameters
    ----------
    cls : type
        The class; its instances keep an object of `native` in `_native`.
    native : type
        The class of the core that has the fast paths.
    """
    for name, path in native.fast_paths.items():
        method = getattr(cls, name)
        if method in _definitions:
            path.__wrapped__ = method
            setattr(cls, name, path)
