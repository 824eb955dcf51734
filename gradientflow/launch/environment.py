"""Detection of the job, and of the allocation of a batch system, in which this process was started."""

from __future__ import annotations

import os
from collections.abc import Mapping

from gradientflow import launcher_variables
from gradientflow.meeting.slurm import RANK, tasks_of_step

from .launcher import LaunchError
from .machine import BINDINGS

BIND = "GRADIENTFLOW_BIND"

# Variables that batch systems set inside an allocation, where the launcher knows hosts and slots by itself.
_ALLOCATION_VARIABLES = ("SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID", "PE_HOSTFILE")
# Variables that name a file with the hosts for MPI's launcher, as Kubernetes' MPIJob writes it.
_HOSTFILE_VARIABLES = ("PRTE_MCA_prte_default_hostfile", "OMPI_MCA_orte_default_hostfile", "HYDRA_HOST_FILE")

# Variables of Open MPI 4, which MPIJob sets, by the names that the launcher of Open MPI 5 reads.
_RENAMED = {
    "OMPI_MCA_orte_default_hostfile": "PRTE_MCA_prte_default_hostfile",
    "OMPI_MCA_orte_keep_fqdn_hostnames": "PRTE_MCA_prte_keep_fqdn_hostnames",
    "OMPI_MCA_orte_set_default_slots": "PRTE_MCA_prte_set_default_slots",
    "OMPI_MCA_plm_rsh_agent": "PRTE_MCA_plm_ssh_agent",
    "OMPI_MCA_plm_rsh_args": "PRTE_MCA_plm_ssh_args",
}

_PREFIXES = ("GRADIENTFLOW_", "JAX_", "XLA_", "MPITRAMPOLINE_")


def ranks_of_this_job() -> int | None:
    """Return the number of ranks of the job in which MPI's launcher or ours started this process; None outside one."""
    ours = ["GRADIENTFLOW_SIZE"] if os.environ.get("GRADIENTFLOW_RANK") else []  # without a rank, it is for a later job
    ranks = _number_in_environment(*ours, *(each["WORLD_SIZE"] for each in launcher_variables.MPI))
    return ranks if ranks is not None else tasks_of_step(os.environ)


def rank_of_this_process() -> int | None:
    """Return this process's rank in the job in which MPI's launcher or ours started it; None outside one."""
    rank = _number_in_environment("GRADIENTFLOW_RANK", *(each["RANK"] for each in launcher_variables.MPI))
    return rank if rank is not None or tasks_of_step(os.environ) is None else _number_in_environment(RANK)


def in_allocation() -> bool:
    """Return True in an allocation of a batch system, which tells MPI's launcher the hosts."""
    return any(os.environ.get(name) for name in (*_ALLOCATION_VARIABLES, *_HOSTFILE_VARIABLES))


def hostfile_of_allocation() -> str:
    """Return the file from which MPI's launcher reads its hosts; empty if there is none."""
    return next(filter(None, (os.environ.get(name) for name in _HOSTFILE_VARIABLES)), "")


def renamed_variables() -> dict[str, str]:
    """Return variables of Open MPI 4's launcher by the names of Open MPI 5, which does not read the old names."""
    return {new: os.environ[old] for old, new in _RENAMED.items() if os.environ.get(old) and not os.environ.get(new)}


def asked_binding() -> str:
    """Return the binding of ranks to cores, from GRADIENTFLOW_BIND; see `share`."""
    binding = os.environ.get(BIND) or "auto"
    if binding not in BINDINGS:
        raise LaunchError(f"{BIND} is {binding!r}: it is one of {', '.join(BINDINGS)}")
    return binding


def master_of_environment(name: str) -> str:
    """Return MASTER_ADDR or MASTER_PORT chosen for a new job; empty if they belong to the job of this process."""
    return "" if os.environ.get("RANK") and os.environ.get("WORLD_SIZE") else os.environ.get(name, "")


def variables_to_forward(environment: Mapping[str, str]) -> list[str]:
    """Return the names of variables to send to ranks on other hosts, which inherit no variables."""
    names = ("CONDA_PREFIX", "LD_LIBRARY_PATH", "OMP_NUM_THREADS", "PATH", "PYTHONPATH", "VIRTUAL_ENV")
    return sorted(name for name in environment if name in names or name.startswith(_PREFIXES))


def _number_in_environment(*names: str) -> int | None:
    texts = (os.environ.get(name, "") for name in names)
    return next((int(text) for text in texts if text.isdecimal()), None)
