"""Rules that choose the plan by which ranks meet, from arguments and environment variables.

The rules are tried in this order, and the first that applies is taken:

1. arguments of the program: a communicator, a store, or a meeting point;
2. GRADIENTFLOW_MEET, with GRADIENTFLOW_RANK and GRADIENTFLOW_SIZE; setting only some of the three is an error, unless
   MPI's launcher has started this process;
3. MPI's launcher, by its own variables, unless ``torchrun`` has started this process: below ``srun``, all processes
   of ``torchrun`` inherit the same variables of MPI;
4. RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT, as set by ``torchrun`` and many other launchers;
5. Slurm's step;
6. else this process is the only rank.

GRADIENTFLOW_TRANSPORT, or an argument, overrides the choice of the transport. With ``mpi`` the job is an MPI job,
whatever the variables say. With ``tcp``, ranks started by MPI meet through MPI, except in a Slurm step, where they do
not need MPI. Without an override, ranks that have met through MPI choose together. All functions here depend on their
arguments only, and start nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

from gradientflow import launcher_variables
from gradientflow.errors import ArgumentError

from .plan import ALONE, ARGUMENTS, MASTER, MEET, MPI_LAUNCHER, RESTARTS, SLURM, MeetingPlan
from .slurm import (
    is_first_of_first_node,
    is_started_by_srun,
    meeting_points,
    name_of_step,
    place_in_step,
    tasks_of_step,
)
from .variables import (
    RankAndSize,
    Variables,
    checked_place,
    join_address,
    read_lenient,
    read_number,
    read_place,
    read_port,
    split_address,
)

SERVERS = "GRADIENTFLOW_SERVERS"  # number of ranks that only serve, the last of the job
TRANSPORTS = ("auto", "mpi", "tcp")

_MEET = ("GRADIENTFLOW_MEET", "GRADIENTFLOW_RANK", "GRADIENTFLOW_SIZE")
_TORCHRUN = "TORCHELASTIC_RUN_ID"
_MPI_PLACES = tuple((each["RANK"], each["WORLD_SIZE"]) for each in launcher_variables.MPI)


@dataclass(frozen=True)
class InitArguments:
    """Arguments of the program to `gradientflow.init`.

    Attributes
    ----------
    communicator, store : bool
        True if the program gives a communicator, or a store.
    meet : str, optional
        ``host:port``, several with commas, or ``file:///path``.
    rank, size : int, optional
        Rank of this process, and number of ranks.
    mpi_size : int, optional
        Number of ranks of the program's MPI, if it has been started already.
    """

    communicator: bool = False
    store: bool = False
    meet: str | None = None
    rank: int | None = None
    size: int | None = None
    mpi_size: int | None = None


class Considered(NamedTuple):
    """A rule, and the reason why it applies or not."""

    name: str
    applies: bool
    why: str


def find_plan(variables: Variables, given: InitArguments | None = None, transport: str = "auto") -> MeetingPlan:
    """Return the plan of the first rule that applies.

    Parameters
    ----------
    variables : mapping of str to str
        The environment.
    given : InitArguments, optional
        Arguments of the program.
    transport : {"auto", "mpi", "tcp"}
        Transport asked for.

    Raises
    ------
    gradientflow.errors.ArgumentError
        If variables contradict each other, are incomplete, or have a wrong value.
    """
    answers = [answer for _, answer in _answers(variables, given or InitArguments(), transport)]
    assert isinstance(answers[-1], MeetingPlan)  # the last rule always applies
    return answers[-1]


def consider_rules(
    variables: Variables, given: InitArguments | None = None, transport: str = "auto"
) -> list[Considered]:
    """List the rules up to the first that applies, with reasons. If the last does not apply, its reason is an error."""
    found: list[Considered] = []
    name = ""
    try:
        for name, answer in _answers(variables, given or InitArguments(), transport):
            found.append(Considered(name, isinstance(answer, MeetingPlan), str(answer)))
    except ArgumentError as error:
        missing = next(each for each in _RULES if each not in [name for name, _, _ in found])
        found.append(Considered(missing, applies=False, why=str(error)))
    return found


def is_mpi_job(variables: Variables, given: InitArguments | None = None, transport: str = "auto") -> bool:
    """Return True if this is an MPI job; for callers that know rank and size already."""
    if transport != "auto":
        return transport == "mpi"
    return not all(variables.get(name) for name in _MEET) and _by_mpis_launcher(variables, given or InitArguments())


def servers_of(variables: Variables) -> int:
    """Return the number of ranks that only serve."""
    return read_number(variables, SERVERS) or 0


def _answers(variables: Variables, given: InitArguments, transport: str) -> Iterator[tuple[str, MeetingPlan | str]]:
    """Yield the answer of each rule: a reason from each that does not apply, then a plan from the first that does."""
    if transport not in TRANSPORTS:
        raise ArgumentError(f"transport is one of {', '.join(TRANSPORTS)}, not {transport!r}")
    for name, rule in _RULES.items():
        answer = rule(variables, given, transport)
        if isinstance(answer, MeetingPlan) and transport == "tcp":
            answer = replace(answer, transport="tcp", by_mpi=answer.by_mpi and answer.name != ALONE)
        elif isinstance(answer, MeetingPlan) and answer.by_mpi and answer.name != ALONE:
            answer = replace(answer, transport=transport)
        yield name, answer
        if isinstance(answer, MeetingPlan):
            return


def _by_arguments(variables: Variables, given: InitArguments, transport: str) -> MeetingPlan | str:
    del variables
    said = ["store"] if given.store else []
    said += [name for name in ("meet", "rank", "size") if getattr(given, name) is not None]
    if given.communicator:
        if said:
            raise ArgumentError(f"a communicator has its ranks already: give it, or {' and '.join(said)}, not both")
        return MeetingPlan(ARGUMENTS, "mpi", by_mpi=True)
    if not said:
        return "neither a communicator, a store nor meet= is given"
    if given.store == (given.meet is not None):
        raise ArgumentError("rank= and size= come with one of store= and meet=, by which the ranks find each other")
    if given.rank is None or given.size is None:
        raise ArgumentError(f"{said[0]}= needs rank= and size=, of this process and of all that take part")
    place = checked_place(given.rank, given.size, "rank", "size")
    if transport == "mpi":
        message = f"the transport is mpi, whose launcher introduces the ranks: leave {said[0]}= out, or use tcp"
        raise ArgumentError(message)
    at = () if given.meet is None else _points(given.meet, "meet")
    return MeetingPlan(ARGUMENTS, "tcp", *place, at=at, serves=place.rank == 0)


def _by_meet(variables: Variables, given: InitArguments, transport: str) -> MeetingPlan | str:
    names = _MEET
    if transport == "mpi":
        is_of_mpi = given.mpi_size not in (None, 1) or _marks_of_mpi(variables)
        if all(variables.get(name) for name in names) and variables[names[2]] != "1" and not is_of_mpi:
            raise ArgumentError(
                f"{names[0]}, {names[1]} and {names[2]} say where {variables[names[2]]} ranks meet, but the transport "
                "is mpi (GRADIENTFLOW_TRANSPORT, or an argument), and no launcher of MPI has started this process: "
                "use tcp, or start the program with gradientflow run or mpirun"
            )
        return "the transport is mpi"
    missing = [name for name in names if not variables.get(name)]
    if len(missing) == len(names):
        return "GRADIENTFLOW_MEET is not set"
    if missing:
        there = [name for name in names if name not in missing]
        if _by_mpis_launcher(variables, given):
            return f"{' and '.join(missing)} {_is(missing)} not set, and MPI's launcher has started this process"
        message = f"{' and '.join(there)} {_is(there)} set, but not {' and '.join(missing)}: all three are needed"
        raise ArgumentError(message)
    place = read_place(variables, *names[1:])
    assert place is not None  # both are set
    at, restarts = _points(variables[names[0]], names[0]), read_number(variables, RESTARTS)
    serves = place.rank == 0 and restarts is None
    return MeetingPlan(MEET, "tcp", *place, at=at, serves=serves, agent=restarts is not None, replaces=bool(restarts))


def _by_mpi(variables: Variables, given: InitArguments, transport: str) -> MeetingPlan | str:
    if transport == "mpi":
        return MeetingPlan(MPI_LAUNCHER, "mpi", by_mpi=True)
    if variables.get(_TORCHRUN):
        return f"torchrun has started this process ({_TORCHRUN})"
    places = [(read_lenient(variables, rank), read_lenient(variables, size), size) for rank, size in _MPI_PLACES]
    if given.mpi_size is not None and given.mpi_size > 1:
        return MeetingPlan(MPI_LAUNCHER, "mpi", size=given.mpi_size, by_mpi=True)
    if not _marks_of_mpi(variables):
        return "none of its variables is set"
    if transport == "tcp" and is_started_by_srun(variables):
        return "srun has started this process, and over TCP the ranks need no MPI to meet"
    known = [(rank, size, name) for rank, size, name in places if size is not None]
    _check_against_torch(variables, known)
    rank, size, _ = known[0] if known else (None, None, "")
    return MeetingPlan(MPI_LAUNCHER, "mpi", rank, size, by_mpi=True)


def _by_mpis_launcher(variables: Variables, given: InitArguments) -> bool:
    """Return True if MPI's launcher has started this process directly, not through ``torchrun``."""
    return not variables.get(_TORCHRUN) and ((given.mpi_size or 0) > 1 or bool(_marks_of_mpi(variables)))


