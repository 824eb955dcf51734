"""Whatever the public API is given, what it does not take is refused by an error of the library, with its name."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gradientflow as gf
from gradientflow.errors import ArgumentError, ArgumentTypeError

MPI = pytest.importorskip("mpi4py.MPI", reason="needs MPI")


@pytest.mark.checks("bad_arguments")
@pytest.mark.parametrize("ranks", [1, 2])
def test_every_parameter_refuses_what_it_does_not_take(check: Callable[..., Any], tmp_path: Path, ranks: int) -> None:
    check(ranks, tmp_path, timeout=120)


@pytest.fixture(scope="module")
def comm() -> Any:
    with gf.init(MPI.COMM_SELF) as made:
        yield made


X = np.ones(3, np.float32)

SENTENCES: list[tuple[Callable[[Any], object], type[Exception], str]] = [
    (lambda c: c.broadcast(X, np.float32(1.9)), ArgumentTypeError, "root is the number of a rank, .* (float32)"),
    (lambda c: c.broadcast(X, 2**70), ArgumentError, f"root is the number of a rank, not {2**70} (int)"),
    (lambda c: c.broadcast(X, True), ArgumentTypeError, "root is the number of a rank, not True (bool)"),
    (lambda c: c.split(False), ArgumentTypeError, "color is a number of 0 or more, .* not False (bool)"),
    (lambda c: gf.GradientPool(c, [3], extra=True), ArgumentTypeError, "extra is a whole number, not True"),
    (lambda c: c.barrier_async().wait(math.nan), ArgumentError, "timeout is not a number"),
    (lambda _: gf.Config(timeout=math.nan), ArgumentError, "'nan' is not a positive number"),
    (lambda c: c.reduce(X, 0.0), ArgumentTypeError, "root is the number of a rank, not 0.0 (float)"),
    (lambda c: c.allreduce(X, MPI.SUM), ArgumentTypeError, "op is 'sum', 'mean', 'max', 'min' or 'prod', not .* (Op)"),
    (lambda c: c.allreduce(X, wire=5), ArgumentTypeError, "wire is a name such as 'float16', or None, not 5 (int)"),
    (lambda c: c.split(np.float32(0.7)), ArgumentTypeError, "color is a number of 0 or more, .* (float32)"),
    (lambda c: c.split(-1), ArgumentError, "a color is a number of 0 or more, or None, not -1"),
    (lambda c: c.send(X, "a"), ArgumentTypeError, "dest is the number of a rank, not 'a' (str)"),
    (lambda c: c.barrier_async().wait("soon"), ArgumentTypeError, "timeout is a number of seconds, .* (str)"),
    (lambda c: c.allgatherv(X, counts=[3.0]), ArgumentTypeError, "counts is a sequence of whole numbers, .* not [3.0]"),
    (lambda c: c.allgatherv(X, counts=[2**70]), ArgumentError, "is larger than an array can be"),
    (lambda c: c.empty("ab"), ArgumentError, "a shape is an integer or a sequence of integers, not 'ab'"),
    (lambda c: c.empty((0, 2**70)), ArgumentError, "at most 1 TiB is possible"),
    (lambda c: c.empty(3, "S0"), ArgumentTypeError, "its elements have no bytes"),
    (lambda _: gf.Config(timeout=None), ArgumentTypeError, "timeout is set by text, .*, not by None"),
    (lambda _: gf.init(MPI.COMM_SELF, config=5), ArgumentTypeError, "config is a gradientflow.Config, or .*, not 5"),
    (lambda _: gf.init(MPI.COMM_SELF, config={"speed": 5}), ArgumentError, "unknown setting 'speed'"),
]  # fmt: skip


@pytest.mark.parametrize(("call", "kind", "sentence"), SENTENCES)
def test_sentences(comm: Any, call: Callable[[Any], object], kind: type[Exception], sentence: str) -> None:
    with pytest.raises(kind) as refusal:
        call(comm)
    assert type(refusal.value) is kind
    assert re.search(".*".join(map(re.escape, sentence.split(".*"))), str(refusal.value)), str(refusal.value)


def test_settings_by_name_are_as_good_as_a_config() -> None:
    with gf.init(MPI.COMM_SELF, config={"timeout": 7, "debug": False}) as comm:  # type: ignore[dict-item]
        assert comm.describe()["settings"]["timeout"] == "7"


class Strange:
    """An object whose own protocol fails."""

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {"typestr": "nonsense", "shape": (), "data": 5}

    def __repr__(self) -> str:
        raise RuntimeError("no")


def test_objects_whose_own_code_fails(comm: Any) -> None:
    with pytest.raises(ArgumentTypeError, match=r"^the tensor "):
        comm.allreduce(Strange())
    with pytest.raises(ArgumentTypeError, match=r"not a Strange$"):
        comm.allreduce(X, Strange())


def test_numbers_of_numpy_are_ranks_and_colors(comm: Any) -> None:
    assert comm.broadcast(X, np.int64(0)) is X
    assert comm.reduce(X, np.uint8(0)) is X
    with comm.split(np.int32(3), np.int16(-2)) as part:
        assert part.size == 1
