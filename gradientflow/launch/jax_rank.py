"""Environment variables of a rank for JAX: the library that its CPU backend loads for collectives, and the job.

JAX's CPU backend calls MPI through the library named by MPITRAMPOLINE_LIB: ours. ``jax.distributed.initialize()``
without arguments tries each kind of cluster that JAX knows. It detects Open MPI by variables alone, so any job can look
like an Open MPI job: OMPI_MCA_orte_hnp_uri marks it, and OMPI_COMM_WORLD_RANK and similar variables give the rank.

As a program, ``main PORT PROGRAM...`` runs on every rank of ``gradientflow run --jax`` in place of the program, sets
these variables, and becomes the program.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from gradientflow import launcher_variables as launchers
from gradientflow._location import jax_library
from gradientflow.errors import GradientFlowError
from gradientflow.meeting import find_plan
from gradientflow.meeting.plan import ALONE, MASTER, SLURM, MeetingPlan
from gradientflow.meeting.slurm import meeting_points
from gradientflow.meeting.stores import TOKEN
from gradientflow.meeting.variables import Variables, join_address, read_lenient, read_port, split_address

from .command import module_command
from .ports import free_port

_LIBRARY = "MPITRAMPOLINE_LIB"
_IMPLEMENTATION = "JAX_CPU_COLLECTIVES_IMPLEMENTATION"
_COORDINATOR = "JAX_COORDINATOR_ADDRESS"
_OPEN_MPI = launchers.OPEN_MPI
_LOCAL_RANKS = tuple(each["LOCAL_RANK"] for each in (_OPEN_MPI, launchers.TORCHRUN, launchers.MPICH, launchers.SLURM))


def jax_variables(variables: Variables, port: int | None = None) -> dict[str, str]:
    """Return the variables that a rank of a JAX program needs and that are not set.

    Parameters
    ----------
    variables : mapping of str to str
        The rank's environment.
    port : int, optional
        Port of rank 0's host that is kept free for JAX's coordinator; by default MASTER_PORT + 1, or a port that
        follows from the numbers of Slurm's step.

    Returns
    -------
    dict of str to str
        Variables to set. Outside a job, only variables that all ranks share. If the host of rank 0 is unknown, the
        variables by which ``jax.distributed.initialize()`` finds the job are missing.
    """
    needed = {_LIBRARY: str(jax_library()), _IMPLEMENTATION: "mpi"}
    plan = find_plan(variables)
    if plan.name != ALONE and plan.rank is not None and plan.size is not None:
        coordinator = variables.get(_COORDINATOR) or _coordinator(variables, plan, port)
        if coordinator:
            needed |= {
                _COORDINATOR: coordinator,
                "OMPI_MCA_orte_hnp_uri": "gradientflow",
                _OPEN_MPI["RANK"]: str(plan.rank),
                _OPEN_MPI["WORLD_SIZE"]: str(plan.size),
                _OPEN_MPI["LOCAL_RANK"]: str(_local_rank(variables)),
            }
        if plan.name in (MASTER, SLURM):  # precedes the variables of Open MPI above: see gradientflow.meeting.rules
            needed |= {
                "GRADIENTFLOW_MEET": _meeting_points(variables, plan),
                "GRADIENTFLOW_RANK": str(plan.rank),
                "GRADIENTFLOW_SIZE": str(plan.size),
                TOKEN: plan.password(""),
            }
    return {name: value for name, value in needed.items() if not variables.get(name)}


def jax_contradictions(variables: Variables) -> list[str]:
    """Return a sentence for each environment variable that prevents JAX from using GradientFlow."""
    sentences = []
    library = variables.get(_LIBRARY)
    if library and library != str(jax_library()):
        sentences.append(f"{_LIBRARY} is {library}: JAX uses that library, not GradientFlow's; unset it")
    implementation = variables.get(_IMPLEMENTATION)
    if implementation and implementation != "mpi":
        sentences.append(
            f"{_IMPLEMENTATION} is {implementation}: JAX's collectives are that one's, not GradientFlow's; unset it"
        )
    return sentences


def jax_program(program: Sequence[str]) -> list[str]:
    """Return a program wrapped so that each rank has the variables of `jax_variables` in its environment."""
    return module_command(__name__, [str(free_port()), *program])


def main() -> None:
    """Set the variables, and become the program."""
    port, program = int(sys.argv[1]), sys.argv[2:]
    try:
        os.environ.update(jax_variables(os.environ, port))
        os.execvp(program[0], program)
    except (GradientFlowError, OSError) as error:
        sys.exit(f"gradientflow: {program[0]} cannot be started: {error}")


def _coordinator(variables: Variables, plan: MeetingPlan, port: int | None) -> str:
    """Return the address at which rank 0 opens JAX's coordinator; empty if its host is unknown."""
    host = variables.get("MASTER_ADDR", "").strip("[]")
    if host and variables.get("MASTER_PORT"):
        return join_address(host, port or read_port(variables["MASTER_PORT"], "MASTER_PORT") + 1)
    return meeting_points(variables, "JAX's coordinator")[0] if plan.name == SLURM else ""


def _meeting_points(variables: Variables, plan: MeetingPlan) -> str:
    """Return meeting points for this job alone: other programs may use the launcher's."""
    if plan.name == SLURM:
        return ",".join(meeting_points(variables, "JAX"))
    host, port = split_address(plan.at[0], plan.name)
    return join_address(host, port + 2)


def _local_rank(variables: Variables) -> int:
    return next((rank for name in _LOCAL_RANKS if (rank := read_lenient(variables, name)) is not None), 0)
