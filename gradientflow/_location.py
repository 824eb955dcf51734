"""Locations of the program and the installed package, and the loading of the compiled core.

Python started in the root of the repository finds the source folder ``gradientflow`` before any installed package.
After a plain ``pip install .`` that folder holds no compiled core, or a stale core of an earlier editable install.
`use_installed_package` then imports the whole installed package instead.

The core needs no MPI library. Its MPI part, which only MPI jobs load, must use the same library as mpi4py: see
`gradientflow.mpi_library`.
"""

from __future__ import annotations

import functools
import importlib
import importlib.machinery
import importlib.util
import json
import os
import sys
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

PACKAGE = Path(__file__).resolve().parent


def _current_folder() -> Path:
    try:
        return Path.cwd()
    except FileNotFoundError:  # the folder has been deleted
        return Path()


FOLDER = _current_folder()  # current folder at import, before the program may change it


def use_installed_package() -> bool:
    """Import the installed package instead of this one, if this one is a source folder that shadows it.

    A source folder of the repository shadows if it has no compiled core, or if a package is also installed elsewhere.
    An editable install of this folder, and a compiled folder named in PYTHONPATH, are used as they are.

    ``gradientflow/__init__.py`` calls this first, and stops there if it returns True: ``sys.modules`` then holds the
    installed package with its own submodules, and the import statement returns that package.

    Returns
    -------
    bool
        True if the installed package has replaced this package.

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
    """Return True if a package folder has a compiled core for this version of Python."""
    return any((package / f"_core{suffix}").is_file() for suffix in importlib.machinery.EXTENSION_SUFFIXES)


def _is_source(package: Path) -> bool:
    """Return True if a package folder lies in the repository, not among installed packages."""
    return (package.parent / "pyproject.toml").is_file()


def _is_asked_for(package: Path) -> bool:
    """Return True if PYTHONPATH names the folder around the package."""
    entries = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    return any(Path(entry).resolve() == package.parent for entry in entries if entry)


def _find_installed(name: str, *, sources: bool) -> ModuleSpec | None:
    """Find another compiled package in the order of import; skip packages without a compiled core.

    With `sources`, accept a package in another repository, which an editable install finds by a finder of its own.
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


def jax_library() -> Path:
    """Return the path of the library that JAX's CPU backend loads in place of MPI."""
    return PACKAGE / "lib" / "libgradientflow_mpiabi.so"


def build_info() -> dict[str, Any]:
    """Return the facts recorded by the build: versions, compiler, and the MPI library, if any."""
    info: dict[str, object] = json.loads((PACKAGE / "_build_info.json").read_text(encoding="utf-8"))
    return info


@functools.cache
def load_core() -> ModuleType:
    """Load the compiled core, which starts nothing: neither MPI nor threads.

    Returns
    -------
    ModuleType
        The module ``gradientflow._core``.

    Raises
    ------
    gradientflow.errors.MPILibraryError
        If the core cannot be loaded.
    """
    from .errors import MPILibraryError

    try:
        core = importlib.import_module("gradientflow._core")
    except ImportError as error:
        message = f"the compiled core of gradientflow cannot be loaded: {error}; install gradientflow again"
        raise MPILibraryError(message) from error
    mpi = sys.modules.get("mpi4py.MPI")
    if mpi is not None and mpi.Is_initialized():
        core.watch_forks()
    return core


if TYPE_CHECKING:
    from . import _core

    core = _core
else:

    class _Core:
        """The compiled core, loaded when one of its names is first used."""

        def __getattr__(self, name: str) -> object:
            value = getattr(load_core(), name)
            setattr(self, name, value)
            return value

    core = _Core()