def _marks_of_mpi(variables: Variables) -> list[str]:
    """Return the variables of MPI's launchers that are set."""
    return [name for names in (*_MPI_PLACES, launcher_variables.MPI_OF_SLURM) for name in names if variables.get(name)]


def _check_against_torch(variables: Variables, places: list[tuple[int | None, int, str]]) -> None:
    """Raise if WORLD_SIZE or RANK contradicts all variables of MPI's launchers."""
    world, rank, servers = read_number(variables, "WORLD_SIZE"), read_number(variables, "RANK"), servers_of(variables)
    if world is None or not places:
        return
    remedy = "unset those of the launcher that did not start this process, or say GRADIENTFLOW_TRANSPORT=mpi"
    if all(size - servers != world for _, size, _ in places):
        serving = f" of which {servers} serve ({SERVERS})," if servers else ""
        raise ArgumentError(f"{places[0][2]} says {places[0][1]} ranks,{serving} but WORLD_SIZE says {world}: {remedy}")
    if rank is not None and all(each is not None and each != rank for each, _, _ in places):
        raise ArgumentError(f"{places[0][2].replace('SIZE', 'RANK')} is {places[0][0]}, but RANK is {rank}: {remedy}")


def _by_master(variables: Variables, given: InitArguments, transport: str) -> MeetingPlan | str:
    del given, transport
    place = read_place(variables, "RANK", "WORLD_SIZE")
    if place is None:
        return "RANK and WORLD_SIZE are not set"
    at: tuple[str, ...] = ()
    if missing := [name for name in ("MASTER_ADDR", "MASTER_PORT") if not variables.get(name)]:
        if place.size > 1:
            raise ArgumentError(
                f"RANK is {place.rank} and WORLD_SIZE is {place.size}, but {' and '.join(missing)} {_is(missing)} not "
                "set: the ranks meet there"
            )
    else:
        at = (_master(variables),)
    agent = variables.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    return MeetingPlan(
        MASTER,
        "tcp",
        *place,
        at=at,
        serves=place.rank == 0 and not agent,
        job=_job(variables, place.size),
        agent=agent,
        restart=variables.get("TORCHELASTIC_RESTART_COUNT", ""),
    )


