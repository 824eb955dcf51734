"""Where the program and the installed package are, and how its compiled core is loaded.

Python started in the root of the repository finds the source folder ``gradientflow`` before any installed package.
After a plain ``pip install .`` that folder holds no compiled core, or one left over from an earlier editable install,
so it gives way to the installed package as a whole: see `use_installed_package`.

The core needs no MPI library. Its part for MPI, which jobs of MPI load, has to use the same one as mpi4py: see
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
from typing import Any

PACKAGE = Path(__file__).resolve().parent


def _current_folder() -> Path:
    try:
        return Path.cwd()
    except FileNotFoundError:  # it has been deleted
        return Path()


FOLDER = _current_folder()  # as the package is imported, and so before the program may have gone to another one


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


def jax_library() -> Path:
    """Return where the library is that JAX's CPU backend loads in place of MPI."""
    return PACKAGE / "lib" / "libgradientflow_mpiabi.so"


def build_info() -> dict[str, Any]:
    """Return what the build recorded: versions, compiler, and the MPI library, if it was built with one."""
    info: dict[str, Any] = json.loads((PACKAGE / "_build_info.json").read_text(encoding="utf-8"))
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
    mpi: Any = sys.modules.get("mpi4py.MPI")
    if mpi is not None and mpi.Is_initialized():
        core.watch_forks()
    return core
