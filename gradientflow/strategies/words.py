"""Strategies by their own words: ``csc(density=0.1)``, or ``path/to/mine.py:SignSGD(scale=0.01)``."""

from __future__ import annotations

import ast
import difflib
import hashlib
import importlib.util
import inspect
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from gradientflow.errors import ArgumentError, ArgumentTypeError, GradientFlowError

from .csc import CSC
from .dense import Dense
from .dgc import DGC
from .lags import LAGS
from .random_k import RandomK
from .slgs import SLGS
from .strategy import Strategy
from .top_k import TopK

BY_NAME: Mapping[str, type[Strategy]] = {each.name: each for each in (CSC, Dense, DGC, LAGS, RandomK, SLGS, TopK)}

_FORMS = "name, name(argument=value, ...), or path/to/file.py:Class(argument=value, ...) for one of your own"
# Up to a semicolon that is not inside of parentheses or quotes.
_ITEM = re.compile(r"""(?:[^;"'(]|"[^"]*"|'[^']*'|\((?:[^)"']|"[^"]*"|'[^']*')*\)|\()+""")


def parse_strategies(text: str) -> list[Strategy]:
    """Return the strategies that a text names, separated by semicolons.

    Parameters
    ----------
    text : str
        For example ``"dense; csc(density=0.1, warmup=20); mine.py:SignSGD(scale=0.01)"``. Values are literals.

    Raises
    ------
    gradientflow.errors.ArgumentError
        If it names none, or one that there is not, or gives arguments that it does not take.
    """
    items = [item.strip() for item in _ITEM.findall(_text(text))]
    found = [parse_strategy(item) for item in items if item]
    if not found:
        message = f"{text!r} names no strategy: it is {_FORMS}"
        raise ArgumentError(message)
    return found


def parse_strategy(text: str) -> Strategy:
    """Return the strategy that a text names, as in `parse_strategies`, which takes several."""
    place, separator, call = _text(text).strip().rpartition(".py:")
    try:
        tree = ast.parse(call.strip(), mode="eval").body
    except SyntaxError:
        tree = None
    named = tree.func if isinstance(tree, ast.Call) else tree
    if not isinstance(named, ast.Name):
        message = f"{text!r} is no strategy in words: they are {_FORMS}"
        raise ArgumentError(message)
    kind = _own(Path(f"{place}.py"), named.id) if separator else _known(named.id)
    positional, by_name = _arguments(tree, kind.name) if isinstance(tree, ast.Call) else ([], {})
    try:
        bound = inspect.signature(kind).bind(*positional, **by_name)
    except TypeError as error:
        names = ", ".join(inspect.signature(kind).parameters) or "none"
        message = f"{text!r}: {error}; the arguments of {kind.name} are {names}"
        raise ArgumentError(message) from None
    try:
        strategy = kind(*bound.args, **bound.kwargs)
        repr(strategy)  # which takes all settings
    except GradientFlowError as error:
        message = f"{text!r}: {error}"
        raise type(error)(message) from error
    except Exception as error:
        message = f"{text!r} cannot be made: {type(error).__name__}: {error}"
        raise ArgumentError(message) from error
    return strategy


def as_strategy(strategy: Any) -> Strategy:
    """Return a strategy that is given as one, or in words.

    Raises
    ------
    gradientflow.errors.ArgumentError
        If the words name none.
    gradientflow.errors.ArgumentTypeError
        If it is something else.
    """
    if isinstance(strategy, str):
        return parse_strategy(strategy)
    if not isinstance(strategy, Strategy):
        what = strategy.__name__ if isinstance(strategy, type) else type(strategy).__name__
        message = f"the strategy is a {what}: what is needed is a gradientflow.strategies.Strategy, or its words"
        raise ArgumentTypeError(message)
    return strategy


def _text(words: Any) -> str:
    if not isinstance(words, str):
        message = f"a strategy in words is a text, not a {type(words).__name__}"
        raise ArgumentTypeError(message)
    return words


def _known(name: str) -> type[Strategy]:
    if name not in BY_NAME:
        close = difflib.get_close_matches(name.lower(), BY_NAME, 1)
        hint = f"; did you mean {close[0]}?" if close else ""
        message = f"there is no strategy {name!r}: there are {', '.join(BY_NAME)}, and path/to/file.py:Class{hint}"
        raise ArgumentError(message)
    return BY_NAME[name]


def _own(path: Path, name: str) -> type[Strategy]:
    """Return a class of a file of the user's."""
    module = _module(path)
    kind = getattr(module, name, None)
    if not (isinstance(kind, type) and issubclass(kind, Strategy)):
        there = [
            key
            for key, value in vars(module).items()
            if isinstance(value, type) and issubclass(value, Strategy) and value.__module__ == module.__name__
        ]
        message = f"{path} has no strategy {name!r}: it has {', '.join(there) or 'none'}"
        raise ArgumentError(message)
    return kind


def _module(path: Path) -> ModuleType:
    """Run a file of the user's as a module, once in a process."""
    try:
        source = path.read_bytes()
    except OSError as error:
        message = f"the file of a strategy cannot be read: {error}"
        raise ArgumentError(message) from error
    name = f"gradientflow_strategy_{path.stem}_{hashlib.sha256(bytes(path.resolve()) + source).hexdigest()[:12]}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        message = f"{path} is no Python file"
        raise ArgumentError(message)
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[name]
        message = f"{path} fails when it is run: {type(error).__name__}: {error}"
        raise ArgumentError(message) from error
    return module


def _arguments(call: ast.Call, name: str) -> tuple[list[Any], dict[str, Any]]:
    """Return the arguments of a call, which are literals."""

    def literal(node: ast.expr, what: str) -> Any:
        try:
            return ast.literal_eval(node)
        except ValueError:
            message = (
                f"{what} of {name} is {ast.unparse(node)!r}: what is needed is a number, a text, or another literal"
            )
            raise ArgumentError(message) from None

    if any(keyword.arg is None for keyword in call.keywords):
        message = f"the arguments of {name} are given one by one, not by **"
        raise ArgumentError(message)
    positional = [literal(node, f"argument {number}") for number, node in enumerate(call.args, 1)]
    return positional, {str(each.arg): literal(each.value, str(each.arg)) for each in call.keywords}


__all__ = ["BY_NAME", "as_strategy", "parse_strategies", "parse_strategy"]
