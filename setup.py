"""Builds the C++ core with CMake. Everything else about the package stands in pyproject.toml.

Environment variables: GRADIENTFLOW_BUILD_TYPE (Release), GRADIENTFLOW_CUDA (auto), GRADIENTFLOW_MPI (auto),
GRADIENTFLOW_WERROR (off), GRADIENTFLOW_SANITIZE ("address,undefined"), and CXX as usual.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import time
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


def look_for(*names: str, throwaway_first: bool = True) -> str | None:
    """Return the first program found beside this Python or on the PATH.

    Tools come from the throw-away build environment first, the MPI library comes from it last: there it only stands
    in where the user has none.
    """
    folders = [sysconfig.get_path("scripts"), *os.environ.get("PATH", os.defpath).split(os.pathsep)]
    folders.sort(key=lambda folder: bool(THROWAWAY.search(folder)) != throwaway_first)
    return next(filter(None, (shutil.which(name, path=os.pathsep.join(folders)) for name in names)), None)


def find(*names: str, otherwise: str) -> str:
    """Return the same, or fail with a sentence."""
    if found := look_for(*names):
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
    wanted = os.environ.get("GRADIENTFLOW_MPI") or "auto"
    mpicxx = look_for("mpicxx", "mpic++", throwaway_first=False)
    if mpicxx is None:
        return {"GRADIENTFLOW_MPI": wanted, "GRADIENTFLOW_MPICXX": ""}
    environment = sysconfig.get_path("data")
    prefix = "$ORIGIN/../../../../.."  # the environment, seen from site-packages/gradientflow/lib
    if in_place:
        prefix = "" if THROWAWAY.search(environment) else environment
    is_system_mpi = not THROWAWAY.search(mpicxx) and Path(mpicxx).parent.parent != Path(environment)
    return {
        "GRADIENTFLOW_MPI": wanted,
        "GRADIENTFLOW_MPICXX": mpicxx,
        "GRADIENTFLOW_MPI_PREFIX": prefix,
        "GRADIENTFLOW_MPI_STAYS": "ON" if is_system_mpi else "OFF",
    }


class Progress:
    """Shows on the terminal how far a build is, since pip hides what is printed.

    It is written behind the cursor, where pip's spinner is, and wiped away at the end. Without a terminal, or in the
    background of one, nothing is shown.
    """

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._terminal = -1
        with contextlib.suppress(OSError):
            terminal = os.open("/dev/tty", os.O_WRONLY | os.O_NOCTTY)
            if os.tcgetpgrp(terminal) == os.getpgrp() and os.environ.get("TERM", "dumb") != "dumb":
                self._terminal = terminal

    def tell(self, line: str) -> None:
        """Take the state from a line of Ninja, if it says one."""
        found = re.match(r"\[(\d+)/(\d+)\] ", line)
        if found:
            done, total = map(int, found.groups())
            left = (time.monotonic() - self._began) * (total - done) / max(done, 1)
            self._show(f" {100 * done // total} %, {left:.0f} s left")

    def close(self) -> None:
        """Wipe it away."""
        self._show("")

    def _show(self, text: str) -> None:
        with contextlib.suppress(OSError):  # as where there is no terminal
            os.write(self._terminal, f"\x1b7{text}\x1b[K\x1b8".encode())  # the cursor stays


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
        self.compile(cmake, "--build", str(folder))
        shutil.rmtree(target / "include", ignore_errors=True)  # headers that are gone
        self.call(cmake, "--install", str(folder), "--prefix", str(target))
        if in_place:  # for clang-tidy and editors
            link = ROOT / "compile_commands.json"
            link.unlink(missing_ok=True)
            link.symlink_to((folder / link.name).relative_to(ROOT))

    def compile(self, *command: str) -> None:
        """Run Ninja, and show the user how far it is."""
        environment = {**os.environ, "NINJA_STATUS": "[%f/%t] "}
        with (
            contextlib.closing(Progress()) as progress,
            subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True, errors="replace") as ninja,
        ):
            for line in ninja.stdout or ():
                print(line, end="", flush=True)
                progress.tell(line)
        self.check(ninja.returncode)

    def call(self, *command: str) -> None:
        """Run a command."""
        self.check(subprocess.run(command, check=False).returncode)

    @staticmethod
    def check(status: int) -> None:
        """Fail as a command did, whose output says why."""
        if status != 0:
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
