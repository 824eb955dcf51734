"""Native code of benchmarks and tests: modules compiled, with pybind11, on first use.

Each is one C++ file, compiled against the installed headers and library of the core. Several may be compiled at once,
because pybind11's headers take most of the time. Compiled modules are in the user's cache, under a name that contains a
hash of everything that they depend on.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import hashlib
import importlib.util
import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from types import ModuleType

from gradientflow._location import PACKAGE, build_info, load_core
from gradientflow.errors import GradientFlowError
from gradientflow.launch import scratch_folder
from gradientflow.whole_file import whole_file

SOURCES = Path(__file__).resolve().parents[1] / "native"

_SUFFIX = sysconfig.get_config_var("EXT_SUFFIX")


def load_kernels(device: str) -> ModuleType:
    """Load the module that calls single kernels of "cpu" or "cuda"."""
    compute = load_native(SOURCES / "compute.cpp")  # the module of the device uses its types
    return compute if device == "cpu" else load_native(SOURCES / "cuda.cpp")


@functools.cache
def load_barriers() -> ModuleType:
    """Load the module of barrier searches, compiled with the core's optimization, since both are timed."""
    source = SOURCES / "barriers.cpp"
    return load_native(source, build_native(source, level="-O3"))


@functools.cache
def load_native(source: Path, library: Path | None = None) -> ModuleType:
    """Load the module that a C++ file defines under its name, from `library` if given: a result of `build_native`."""
    load_core()  # raises an error if something is wrong with it
    # Under a prefixed name: older versions of pybind11 enter it in sys.modules, which may already have a "cuda".
    spec = importlib.util.spec_from_file_location(f"{__name__}.{source.stem}", library or build_native(source))
    if spec is None or spec.loader is None:
        raise ImportError(f"{source.stem} is no module")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def build_native(*sources: Path, level: str = "-O1") -> Path:
    """Compile the modules that C++ files define into one library, unless it is in the cache; give its path.

    Optimization is at the first level: most of pybind11's code only forwards calls. Raises `GradientFlowError` if there
    is no compiler or no pybind11, or the compiler fails.
    """
    command = [*_compiler(), level, *_flags(), f"-I{SOURCES}"]
    headers = [*sorted(SOURCES.glob("*.hpp")), *sorted((PACKAGE / "include").rglob("*.hpp"))]
    # Modules can share types only if compiled with the same version of pybind11.
    key = hashlib.sha256(repr([command, metadata.version("pybind11"), build_info(), _SUFFIX]).encode())
    for path in (*sources, *headers):
        key.update(path.read_bytes())
    module = cache_folder() / f"{sources[0].stem}-{key.hexdigest()[:20]}{_SUFFIX}"
    with module.with_suffix(".lock").open("w") as lock:
        with contextlib.suppress(OSError):  # some cluster file systems have no locks: then every rank compiles
            fcntl.flock(lock, fcntl.LOCK_EX)  # of several ranks the first one compiles
        if not module.exists():
            _compile(command, sources, module)
    return module


def _compile(command: list[str], sources: Sequence[Path], module: Path) -> None:
    names = ", ".join(source.name for source in sources)
    print(f"gradientflow: compiling {names}, once, in {module.parent}", file=sys.stderr, flush=True)
    together = "".join(f'#include "{source}"\n' for source in sources)
    command = [*command, "-x", "c++", "-", "-shared", f"-L{PACKAGE / 'lib'}", "-lgradientflow"]
    command += [f"-Wl,-rpath,{PACKAGE / 'lib'}", "-Wl,--allow-shlib-undefined", "-o"]
    own = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}  # set for sanitizers, for example
    with scratch_folder() as (folder, _):
        made = Path(folder, module.name)
        command.append(str(made))
        done = subprocess.run(command, env=own, input=together, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise GradientFlowError(f"{shlex.join(command)} failed: {done.stderr.strip()}")
        with whole_file(module) as file:
            file.write(made.read_bytes())


def _compiler() -> list[str]:
    """Name the compiler, by the same rules as the build of the package."""
    named = shlex.split(os.environ.get("CXX", ""))
    for name in named[:1] or ["c++", "g++", "clang++"]:
        if found := shutil.which(name):
            return [os.path.realpath(found), *named[1:]]
    raise GradientFlowError(
        f"this is compiled when it is first used, and there is no C++ compiler ({' '.join(named) or 'c++'}): "
        "install one, or name it in CXX"
    )


def _flags() -> list[str]:
    try:
        import pybind11
    except ImportError:
        raise GradientFlowError(
            "this is compiled when it is first used, which needs pybind11: pip install pybind11"
        ) from None
    includes = [PACKAGE / "include", pybind11.get_include(), sysconfig.get_path("include")]
    flags = ["-std=c++20", "-fPIC", "-fvisibility=hidden", "-w", *(f"-I{each}" for each in includes)]
    if sanitizers := build_info()["sanitize"]:
        return [*flags, f"-fsanitize={sanitizers}", "-fno-omit-frame-pointer", "-g1"]
    return [*flags, "-s"]


def cache_folder() -> Path:
    """Give a folder for compiled modules: the user's cache, or a temporary folder if the cache cannot be written."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser(), "gradientflow")
    try:
        cache.mkdir(parents=True, exist_ok=True)
        if os.access(cache, os.W_OK):
            return cache
    except (OSError, RuntimeError):
        pass
    cache = Path(tempfile.gettempdir(), f"gradientflow-{os.getuid()}")
    cache.mkdir(mode=0o700, exist_ok=True)
    if cache.stat().st_uid != os.getuid():
        raise GradientFlowError(f"{cache} belongs to somebody else: name another folder in XDG_CACHE_HOME")
    return cache
