"""The library that stands in for MPI has every name that the installed jaxlib looks up."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from gradientflow._location import jax_library
from gradientflow.cli.doctor import software
from gradientflow.jax.mpi_names import jaxlib_library, missing_names, names_in
from gradientflow.jax.versions import NEWEST

SERVED = ("Init_thread", "Comm_split", "Allreduce", "Allgather", "Reduce_scatter", "Isend", "Irecv", "Sendrecv", "SUM")


def test_our_library_has_what_jaxlib_looks_up() -> None:
    jaxlib = jaxlib_library()
    if jaxlib is None:
        pytest.skip("needs jaxlib")
    assert {f"MPIABI_{name}" for name in SERVED} < names_in(jaxlib)
    assert missing_names(jaxlib) == []


def test_a_new_name_is_found(tmp_path: Path) -> None:
    other = tmp_path / "libother.so"
    other.write_bytes(b"\x7fELF\0MPIABI_Send\0no MPIABI_Recv\0MPIABI_\0MPIABI_In brackets\0MPIXABI_New_call\0")
    assert names_in(other) == {"MPIABI_Send", "MPIXABI_New_call"}
    assert missing_names(other) == ["MPIXABI_New_call"]


def test_our_library_has_no_name_that_jaxlib_does_not_look_up() -> None:
    """A name that was misspelt would be served by a stub."""
    jaxlib = jaxlib_library()
    if jaxlib is None:
        pytest.skip("needs jaxlib")
    assert names_in(jax_library()) == names_in(jaxlib)


def test_what_is_not_served_says_so() -> None:
    call = "import ctypes, sys; sys.exit(ctypes.CDLL(sys.argv[1]).MPIABI_Win_allocate())"
    ended = subprocess.run([sys.executable, "-c", call, jax_library()], capture_output=True, text=True, check=False)
    assert ended.returncode not in (0, 1)
    assert "does not serve Win_allocate" in ended.stderr


def test_doctor_says_whether_jax_can_be_served(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def found() -> software.Check:
        return next(check for check in software.other_packages() if check.name == "jax")

    library = tmp_path / "libjax_common.so"
    library.write_bytes(b"\0MPIABI_Send\0")
    monkeypatch.setattr(software, "jaxlib_library", lambda: library)
    monkeypatch.setattr(software, "installed_version", lambda: f"{NEWEST}.1")
    assert (found().status, found().value) == ("ok", f"{NEWEST}.1, whose collectives can be served")
    library.write_bytes(b"\0MPIABI_Send\0MPIABI_Teleport\0")
    assert found().status == "warn"
    assert "MPIABI_Teleport" in found().advice
