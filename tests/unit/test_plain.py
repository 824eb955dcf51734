"""Plain values: what is written is read, to the bit, and nothing else is."""

from __future__ import annotations

import contextlib
import json
import math
import struct
from enum import IntEnum
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as of_numpy

from gradientflow.errors import ArgumentTypeError, CommunicationError
from gradientflow.memory import numpy_dtype
from gradientflow.plain import Tagged, dump, load, pack, unpack

dtypes = st.one_of(
    of_numpy.boolean_dtypes(),
    of_numpy.integer_dtypes(endianness="?"),
    of_numpy.unsigned_integer_dtypes(endianness="?"),
    of_numpy.floating_dtypes(endianness="?", sizes=(16, 32, 64)),
    of_numpy.complex_number_dtypes(endianness="?", sizes=(64, 128)),
)
arrays = of_numpy.arrays(dtypes, of_numpy.array_shapes(min_dims=0, min_side=0, max_side=4))
numbers = st.one_of(st.booleans(), st.integers(), st.floats(allow_nan=True), dtypes.flatmap(of_numpy.from_dtype))
keys = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), st.text(), st.binary())
values = st.recursive(
    st.one_of(st.none(), numbers, st.text(), st.binary(), arrays, arrays.map(lambda each: each.T)),
    lambda inner: st.one_of(
        st.lists(inner),
        st.lists(inner).map(tuple),
        st.dictionaries(st.one_of(keys, st.tuples(keys, keys)), inner),
        st.builds(Tagged, st.text(), inner),
    ),
    max_leaves=12,
)


def same(mine: Any, theirs: Any) -> bool:
    """Compare types, and values to the bit."""
    if type(mine) is not type(theirs):
        return False
    if isinstance(mine, np.ndarray):
        return (mine.dtype, mine.shape, mine.tobytes()) == (theirs.dtype, theirs.shape, theirs.tobytes())
    if isinstance(mine, np.generic):
        return (mine.dtype, mine.tobytes()) == (theirs.dtype, theirs.tobytes())
    if isinstance(mine, float):
        return struct.pack("d", mine) == struct.pack("d", theirs)
    if isinstance(mine, Tagged):
        return mine.tag == theirs.tag and same(mine.value, theirs.value)
    if isinstance(mine, dict):
        return same([*mine], [*theirs]) and same([*mine.values()], [*theirs.values()])
    if isinstance(mine, list | tuple):
        return len(mine) == len(theirs) and all(map(same, mine, theirs))
    return bool(mine == theirs)


@given(values)
def test_what_is_written_is_read(value: Any) -> None:
    assert same(load(dump(value)), value)
    assert same(unpack(pack(value)), value)


def test_numbers_of_any_size_arrive() -> None:
    value = [10**5000, -(2**63), 2**63, -math.inf, struct.unpack("<d", b"\x01\0\0\0\0\0\xf8\xff")[0], 5e-324, -0.0]
    assert same(load(dump(value)), value)


def test_arrays_of_bfloat16_arrive() -> None:
    pytest.importorskip("ml_dtypes")
    bfloat16 = numpy_dtype("bfloat16")
    value = [np.arange(3).astype(bfloat16), np.ones(1, bfloat16)[0]]
    assert same(load(dump(value)), value)


def test_large_arrays_are_sent_from_where_they_lie_and_stay_where_they_arrive() -> None:
    rows = np.arange(1 << 16, dtype=np.float64).reshape(256, 256)
    fixed = rows.copy()
    fixed.flags.writeable = False
    parts = pack({"rows": rows, "columns": rows.T, "fixed": fixed, "small": rows[0]})
    assert [np.shares_memory(rows, part) for part in parts] == [False, False, True, True, False]
    found = unpack(parts)
    assert np.shares_memory(found["rows"], rows)
    assert (found["columns"] == rows.T).all()
    assert all(each.flags.writeable for each in (*parts, *found.values()))


class Number(IntEnum):
    ONE = 1


class Pair(NamedTuple):
    first: int
    second: int


LOOP: list[Any] = []
LOOP.append(LOOP)


@pytest.mark.parametrize(
    ("value", "sentence"),
    [
        ({"groups": [{"rate": Fraction(1, 2)}]}, r"it\['groups'\]\[0\]\['rate'\] is a fractions\.Fraction: ranks send"),
        ({Fraction(1): 0}, r"a key of it is a fractions\.Fraction"),
        ((Number.ONE,), r"it\[0\] is a .*Number"),
        (Pair(1, 2), r"it is a .*Pair"),
        ([np.array([None])], r"it\[0\] is a numpy\.ndarray of object"),
        (np.zeros(2, "f4,f4"), "it is a numpy.ndarray of "),
        (np.ma.masked_array([1, 2], [0, 1]), r"it is a numpy\.ma\..*MaskedArray"),
        (np.array(["text"]), "it is a numpy.ndarray of <U4"),
        (np.dtype("f4"), r"it is a numpy\.dtype"),
        (np.datetime64(0, "s"), r"it is a numpy\.datetime64"),
        (len, r"it is a builtins\.builtin_function_or_method"),
        (LOOP, "it contains itself, or is nested too deeply"),
    ],
)
def test_what_is_not_plain_is_named_with_its_place(value: Any, sentence: str) -> None:
    with pytest.raises(ArgumentTypeError, match=sentence):
        pack(value, "it")


@pytest.mark.parametrize(
    "text",
    [
        *("", "{", "[]", '["eval","1"]', '["int",3]', '["bytes","0g"]', '["float","00"]', '["number","O","00"]'),
        *('["array","|O",[1],0,0]', '["array","<f8",[3],0,0]', '["array","<f8",[-1],0,8]', '["array","<f8",[1],0,-8]'),
        *(
            '["array","<f8",[1],1,0]',
            '["array","<f8",[1],-1,0]',
            '["array","<f8",[1e99],0,0]',
            '["array","V8",[1],0,0]',
        ),
        *('["dict",[["list"],1]]', '["dict",[1]]', '["array","nonsense",[1],0,0]', "[" * 100_000, '["tagged","a"]'),
        *('["int","' + "z" * 9 + '"]', "9" * 5000, '["array","<f8,<f8",[1],0,0]', '["number","<f8","0000"]', "[3]"),
    ],
)
def test_nonsense_is_an_error(text: str) -> None:
    with pytest.raises(CommunicationError, match="another rank has sent what is no plain value"):
        unpack([np.frombuffer(text.encode(), np.uint8), np.zeros(16, np.uint8)])


@given(st.binary(max_size=64), st.integers(0, 100))
def test_damaged_pieces_are_values_or_errors(noise: bytes, at: int) -> None:
    piece = dump({"a": [1, 2.5, b"text"], "b": np.arange(3)})
    with contextlib.suppress(CommunicationError):
        load(piece[:at] + noise + piece[at + len(noise) :])


def test_the_text_has_no_more_than_it_needs() -> None:
    text = bytes(pack({"rate": 0.1, "names": ("a", "b")})[0])
    assert json.loads(text) == ["dict", ["rate", 0.1], ["names", ["tuple", "a", "b"]]]
