"""Components that Open MPI leaves out when it starts, as nothing would use them.

``btl/ofi`` serves one-sided communication over RDMA devices. Without such devices, looking for them costs each
``MPI_Init`` a second, in which it sleeps. ``btl/sm`` serves ranks of one machine. In a process that no launcher has
started, it makes a file of 16 MiB in ``/dev/shm`` all the same, which nobody removes: launchers do so for their ranks.
"""

from __future__ import annotations

import os
import re
import sysconfig
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from gradientflow import launcher_variables

TRANSPORTS = "OMPI_MCA_btl"  # which byte transfer layers Open MPI may use

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
    """Return the variables that have Open MPI leave out what nothing would use.

    Parameters
    ----------
    prefix : path, optional
        Where Open MPI is installed; by default the environment of this Python.
    alone : bool, default False
        Whether the process that starts MPI is its only rank, without a launcher.

    Returns
    -------
    dict of str to str
        ``OMPI_MCA_btl=^ofi``, with ``sm`` for a process that is alone; without ``ofi`` if this machine has an RDMA
        device; nothing if the user has chosen Open MPI's transports, in the environment or in one of its parameter
        files.
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
    """Tell whether the environment has a variable of Open MPI that does not come from `start_variables`."""
    return name in os.environ and (name, os.environ[name]) != (TRANSPORTS, _LEFT_OUT)


@contextmanager
def prepared_start() -> Iterator[None]:
    """Have the `start_variables` in this process's environment, for mpi4py to start MPI meanwhile."""
    before = os.environ.get(TRANSPORTS)
    os.environ.update(start_variables(alone=not any(os.environ.get(name) for name in _LAUNCHED)))
    try:
        yield
    finally:  # what this process starts is not alone
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
