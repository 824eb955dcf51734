from __future__ import annotations

import collections.abc
import typing

import numpy
import numpy.typing

import gradientflow._core

__all__: list[str] = [
    "Exchange",
    "Exchanges",
    "check_marks",
    "copy",
    "end_calls",
    "handlers",
    "marks_needed",
    "number_of",
    "write_marks",
]

class Exchange:
    def __init__(self, work: collections.abc.Callable[..., typing.Any]) -> None: ...
    def use_dense(
        self,
        communicator: gradientflow._core.Communicator,
        algorithm: str,
        pools: collections.abc.Sequence[gradientflow._core.GradientPool],
        places: collections.abc.Sequence[tuple[int | None, int, str, str | None]],
    ) -> None: ...

class Exchanges:
    def __init__(self, first: Exchange, others: Exchange, meet: collections.abc.Callable[..., typing.Any]) -> None: ...
    @property
    def number(self) -> int: ...

def check_marks(count: int, means: typing.Annotated[numpy.typing.ArrayLike, numpy.float64]) -> None: ...
def copy(
    source: collections.abc.Sequence[int], target: collections.abc.Sequence[int], bytes: collections.abc.Sequence[int]
) -> None: ...
def end_calls() -> None: ...
def handlers() -> dict[str, typing.Any]: ...
def marks_needed() -> int: ...
def number_of(communicator: gradientflow._core.Communicator) -> int: ...
def write_marks(count: int, refused: bool, marks: typing.Annotated[numpy.typing.ArrayLike, numpy.float64]) -> None: ...
