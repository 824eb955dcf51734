"""Tables of the variables in which launchers give each process its rank and size, by ``torchrun``'s names.

Launchers load this file by its path: it imports nothing. ``kernels/transport/mpi/launcher.cpp`` repeats the variables
of ranks and sizes for C programs; a test compares them.
"""

from __future__ import annotations

TORCHRUN = {name: name for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")}
OPEN_MPI = {
    "RANK": "OMPI_COMM_WORLD_RANK",
    "WORLD_SIZE": "OMPI_COMM_WORLD_SIZE",
    "LOCAL_RANK": "OMPI_COMM_WORLD_LOCAL_RANK",
    "LOCAL_WORLD_SIZE": "OMPI_COMM_WORLD_LOCAL_SIZE",
}
MPICH = {  # and libraries derived from it, such as Intel MPI
    "RANK": "PMI_RANK",
    "WORLD_SIZE": "PMI_SIZE",
    "LOCAL_RANK": "MPI_LOCALRANKID",
    "LOCAL_WORLD_SIZE": "MPI_LOCALNRANKS",
}
MVAPICH = {
    "RANK": "MV2_COMM_WORLD_RANK",
    "WORLD_SIZE": "MV2_COMM_WORLD_SIZE",
    "LOCAL_RANK": "MV2_COMM_WORLD_LOCAL_RANK",
    "LOCAL_WORLD_SIZE": "MV2_COMM_WORLD_LOCAL_SIZE",
}
SLURM = {"RANK": "SLURM_PROCID", "WORLD_SIZE": "SLURM_STEP_NUM_TASKS", "LOCAL_RANK": "SLURM_LOCALID"}

MPI = (OPEN_MPI, MPICH, MVAPICH)
# Signs of an srun that starts processes for MPI. Ranks and sizes come from Slurm's own variables.
MPI_OF_SLURM = ("PMIX_RANK", "PMI_CONTROL_PORT")

# Beginning of the paths of pipes for the ranks' standard error; a rank's path ends with its number.
PIPES = "GRADIENTFLOW_STDERR_PIPES"
