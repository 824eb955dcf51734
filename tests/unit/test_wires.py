"""Wires: their table."""

from __future__ import annotations

import pytest

from gradientflow.errors import ArgumentError
from gradientflow.wires import Wire, check_wire, wires


def test_the_table() -> None:
    assert wires() == {
        "float32": Wire(4, 0, "float32"),
        "float16": Wire(2, 0, "float16"),
        "bfloat16": Wire(2, 0, "bfloat16"),
    }
    for name in (None, *wires()):
        check_wire(name)
    with pytest.raises(ArgumentError, match="wire is one of float32, float16, bfloat16, not 'int4'"):
        check_wire("int4")
