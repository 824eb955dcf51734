"""What this process was started in: an MPI job, an allocation of a batch system."""

from __future__ import annotations

import os

# Set by batch systems inside an allocation, where the launcher knows hosts and slots by itself.
_ALLOCATION_VARIABLES = ("SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID", "PE_HOSTFILE")
# Steps from this number on are made by Slurm itself, such as the one that a shell of an allocation runs in: no ranks.
_FIRST_STEP_OF_SLURM = 0xFFFFFF00


def ranks_of_this_job() -> int | None:
    """Give the number of ranks of the MPI job this process was started in, or None outside one."""
    ranks = _number_in_environment("OMPI_COMM_WORLD_SIZE", "PMI_SIZE")
    return ranks if ranks is not None else _ranks_of_this_step()


def rank_of_this_process() -> int | None:
    """Give this process's rank in the MPI job it was started in, or None outside one."""
    rank = _number_in_environment("OMPI_COMM_WORLD_RANK", "PMI_RANK")
    return rank if rank is not None or _ranks_of_this_step() is None else _number_in_environment("SLURM_PROCID")


def in_allocation() -> bool:
    """Tell whether this process runs in an allocation of a batch system."""
    return any(os.environ.get(name) for name in _ALLOCATION_VARIABLES)


def _ranks_of_this_step() -> int | None:
    """Give the number of tasks of this process's Slurm step, or None outside a step and in a step of one task.

    Under ``srun`` with PMIx nothing else tells the number of ranks. A step of one task may be a shell in which jobs are
    started.
    """
    step = _number_in_environment("SLURM_STEP_ID", "SLURM_STEPID")
    tasks = _number_in_environment("SLURM_STEP_NUM_TASKS")
    return tasks if step is not None and step < _FIRST_STEP_OF_SLURM and tasks is not None and tasks > 1 else None


def _number_in_environment(*names: str) -> int | None:
    texts = (os.environ.get(name, "") for name in names)
    return next((int(text) for text in texts if text.isdecimal()), None)
