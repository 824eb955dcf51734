"""``gradientflow config``: print flags for compiling against the library, and its settings."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import click

from gradientflow.cli.jax import check_jax, jax_lines
from gradientflow.cli.library import PACKAGE
from gradientflow.config import fields
from gradientflow.errors import GradientFlowError
from gradientflow.tables import plain_table, print_table

_INCLUDE = PACKAGE / "include"
_LIBRARIES = PACKAGE / "lib"
_CMAKE = _LIBRARIES / "cmake" / "gradientflow"


@click.command(no_args_is_help=True)
@click.option("--cflags", is_flag=True, help="Print compiler flags for gradientflow.h, in C and C++.")
@click.option("--cxxflags", is_flag=True, help="Print compiler flags for the C++ headers.")
@click.option("--libs", is_flag=True, help="Print linker flags.")
@click.option("--cmakedir", is_flag=True, help="Print the folder for CMake's gradientflow_DIR.")
@click.option("--jax", is_flag=True, help="Print the variables that JAX needs in a rank, for a shell.")
@click.option("--settings", is_flag=True, help="Print every setting with its variable and default.")
def config(cflags: bool, cxxflags: bool, libs: bool, cmakedir: bool, jax: bool, settings: bool) -> None:
    """Print the flags for a C or C++ program, quoted for a shell: mpicc x.c $(gradientflow config --cflags --libs)."""
    flags = []
    if cxxflags:
        flags.append("-std=c++20")
    if cflags or cxxflags:
        # gradientflow.h includes mpi.h if it exists
        flags += [f"-I{_present(_INCLUDE)}", *_mpi_flags("-I")]
    if libs:
        flags += _linker_flags(_present(_LIBRARIES))
    if flags:
        click.echo(shlex.join(flags))
    if cmakedir:
        click.echo(str(_present(_CMAKE)))
    if jax:
        check_jax(needed=False)
        click.echo("\n".join(jax_lines(os.environ)))
    if settings:
        _print_settings()


def _linker_flags(folder: Path) -> list[str]:
    # MPI programs need the MPI library; a wheel's is in the environment's lib, where linkers do not look by default.
    environment = Path(sysconfig.get_path("data")) / "lib"
    return [
        *(f"-L{folder}", "-lgradientflow", f"-Wl,-rpath,{folder}"),
        *("-Wl,--push-state,--as-needed", *_mpi_flags("-L", "-l", "-Wl,"), "-Wl,--pop-state"),
        f"-Wl,-rpath,{environment}",
    ]


def _mpi_flags(*kinds: str) -> list[str]:
    """Return the flags of these kinds of the MPI library's compiler wrapper; none if there is no wrapper."""
    wrapper = shutil.which("mpicxx", path=str(Path(sys.executable).parent)) or shutil.which("mpicxx")
    if wrapper is None:
        return []
    shown = subprocess.run([wrapper, "-show"], capture_output=True, text=True, check=False, timeout=20).stdout
    return [flag for flag in shlex.split(shown) if flag.startswith(kinds)]


def _present(path: Path) -> Path:
    if not path.exists():
        raise GradientFlowError(f"{path} is missing: this installation has no files for C and C++; install it again")
    return path


def _print_settings() -> None:
    table = plain_table(["setting"])
    for heading in ("variable", "default", "unit"):
        table.add_column(heading, no_wrap=True)
    table.add_column("meaning", overflow="fold")
    for name, variable, unit, default, meaning in fields():
        table.add_row(name, variable, str(default), str(unit or ""), meaning)
    print_table(table)
