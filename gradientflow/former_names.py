"""Former names of the public interface. Each still works, with a `DeprecationWarning` that has the present name."""

from __future__ import annotations

import functools
import sys
import warnings
from collections.abc import Callable
from typing import Any, TypeVar

_Class = TypeVar("_Class", bound=type)

# Present names of attributes, by module and former name.
_NAMES = {
    "gradientflow.pools.top_k": {"LayerReport": "LayerSelection"},
    "gradientflow.strategies": {"MonitorReport": "MonitorTable", "Report": "Withheld"},
}


def names_of(module: str) -> Callable[[str], Any]:
    """Return the ``__getattr__`` of a module, which finds attributes by their former names."""

    def find(name: str) -> Any:
        present = _NAMES[module].get(name)
        if present is None:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        _warn(f"{module}.{name}", present)
        return getattr(sys.modules[module], present)

    return find


class FormerName:
    """The former name of a method or property, in the body of its class.

    Parameters
    ----------
    present : str
        Its present name.
    """

    def __init__(self, present: str) -> None:
        self._present = present

    def __set_name__(self, owner: type, name: str) -> None:  # noqa: D105
        self._name = f"{owner.__name__}.{name}"

    def __get__(self, instance: object, owner: type) -> Any:  # noqa: D105
        _warn(self._name, self._present)
        return getattr(owner if instance is None else instance, self._present)


def takes_former_names(**present: str) -> Callable[[_Class], _Class]:
    """Return a decorator of a class whose constructor takes arguments by their former names, too.

    Parameters
    ----------
    **present : str
        Present names of arguments, by former name.
    """

    def decorate(cls: _Class) -> _Class:
        init = cls.__init__  # type: ignore[misc]

        @functools.wraps(init)
        def __init__(self: object, *args: Any, **arguments: Any) -> None:  # noqa: N807
            for name in present.keys() & arguments:
                _warn(f"{name} of {cls.__name__}", present[name])
                arguments[present[name]] = arguments.pop(name)
            init(self, *args, **arguments)

        cls.__init__ = __init__  # type: ignore[misc]
        return cls

    return decorate


def _warn(name: str, present: str) -> None:
    warnings.warn(f"{name} is called {present} now", DeprecationWarning, stacklevel=3)


__all__ = ["FormerName", "names_of", "takes_former_names"]
