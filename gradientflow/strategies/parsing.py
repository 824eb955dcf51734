"""Strategies from text: ``csc(density=0.1)``, or ``path/to/mine.py:SignSGD(scale=0.01)``."""

from __future__ import annotations

from collections.abc import Mapping

from gradientflow.description import Parser
from gradientflow.errors import ArgumentError
from gradientflow.settings_file import settings_file

from . import methods
from .contract import Strategy
from .methods import Dense

_KINDS: list[type[Strategy]] = [getattr(methods, name) for name in sorted(methods.__all__, key=str.lower)]
_PARSER: Parser[Strategy] = Parser(Strategy, "strategy", _KINDS)
BY_NAME: Mapping[str, type[Strategy]] = _PARSER.by_name


def parse_strategies(text: str, steps: int = 1000) -> list[Strategy]:
    """Return the strategies that a text names, separated by semicolons.

    Parameters
    ----------
    text : str
        For example ``"dense; csc(density=0.1, warmup=20); mine.py:SignSGD(scale=0.01)"``. Values are literals. ``all``
        stands for every strategy of the library, as `Strategy.typical` makes it.
    steps : int
        Length of the training, for ``all``.

    Raises
    ------
    gradientflow.errors.ArgumentError
        If a name is empty or unknown, or a strategy does not take an argument.
    """
    return _PARSER.parse_all(text, {"all": lambda: [kind.typical(steps) for kind in BY_NAME.values()]})


def parse_strategy(text: str) -> Strategy:
    """Return the strategy that a text names. The text is as in `parse_strategies`, with one strategy."""
    return _PARSER.parse(text)


def names_code(words: str) -> bool:
    """Return True if a text names a strategy in a file of code."""
    return _PARSER.file(words) is not None


def as_strategy(strategy: object) -> Strategy:
    """Return a strategy that is given as a `Strategy` or as text.

    Raises
    ------
    gradientflow.errors.ArgumentError
        If the text names no strategy.
    gradientflow.errors.ArgumentTypeError
        If it is neither.
    """
    return _PARSER.given(strategy)


def default_strategy() -> Strategy:
    """Return the strategy for programs that name none: the settings file's, otherwise dense communication.

    Raises
    ------
    gradientflow.errors.ArgumentError
        If the file names an unknown strategy, or code that the file is not allowed to bring into this program.
    """
    found = settings_file()
    if found.strategy is None or found.path is None:
        return Dense()
    if (code := _PARSER.file(found.strategy)) is not None:
        found.check_code(code)
    try:
        return _PARSER.parse(found.strategy, found.path.parent)
    except ArgumentError as error:
        raise ArgumentError(f"{found.path}: strategy: {error}") from error


def words_of_default_strategy() -> str:
    """Return the text of `default_strategy`, without running code that the settings file names."""
    words = settings_file().strategy
    return words if words is not None and names_code(words) else repr(default_strategy())


__all__ = [
    "BY_NAME",
    "as_strategy",
    "default_strategy",
    "names_code",
    "parse_strategies",
    "parse_strategy",
    "words_of_default_strategy",
]
