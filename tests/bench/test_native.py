"""Native code that is compiled when it is first used."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from importlib import metadata
from pathlib import Path
from unittest.mock import Mock

import pytest

from gradientflow.bench.core.native import build_native, load_native
from gradientflow.errors import GradientFlowError

MODULE = """
#include <Python.h>
static PyModuleDef definition = {PyModuleDef_HEAD_INIT, "answer"};
PyMODINIT_FUNC PyInit_answer() { return PyModule_Create(&definition); }
"""
ANSWER = 'extern "C" __attribute__((visibility("default"))) int answer() { return 42; }\n'


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Write a file that compiles, for a cache of its own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    source = tmp_path / "answer.cpp"
    source.write_text("#include <gradientflow/base/dtype.hpp>\n" + ANSWER)
    return source


def test_it_is_compiled_once_until_something_changes(source: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with ThreadPoolExecutor() as pool:
        first, *others = pool.map(build_native, [source] * 3)
    assert [first] * 2 == others
    assert ctypes.CDLL(str(first)).answer() == 42
    assert capfd.readouterr().err.count("compiling answer.cpp") == 1
    source.write_text(ANSWER.replace("42", "43"))
    assert ctypes.CDLL(str(build_native(source))).answer() == 43


def test_a_module_of_the_same_name_stays(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Python enters modules that are made in one step in sys.modules."""
    monkeypatch.setitem(sys.modules, "answer", sys)
    source.write_text(MODULE)
    assert load_native(source) is not sys
    assert sys.modules["answer"] is sys


def test_it_is_compiled_anew_for_another_version_of_pybind11(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = build_native(source)
    monkeypatch.setattr(metadata, "version", "0.0 of {}".format)
    assert build_native(source) != first


def test_without_locks_all_compile_and_nothing_else_is_left(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fcntl, "flock", Mock(side_effect=OSError(errno.ENOSYS, "Function not implemented")))
    with ThreadPoolExecutor() as pool:
        first, second = pool.map(build_native, [source] * 2)
    assert first == second
    assert ctypes.CDLL(str(first)).answer() == 42
    assert {path.name for path in first.parent.iterdir()} == {first.name, first.with_suffix(".lock").name}


def test_what_does_not_compile_is_shown_as_the_compiler_puts_it(source: Path) -> None:
    source.write_text("#error not today\n")
    with pytest.raises(GradientFlowError, match="error: #error not today"):
        build_native(source)


def test_a_missing_compiler_is_one_clear_sentence(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler -m64")
    with pytest.raises(GradientFlowError, match=r"there is no C\+\+ compiler \(no-such-compiler -m64\): install one"):
        build_native(source)


def test_missing_pybind11_is_one_clear_sentence(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pybind11", None)
    with pytest.raises(GradientFlowError, match="needs pybind11: pip install pybind11"):
        build_native(source)


def test_it_goes_into_a_temporary_folder_where_the_cache_cannot_be_written(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(source))  # a file
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    assert build_native(source).parent.parent == tmp_path