def _by_slurm(variables: Variables, given: InitArguments, transport: str) -> MeetingPlan | str:
    del given, transport
    place: RankAndSize | None = place_in_step(variables)
    if place is None:
        return "this is no step of several tasks"
    job, serves = name_of_step(variables), is_first_of_first_node(variables)
    return MeetingPlan(SLURM, "tcp", *place, at=meeting_points(variables), serves=serves, job=job)


def _alone(variables: Variables, given: InitArguments, transport: str) -> MeetingPlan:
    del variables, given, transport
    return MeetingPlan(ALONE, "mpi", 0, 1, by_mpi=True)


_RULES: dict[str, Callable[[Variables, InitArguments, str], MeetingPlan | str]] = {
    ARGUMENTS: _by_arguments,
    MEET: _by_meet,
    MPI_LAUNCHER: _by_mpi,
    MASTER: _by_master,
    SLURM: _by_slurm,
    ALONE: _alone,
}


def _job(variables: Variables, size: int) -> str:
    """Return a name of the job that PyTorch's variables describe, because other jobs may use the same store.

    The name leaves out the address of the store, because the address may differ between ranks.
    """
    names = [f"{size} ranks"]
    if run := variables.get(_TORCHRUN):
        names.append(f"torchrun's job {run}")
    if tasks_of_step(variables) == size:  # otherwise the ranks are in several steps
        names.append(name_of_step(variables))
    return ", ".join(names)


def _points(text: str, what: str) -> tuple[str, ...]:
    """Check meeting points and split them at commas."""
    if text.startswith("file://"):
        if not text.removeprefix("file://").startswith("/"):
            raise ArgumentError(f"{what} is {text!r}: a file is given with its whole path, as in file:///shared/meet")
        return (text,)
    each = text.split(",")
    if len(each) > 1 and not all(part.strip() for part in each):
        raise ArgumentError(f"{what} is {text!r}: a host:port is missing before or after a comma")
    return tuple(join_address(*split_address(part, what)) for part in each)


def _master(variables: Variables) -> str:
    return join_address(variables["MASTER_ADDR"].strip("[]"), read_port(variables["MASTER_PORT"], "MASTER_PORT"))


def _is(names: list[str]) -> str:
    return "is" if len(names) == 1 else "are"
