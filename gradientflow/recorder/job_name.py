"""A name of the job in which this process was started, equal on all its ranks."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping

_TOKEN = "GRADIENTFLOW_TOKEN"
_LENGTH = 8

# Variables that launchers set, equal in all processes of a job.
_OF_LAUNCHERS = (
    *("GRADIENTFLOW_MEET", "TORCHELASTIC_RUN_ID", "SLURM_JOB_ID", "SLURM_STEP_ID"),
    *("PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid", "OMPI_MCA_orte_hnp_uri", "MASTER_ADDR", "MASTER_PORT"),
)


def job_name(variables: Mapping[str, str], meet: str = "") -> str:
    """Return eight digits: from the token, or else from variables of launchers and the address where the ranks meet.

    Ranks without either share a name if they have the same parent process.
    """
    told = [f"{name}={variables[name]}" for name in _OF_LAUNCHERS if variables.get(name)]
    text = variables.get(_TOKEN) or "\n".join([*told, *filter(None, [meet])]) or f"child of {os.getppid()}"
    return hashlib.sha256(f"name of a job\n{text}".encode()).hexdigest()[:_LENGTH]


__all__ = ["job_name"]
