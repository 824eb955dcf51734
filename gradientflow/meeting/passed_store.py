"""Adapter of the program's stores, such as PyTorch's, to stores of the core."""

from __future__ import annotations

from gradientflow._location import core
from gradientflow.errors import ArgumentTypeError

from .variables import join_address

_NEEDED = ("set", "add", "compare_set")


def core_store(store: object, *, serve: bool) -> core.Store:
    """Return a store of the core that uses the given store; a store of the core is returned as it is.

    Parameters
    ----------
    store : object
        Has ``set(key, value)``, ``add(key, amount)``, ``compare_set(key, expected, desired)`` and, optionally,
        ``delete_key(key)``, like PyTorch's stores. Values are bytes; an empty `expected` means that the key has no
        value yet.
    serve : bool
        True if the store may end with this process.

    Raises
    ------
    gradientflow.errors.ArgumentTypeError
        If the store lacks a required method.
    """
    if isinstance(store, core.Store):
        return store
    if missing := [name for name in _NEEDED if not callable(getattr(store, name, None))]:
        raise ArgumentTypeError(
            f"a store has {', '.join(_NEEDED)}, as PyTorch's have them; this {type(store).__name__} has no "
            f"{' and no '.join(missing)}"
        )
    address = address_of_store(store)
    return core.PythonStore(store, f"the {type(_inner(store)).__name__}{address and f' at {address}'}", serve)


def address_of_store(store: object) -> str:
    """Return a store's address, such as that of PyTorch's TCP store, as ``host:port``; empty if it has none."""
    host, port = (getattr(_inner(store), name, None) for name in ("host", "port"))
    return join_address(host, port) if isinstance(host, str) and isinstance(port, int) else ""


def _inner(store: object) -> object:
    """Return the store below stores that only add a prefix to the keys."""
    while (below := getattr(store, "underlying_store", None)) is not None:
        store = below
    return store
