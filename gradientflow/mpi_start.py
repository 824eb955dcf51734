"""Variables that make Open MPI skip unused components at its start.

``btl/ofi`` serves one-sided communication over RDMA devices. Without such devices, the search for them makes each
``MPI_Init`` sleep for a second. ``btl/sm`` serves ranks of one machine. Even in a process without a launcher,
``btl/sm`` makes a file of 16 MiB in ``/dev/shm``. This file is never removed, because only launchers remove the files
of their ranks.
"""

from __future__ import annotations

import os
import re
import sysconfig
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from gradientflow import launcher_variables

TRANSPORTS = "OMPI_MCA_btl"  # byte transfer layers that Open MPI may use

_LEFT_OUT = "^ofi"
# Launchers set one or more of these for each rank.
_LAUNCHED = (*(each["RANK"] for each in launcher_variables.MPI), *launcher_variables.MPI_OF_SLURM, "PMIX_NAMESPACE")
_DEVICES = tuple(Path("/sys/class", kind) for kind in ("infiniband", "cxi", "hfi1", "usnic_verbs"))
_USERS_FILE = Path(".openmpi", "mca-params.conf")  # in the home directory
_SITE_FILE = Path("etc", "openmpi-mca-params.conf")  # below the library's prefix
_DISTRIBUTIONS_FILE = Path("/etc/openmpi/openmpi-mca-params.conf")
_FILES = "OMPI_MCA_mca_base_param_files"  # lists further files, of the user's choice
_SETS_TRANSPORTS = re.compile(r"^\s*btl\s*=", re.MULTILINE)


def start_variables(prefix: str | Path | None = None, *, alone: bool = False) -> dict[str, str]:
    """Return the variables that make Open MPI skip components that no rank would use.

    Parameters
    ----------
    prefix : path, optional
        Folder where Open MPI is installed; by default the environment of this Python.
    alone : bool, default False
        True if the process that starts MPI is its only rank, without a launcher.

    Returns
    -------
    dict of str to str
        ``OMPI_MCA_btl=^ofi``; ``sm`` is added if the process is alone, and ``ofi`` is left out if this machine has an
        RDMA device. Empty if the user has chosen Open MPI's transports, in the environment or in a parameter file.
    """
    left_out = [] if any(_has_entries(folder) for folder in _DEVICES) else ["ofi"]
    left_out += ["sm"] if alone else []
    if is_chosen(TRANSPORTS) or not left_out:
        return {}
    site = Path(prefix if prefix is not None else sysconfig.get_path("data")) / _SITE_FILE
    files = [Path(os.path.expanduser("~")) / _USERS_FILE, site, _DISTRIBUTIONS_FILE]
    files += [Path(name) for name in os.environ.get(_FILES, "").split(",") if name]
    return {} if any(_sets_transports(file) for file in files) else {TRANSPORTS: f"^{','.join(left_out)}"}


def is_chosen(name: str) -> bool:
    """Return True if the environment has an Open MPI variable that does not come from `start_variables`."""
    return name in os.environ and (name, os.environ[name]) != (TRANSPORTS, _LEFT_OUT)


@contextmanager
def prepared_start() -> Iterator[None]:
    """Keep the `start_variables` in this process's environment while mpi4py starts MPI in the ``with`` block."""
    before = os.environ.get(TRANSPORTS)
    os.environ.update(start_variables(alone=not any(os.environ.get(name) for name in _LAUNCHED)))
    try:
        yield
    finally:  # processes started by this process may have launchers
        os.environ.pop(TRANSPORTS, None)
        if before is not None:
            os.environ[TRANSPORTS] = before


def _has_entries(folder: Path) -> bool:
    try:
        return any(folder.iterdir())
    except OSError:
        return False


def _sets_transports(file: Path) -> bool:
    try:
        return _SETS_TRANSPORTS.search(file.read_text(encoding="utf-8", errors="replace")) is not None
    except OSError:
        return False
