"""Facts about a Slurm step, the processes started by one ``srun``, from Slurm's variables."""

from __future__ import annotations

import hashlib
import re

from gradientflow.errors import ArgumentError
from gradientflow.launcher_variables import MPICH, MVAPICH, OPEN_MPI, SLURM

from .variables import RankAndSize, Variables, checked_place, join_address, read_lenient, read_number

RANK, TASKS = SLURM["RANK"], SLURM["WORLD_SIZE"]

# Slurm numbers its own steps from here, such as the step of an allocation's shell: they have no ranks.
_FIRST_STEP_OF_SLURM = 0xFFFFFF00
_PORTS = range(20000, 30000)  # ports outside the ephemeral ports of Linux
_STRIDE = 101  # ports between consecutive jobs, so that their first 101 steps begin at different ports
_TRIED = 4  # number of ports that a step tries
# Variables set by an mpirun below a task. PMI_SIZE is left out: srun sets it, too.
_BELOW_A_TASK = (OPEN_MPI["WORLD_SIZE"], MVAPICH["WORLD_SIZE"], MPICH["LOCAL_WORLD_SIZE"])
_FIRST_NODE = re.compile(r"([^,\[]+)(?:\[([^\],-]+)[^\]]*\])?([^,\[]*)")


def tasks_of_step(variables: Variables) -> int | None:
    """Return the number of tasks of this process's step; None outside a step and in a step of one task.

    A step of one task may be a shell in which jobs are started.
    """
    step = _step(variables)
    tasks = read_lenient(variables, TASKS)
    return tasks if step is not None and step < _FIRST_STEP_OF_SLURM and tasks is not None and tasks > 1 else None


def place_in_step(variables: Variables) -> RankAndSize | None:
    """Return this process's rank and size in its step; None where `tasks_of_step` is None.

    Raises
    ------
    gradientflow.errors.ArgumentError
        If the process is in a step, but the number of its task is missing or wrong.
    """
    tasks = tasks_of_step(variables)
    if tasks is None:
        return None
    rank = read_number(variables, RANK)
    if rank is None:
        raise ArgumentError(f"{TASKS} is {tasks}, but {RANK} is not set: both are needed, or neither")
    return checked_place(rank, tasks, RANK, TASKS)


def name_of_step(variables: Variables) -> str:
    """Return a name of this process's step that no other step has, the same in all its tasks."""
    return f"Slurm's step {variables.get('SLURM_JOB_ID', '')}.{_step(variables)}"


def is_started_by_srun(variables: Variables) -> bool:
    """Return True if this process is itself a task of its step, not started by an MPI launcher below a task."""
    place = place_in_step(variables)
    if place is None or any(variables.get(name) for name in _BELOW_A_TASK):
        return False
    said = [(name, place.rank) for name in (MPICH["RANK"], "PMIX_RANK")] + [(MPICH["WORLD_SIZE"], place.size)]
    return all(read_lenient(variables, name) in (None, number) for name, number in said)


def first_node(variables: Variables) -> str:
    """Return the name of the list's first node, not always that of rank 0; empty if Slurm gives no list."""
    nodes = variables.get("SLURM_STEP_NODELIST") or variables.get("SLURM_JOB_NODELIST", "")
    match = _FIRST_NODE.match(nodes)
    return "".join(match.groups("")) if match else ""


def is_first_of_first_node(variables: Variables) -> bool:
    """Return True if this task serves the store of the step: the first task of the node where all look for the store.

    Rank 0 is on that node, too, unless the step has several components or an arbitrary distribution. If Slurm gives
    neither node nor local rank, rank 0 serves.
    """
    node, local_rank = variables.get("SLURMD_NODENAME"), read_lenient(variables, SLURM["LOCAL_RANK"])
    if not node or local_rank is None:
        return read_lenient(variables, RANK) == 0
    return node == first_node(variables) and local_rank == 0


def meeting_points(variables: Variables, use: str = "") -> tuple[str, ...]:
    """Return the meeting points of a step: its first node, with ports that follow from the step's numbers.

    If another step or program uses a port, the step takes the next one.

    Parameters
    ----------
    variables : mapping of str to str
        The environment.
    use : str, optional
        Purpose of the ports; different purposes get different ports.
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
