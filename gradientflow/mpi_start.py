"""Skipping the search for RDMA devices when the MPI library starts, on machines that have none.

Open MPI's component ``btl/ofi`` serves one-sided communication over RDMA devices. Without such devices, looking for
them costs each ``MPI_Init`` a second, in which it sleeps.
"""

from __future__ import annotations

import os
import re
import sysconfig
from pathlib import Path

TRANSPORTS = "OMPI_MCA_btl"  # which byte transfer layers Open MPI may use

_LEFT_OUT = "^ofi"
_DEVICES = tuple(Path("/sys/class", kind) for kind in ("infiniband", "cxi", "hfi1", "usnic_verbs"))
_USERS_FILE = Path(".openmpi", "mca-params.conf")  # in the home directory
_SITE_FILE = Path("etc", "openmpi-mca-params.conf")  # below the library's prefix
_DISTRIBUTIONS_FILE = Path("/etc/openmpi/openmpi-mca-params.conf")
_FILES = "OMPI_MCA_mca_base_param_files"  # lists further files, of the user's choice
_SETS_TRANSPORTS = re.compile(r"^\s*btl\s*=", re.MULTILINE)


def start_variables(prefix: str | Path | None = None) -> dict[str, str]:
    """Return the variables that make Open MPI start a second sooner.

    Parameters
    ----------
    prefix : path, optional
        Where Open MPI is installed; by default the environment of this Python.

    Returns
    -------
    dict of str to str
        ``OMPI_MCA_btl=^ofi``; nothing if this machine has an RDMA device, or if the user has chosen Open MPI's
        transports, in the environment or in one of its parameter files.
    """
    if is_chosen(TRANSPORTS) or any(_has_entries(folder) for folder in _DEVICES):
        return {}
    site = Path(prefix if prefix is not None else sysconfig.get_path("data")) / _SITE_FILE
    files = [Path(os.path.expanduser("~")) / _USERS_FILE, site, _DISTRIBUTIONS_FILE]
    files += [Path(name) for name in os.environ.get(_FILES, "").split(",") if name]
    return {} if any(_sets_transports(file) for file in files) else {TRANSPORTS: _LEFT_OUT}


def is_chosen(name: str) -> bool:
    """Tell whether the environment has a variable of Open MPI that does not come from `prepare_start`."""
    return name in os.environ and (name, os.environ[name]) != (TRANSPORTS, _LEFT_OUT)


def prepare_start() -> None:
    """Put the `start_variables` into this process's environment. Call it before mpi4py starts MPI."""
    os.environ.update(start_variables())


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
