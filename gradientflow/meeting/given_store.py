"""Stores of the program, such as those of PyTorch, as stores of the core."""

from __future__ import annotations

from typing import Any

from gradientflow._location import load_core
from gradientflow.errors import ArgumentTypeError

from .variables import join_address

_NEEDED = ("set", "add", "compare_set")


def core_store(store: Any, *, serve: bool) -> Any:
    """Return a store of the core through which a given one is used; one of the core itself.

    Parameters
    ----------
    store : object
        Has ``set(key, value)``, ``add(key, amount)`` and ``compare_set(key, expected, desired)``, and perhaps
        ``delete_key(key)``, as PyTorch's stores have them: values are bytes, and no bytes are expected where there is
        to be no value yet.
    serve : bool
        Whether the store may end with this process.

    Raises
    ------
    gradientflow.errors.ArgumentTypeError
        If it has not all of these.
    """
    core = load_core()
    if isinstance(store, core.Store):
        return store
    if missing := [name for name in _NEEDED if not callable(getattr(store, name, None))]:
        raise ArgumentTypeError(
            f"a store has {', '.join(_NEEDED)}, as PyTorch's have them; this {type(store).__name__} has no "
            f"{' and no '.join(missing)}"
        )
    address = address_of_store(store)
    return core.PythonStore(store, f"the {type(_inner(store)).__name__}{address and f' at {address}'}", serve)


def address_of_store(store: Any) -> str:
    """Return the address of a store that has one, such as PyTorch's over TCP, as ``host:port``; else nothing."""
    host, port = (getattr(_inner(store), name, None) for name in ("host", "port"))
    return join_address(host, port) if isinstance(host, str) and isinstance(port, int) else ""


def _inner(store: Any) -> Any:
    """Return what is below stores that only put something before the keys."""
    while (below := getattr(store, "underlying_store", None)) is not None:
        store = below
    return store
