"""Short ways into the core, for methods whose usual calls need not pass through Python.

A method of a class, which hands on to `self._native`, stays the definition: its signature, its documentation, and what
runs for every call that is not as usual. Where the core has a short way for it (``bindings/short_way.hpp``), that
stands in its place once the core is loaded, unless a program has put something else there.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

_Method = TypeVar("_Method", bound=Callable[..., Any])

_definitions: set[Any] = set()


def has_short_way(method: _Method) -> _Method:
    """Mark a method for which the core has a short way."""
    _definitions.add(method)
    return method


def take_short_ways(cls: type, native: Any) -> None:
    """Put the core's short ways before the methods of a class, where these are still the library's own.

    Parameters
    ----------
    cls : type
        Whose instances have objects of `native` as `_native`.
    native : type
        A class of the core.
    """
    for name, way in native.short_ways.items():
        method = getattr(cls, name)
        if method in _definitions:
            way.__wrapped__ = method
            setattr(cls, name, way)
