"""What Slurm's variables say about a step: the processes that one ``srun`` has started."""

from __future__ import annotations

import hashlib
import re

from gradientflow.errors import ArgumentError
from gradientflow.launcher_variables import MPICH, MVAPICH, OPEN_MPI, SLURM

from .variables import Place, Variables, checked_place, join_address, read_lenient, read_number

RANK, TASKS = SLURM["RANK"], SLURM["WORLD_SIZE"]

# Steps from this number on are made by Slurm itself, such as the one that a shell of an allocation runs in: no ranks.
_FIRST_STEP_OF_SLURM = 0xFFFFFF00
_PORTS = range(20000, 30000)  # outside the ephemeral ports of Linux
_STRIDE = 101  # of jobs: steps below it of jobs that are started one after the other begin at different ports
_TRIED = 4  # how many ports a step tries
# Set by an mpirun below a task. PMI_SIZE is left out: srun sets it, too.
_BELOW_A_TASK = (OPEN_MPI["WORLD_SIZE"], MVAPICH["WORLD_SIZE"], MPICH["LOCAL_WORLD_SIZE"])
_FIRST_NODE = re.compile(r"([^,\[]+)(?:\[([^\],-]+)[^\]]*\])?([^,\[]*)")


def tasks_of_step(variables: Variables) -> int | None:
    """Give the number of tasks of this process's step, or None outside a step and in a step of one task.

    A step of one task may be a shell in which jobs are started.
    """
    step = _step(variables)
    tasks = read_lenient(variables, TASKS)
    return tasks if step is not None and step < _FIRST_STEP_OF_SLURM and tasks is not None and tasks > 1 else None


def place_in_step(variables: Variables) -> Place | None:
    """Give this process's place in its step, or None as `tasks_of_step`.

    Raises
    ------
    gradientflow.errors.ArgumentError
        If it is said to be in a step, and not, or wrongly, which of its tasks it is.
    """
    tasks = tasks_of_step(variables)
    if tasks is None:
        return None
    rank = read_number(variables, RANK)
    if rank is None:
        raise ArgumentError(f"{TASKS} is {tasks}, but {RANK} is not set: both are needed, or neither")
    return checked_place(rank, tasks, RANK, TASKS)


def name_of_step(variables: Variables) -> str:
    """Return what tells this process's step from all others; all its tasks find the same."""
    return f"Slurm's step {variables.get('SLURM_JOB_ID', '')}.{_step(variables)}"


def is_started_by_srun(variables: Variables) -> bool:
    """Tell whether this process is a task of its step, and not one that a launcher of MPI has started below a task."""
    place = place_in_step(variables)
    if place is None or any(variables.get(name) for name in _BELOW_A_TASK):
        return False
    said = [(name, place.rank) for name in (MPICH["RANK"], "PMIX_RANK")] + [(MPICH["WORLD_SIZE"], place.size)]
    return all(read_lenient(variables, name) in (None, number) for name, number in said)


def first_node(variables: Variables) -> str:
    """Return the name of the first node of the list, which need not be that of rank 0; empty if Slurm does not say."""
    nodes = variables.get("SLURM_STEP_NODELIST") or variables.get("SLURM_JOB_NODELIST", "")
    match = _FIRST_NODE.match(nodes)
    return "".join(match.groups("")) if match else ""


def is_first_of_first_node(variables: Variables) -> bool:
    """Tell whether this is the task that serves the step: the first one of the node where all look for it.

    Rank 0 is there, too, unless the step has several components, or an arbitrary distribution. Where Slurm does not say
    which task this is, it is rank 0.
    """
    node, local_rank = variables.get("SLURMD_NODENAME"), read_lenient(variables, SLURM["LOCAL_RANK"])
    if not node or local_rank is None:
        return read_lenient(variables, RANK) == 0
    return node == first_node(variables) and local_rank == 0


def meeting_points(variables: Variables, use: str = "") -> tuple[str, ...]:
    """Return where the tasks of a step meet: its first node, and ports that they all find by the step's numbers.

    A port may be taken, by another step or another program: then the next one is for this step.

    Parameters
    ----------
    variables : mapping of str to str
        The environment.
    use : str, optional
        Whatever has another use has other ports.
    """
    node = first_node(variables)
    if not node:
        raise ArgumentError(
            f"{TASKS} is {variables.get(TASKS)}, but neither SLURM_STEP_NODELIST nor SLURM_JOB_NODELIST says where the "
            "ranks can meet: set GRADIENTFLOW_MEET, GRADIENTFLOW_RANK and GRADIENTFLOW_SIZE"
        )
    ports = [] if use else [(read_lenient(variables, "SLURM_JOB_ID") or 0) * _STRIDE + (_step(variables) or 0)]
    while len(ports) < _TRIED:
        text = f"{name_of_step(variables)} {use} {len(ports)}"
        ports.append(int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big"))
    return tuple(join_address(node, _PORTS[port % len(_PORTS)]) for port in ports)


def _step(variables: Variables) -> int | None:
    step = read_lenient(variables, "SLURM_STEP_ID")
    return read_lenient(variables, "SLURM_STEPID") if step is None else step
