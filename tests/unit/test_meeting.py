"""How ranks meet: which way applies, and why."""

from __future__ import annotations

import re
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradientflow import launcher_variables
from gradientflow.errors import ArgumentError
from gradientflow.meeting import Given, Way, consider_ways, find_way, is_mpi_job
from gradientflow.meeting.slurm import first_node, meeting_points
from gradientflow.meeting.variables import join_address, split_address

MEET = {"GRADIENTFLOW_MEET": "10.0.0.1:29400", "GRADIENTFLOW_RANK": "1", "GRADIENTFLOW_SIZE": "3"}
MPIRUN = {"OMPI_COMM_WORLD_RANK": "2", "OMPI_COMM_WORLD_SIZE": "4"}
MASTER = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "29500"}
TORCHRUN = {
    **MASTER,
    "TORCHELASTIC_RUN_ID": "none",
    "TORCHELASTIC_USE_AGENT_STORE": "True",
    "TORCHELASTIC_RESTART_COUNT": "2",
}
STEP = {
    "SLURM_JOB_ID": "7",
    "SLURM_STEP_ID": "1",
    "SLURM_STEP_NUM_TASKS": "8",
    "SLURM_PROCID": "5",
    "SLURM_STEP_NODELIST": "node[03-07],other",
}
SRUN_OF_MPI = {**STEP, "PMI_RANK": "0", "PMI_SIZE": "1", "PMIX_RANK": "0"}

BY_MEET = Way("GRADIENTFLOW_MEET", "tcp", 1, 3, ("10.0.0.1:29400",))
BY_MPI = Way("MPI's launcher", "auto", 2, 4, by_mpi=True)
BY_MASTER = Way("RANK and MASTER_ADDR", "tcp", 1, 2, ("10.0.0.1:29500",), job="2 ranks")
BY_TORCHRUN = replace(BY_MASTER, job="2 ranks, torchrun's job none", agent=True, restart="2")
PORTS = tuple(f"node03:{port}" for port in (20708, 24476, 24260, 21005))
BY_STEP = Way("Slurm's step", "tcp", 5, 8, PORTS, job="Slurm's step 7.1")
ALONE = Way("one rank", "mpi", 0, 1, by_mpi=True)


@pytest.mark.parametrize(
    ("variables", "way"),
    [
        ({}, ALONE),
        (MEET, BY_MEET),
        (MPIRUN, BY_MPI),
        (MASTER, BY_MASTER),
        (TORCHRUN, BY_TORCHRUN),
        (STEP, BY_STEP),
        # The order.
        ({**STEP, **TORCHRUN, **MPIRUN, **MEET}, BY_MEET),
        ({**STEP, **MPIRUN, **MASTER, "WORLD_SIZE": "4", "RANK": "2"}, BY_MPI),
        ({**SRUN_OF_MPI, **TORCHRUN}, BY_TORCHRUN),  # srun torchrun: all its processes inherit the variables of MPI
        ({**STEP, **MASTER}, BY_MASTER),
        # Where to meet, but not as which rank: nobody is to be refused for it whom MPI's launcher has started.
        ({**MPIRUN, "GRADIENTFLOW_MEET": "10.0.0.1:29400"}, BY_MPI),
        ({**MPIRUN, "GRADIENTFLOW_RANK": "1", "GRADIENTFLOW_SIZE": "3"}, BY_MPI),
        # MPI's launchers.
        ({"PMI_RANK": "1", "PMI_SIZE": "2"}, Way("MPI's launcher", "auto", 1, 2, by_mpi=True)),
        ({"MV2_COMM_WORLD_RANK": "0", "MV2_COMM_WORLD_SIZE": "2"}, Way("MPI's launcher", "auto", 0, 2, by_mpi=True)),
        ({**STEP, "PMIX_RANK": "5"}, Way("MPI's launcher", "auto", by_mpi=True)),
        ({"PMI_SIZE": "3"}, Way("MPI's launcher", "auto", None, 3, by_mpi=True)),
        ({"PMI_RANK": "some", "PMI_SIZE": "3"}, Way("MPI's launcher", "auto", None, 3, by_mpi=True)),
        # Ranks that only serve are none of the world of PyTorch.
        (
            {**MPIRUN, **MASTER, "RANK": "2", "WORLD_SIZE": "3", "GRADIENTFLOW_SERVERS": "1"},
            BY_MPI,
        ),
        # One launcher below another.
        (
            {"PMI_RANK": "1", "PMI_SIZE": "2", "OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "1", **MASTER},
            Way("MPI's launcher", "auto", 0, 1, by_mpi=True),
        ),
        # Addresses.
        (
            {**MEET, "GRADIENTFLOW_MEET": "a:1,[fe80::1%eth0]:2"},
            Way("GRADIENTFLOW_MEET", "tcp", 1, 3, ("a:1", "[fe80::1%eth0]:2")),
        ),
        (
            {**MEET, "GRADIENTFLOW_MEET": "file:///shared/meet"},
            Way("GRADIENTFLOW_MEET", "tcp", 1, 3, ("file:///shared/meet",)),
        ),
        ({**MASTER, "MASTER_ADDR": "::1"}, replace(BY_MASTER, at=("[::1]:29500",))),
        # Who opens the store.
        ({**MEET, "GRADIENTFLOW_RANK": "0"}, replace(BY_MEET, rank=0, serves=True)),
        ({**MEET, "GRADIENTFLOW_RANK": "0", "GRADIENTFLOW_RESTARTS": "0"}, replace(BY_MEET, rank=0, agent=True)),
        ({**MASTER, "RANK": "0"}, replace(BY_MASTER, rank=0, serves=True)),
        ({**TORCHRUN, "RANK": "0"}, replace(BY_TORCHRUN, rank=0)),
        ({**STEP, "SLURM_PROCID": "0"}, replace(BY_STEP, rank=0, serves=True)),
        # Nobody else is to come.
        ({"RANK": "0", "WORLD_SIZE": "1"}, Way("RANK and MASTER_ADDR", "tcp", 0, 1, serves=True, job="1 ranks")),
        # No step of several tasks: a batch script, a shell of an allocation, one task.
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "4", "SLURM_NNODES": "2"}, ALONE),
        ({**STEP, "SLURM_STEP_ID": str(0xFFFFFFFB)}, ALONE),
        ({**STEP, "SLURM_STEP_NUM_TASKS": "1", "SLURM_PROCID": "0"}, ALONE),
        # An empty variable is one that is not set.
        ({"RANK": "", "WORLD_SIZE": "", "GRADIENTFLOW_MEET": "", "PMI_RANK": ""}, ALONE),
    ],
)
def test_the_first_way_that_applies(variables: dict[str, str], way: Way) -> None:
    assert find_way(variables) == way


def test_c_knows_the_launchers_by_the_same_variables() -> None:
    text = Path(__file__).parents[2].joinpath("kernels/transport/mpi/launcher.cpp").read_text(encoding="utf-8")
    known = re.findall(r'\{"([A-Z_]+)", "([A-Z_]+)", "', text)
    launchers = (launcher_variables.OPEN_MPI, launcher_variables.MPICH, launcher_variables.SLURM)
    assert known == [(each["RANK"], each["WORLD_SIZE"]) for each in (*launchers, launcher_variables.TORCHRUN)]


@pytest.mark.parametrize(
    ("given", "way"),
    [
        (Given(communicator=True), Way("arguments of init", "auto", by_mpi=True)),
        (Given(store=True, rank=0, size=2), Way("arguments of init", "tcp", 0, 2, serves=True)),
        (Given(meet="h:80", rank=1, size=2), Way("arguments of init", "tcp", 1, 2, ("h:80",))),
    ],
)
def test_what_the_program_says_comes_first(given: Given, way: Way) -> None:
    for variables in ({}, MEET, MPIRUN, TORCHRUN, STEP, {"RANK": "1"}):
        assert find_way(variables, given) == way


def test_mpi_that_the_program_has_started() -> None:
    """Its launcher may set variables that nobody knows here."""
    assert find_way(MASTER, Given(mpi_size=3)) == Way("MPI's launcher", "auto", size=3, by_mpi=True)
    assert find_way(MASTER, Given(mpi_size=1)) == BY_MASTER
    assert find_way(TORCHRUN, Given(mpi_size=3)) == BY_TORCHRUN


@pytest.mark.parametrize("variables", [{}, MPIRUN, TORCHRUN, STEP, {**MPIRUN, **MASTER}, {"WORLD_SIZE": "x"}])
def test_mpi_by_hand(variables: dict[str, str]) -> None:
    assert find_way(variables, transport="mpi") == Way("MPI's launcher", "mpi", by_mpi=True)


@pytest.mark.parametrize(
    ("variables", "given", "way", "starts_mpi"),
    [
        ({}, Given(), ALONE, False),
        (MEET, Given(), BY_MEET, False),
        (MPIRUN, Given(), BY_MPI, True),  # the ranks meet through it
        (TORCHRUN, Given(), BY_TORCHRUN, False),
        ({**SRUN_OF_MPI, **TORCHRUN}, Given(), BY_TORCHRUN, False),
        (STEP, Given(), BY_STEP, False),
        ({}, Given(communicator=True), Way("arguments of init", "mpi"), True),
        # Tasks of srun need no MPI to meet, which may not know of the others; but mpirun starts processes below a task.
        ({**STEP, "PMI_RANK": "5", "PMI_SIZE": "8", "SLURM_MPI_TYPE": "pmi2"}, Given(), BY_STEP, False),
        ({**STEP, "PMIX_RANK": "5"}, Given(), BY_STEP, False),
        ({**STEP, "PMIX_RANK": "5"}, Given(mpi_size=8), Way("MPI's launcher", "mpi", size=8), True),
        ({**STEP, **MPIRUN}, Given(), BY_MPI, True),
        ({**STEP, "PMI_RANK": "5", "PMI_SIZE": "4"}, Given(), Way("MPI's launcher", "mpi", 5, 4), True),
        (
            {**STEP, "PMI_RANK": "5", "PMI_SIZE": "8", "MPI_LOCALNRANKS": "1"},
            Given(),
            Way("MPI's launcher", "mpi", 5, 8),
            True,
        ),
    ],
)
def test_tcp_by_hand(variables: dict[str, str], given: Given, way: Way, starts_mpi: bool) -> None:
    assert find_way(variables, given, "tcp") == Way(**{**asdict(way), "transport": "tcp", "by_mpi": starts_mpi})


@pytest.mark.parametrize(
    ("variables", "given", "transport", "expected"),
    [
        ({}, Given(), "auto", False),
        ({"RANK": "1", "GRADIENTFLOW_MEET": "a:1"}, Given(), "auto", False),  # which are no way
        (MEET, Given(), "auto", False),
        ({**MPIRUN, **MEET}, Given(), "auto", False),
        ({**MPIRUN, **MASTER, "GRADIENTFLOW_MEET": "a:1"}, Given(), "auto", True),  # though they contradict each other
        ({**SRUN_OF_MPI, **TORCHRUN}, Given(), "auto", False),
        (MASTER, Given(mpi_size=2), "auto", True),
        (MPIRUN, Given(), "tcp", False),
        ({}, Given(), "mpi", True),
    ],
)
def test_whether_messages_are_those_of_mpi(
    variables: dict[str, str], given: Given, transport: str, expected: bool
) -> None:
    assert is_mpi_job(variables, given, transport) == expected


@pytest.mark.parametrize(
    ("variables", "words"),
    [
        # Half of what belongs together.
        ({"RANK": "1"}, ["RANK is 1", "WORLD_SIZE is not set"]),
        ({"WORLD_SIZE": "2"}, ["WORLD_SIZE is 2", "RANK is not set"]),
        ({"RANK": "1", "WORLD_SIZE": "2"}, ["RANK is 1", "MASTER_ADDR and MASTER_PORT are not set"]),
        ({"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "a"}, ["RANK is 1", "MASTER_PORT is not set"]),
        ({**TORCHRUN, "GRADIENTFLOW_MEET": "a:1"}, ["GRADIENTFLOW_MEET is set"]),
        ({"GRADIENTFLOW_MEET": "a:1"}, ["GRADIENTFLOW_MEET is set", "not GRADIENTFLOW_RANK and GRADIENTFLOW_SIZE"]),
        (
            {"GRADIENTFLOW_RANK": "1", "GRADIENTFLOW_SIZE": "2"},
            ["GRADIENTFLOW_RANK and GRADIENTFLOW_SIZE are set", "not GRADIENTFLOW_MEET"],
        ),
        ({**STEP, "SLURM_STEP_NODELIST": ""}, ["SLURM_STEP_NUM_TASKS is 8", "SLURM_STEP_NODELIST"]),
        # Values.
        ({**MEET, "GRADIENTFLOW_RANK": "3"}, ["GRADIENTFLOW_RANK is 3", "GRADIENTFLOW_SIZE is 3", "0 to 2"]),
        ({**MEET, "GRADIENTFLOW_RANK": "-1"}, ["GRADIENTFLOW_RANK is '-1'"]),
        ({**MEET, "GRADIENTFLOW_SIZE": "0", "GRADIENTFLOW_RANK": "0"}, ["GRADIENTFLOW_SIZE is 0", "at least one rank"]),
        ({**MASTER, "RANK": "2"}, ["RANK is 2", "WORLD_SIZE is 2"]),
        ({**MASTER, "WORLD_SIZE": "two"}, ["WORLD_SIZE is 'two'"]),
        ({**MASTER, "MASTER_PORT": "70000"}, ["MASTER_PORT is '70000'", "1 to 65535"]),
        ({**MEET, "GRADIENTFLOW_MEET": "somewhere"}, ["GRADIENTFLOW_MEET is 'somewhere'", "host:port"]),
        ({**MEET, "GRADIENTFLOW_MEET": "a:1,b"}, ["GRADIENTFLOW_MEET is 'b'"]),
        ({**MEET, "GRADIENTFLOW_MEET": "a:1,,"}, ["GRADIENTFLOW_MEET is 'a:1,,'", "missing before or after a comma"]),
        ({**MEET, "GRADIENTFLOW_MEET": "fe80::1:29400"}, ["GRADIENTFLOW_MEET", "[fe80::1%eth0]:29400"]),
        ({**MEET, "GRADIENTFLOW_MEET": "file://shared"}, ["GRADIENTFLOW_MEET is 'file://shared'", "whole path"]),
        # Contradictions.
        ({**MPIRUN, **MASTER}, ["OMPI_COMM_WORLD_SIZE says 4", "WORLD_SIZE says 2", "GRADIENTFLOW_TRANSPORT=mpi"]),
        ({**MPIRUN, **MASTER, "WORLD_SIZE": "4"}, ["OMPI_COMM_WORLD_RANK is 2", "RANK is 1"]),
        (
            {**MPIRUN, **MASTER, "WORLD_SIZE": "4", "GRADIENTFLOW_SERVERS": "1"},
            ["OMPI_COMM_WORLD_SIZE says 4", "1 serve (GRADIENTFLOW_SERVERS)", "WORLD_SIZE says 4"],
        ),
        ({**STEP, "SLURM_PROCID": "8"}, ["SLURM_PROCID is 8", "SLURM_STEP_NUM_TASKS is 8", "0 to 7"]),
        ({**STEP, "SLURM_PROCID": ""}, ["SLURM_STEP_NUM_TASKS is 8", "SLURM_PROCID is not set"]),
    ],
)
def test_variables_that_cannot_be_right(variables: dict[str, str], words: list[str]) -> None:
    with pytest.raises(ArgumentError) as caught:
        find_way(variables)
    for word in words:
        assert word in str(caught.value)
    assert str(caught.value) == consider_ways(variables)[-1].why
    assert not consider_ways(variables)[-1].applies


@pytest.mark.parametrize(
    ("given", "transport", "words"),
    [
        (Given(communicator=True, meet="a:1"), "auto", ["communicator", "meet"]),
        (Given(communicator=True, rank=0), "auto", ["communicator", "rank"]),
        (Given(store=True, meet="a:1", rank=0, size=1), "auto", ["store=", "meet="]),
        (Given(rank=0, size=1), "auto", ["store=", "meet="]),
        (Given(meet="a:1"), "auto", ["meet=", "rank=", "size="]),
        (Given(store=True, rank=0), "auto", ["store=", "size="]),
        (Given(store=True, rank=2, size=2), "auto", ["rank is 2", "size is 2"]),
        (Given(store=True, rank=-1, size=2), "auto", ["rank is -1"]),
        (Given(store=True, rank=0, size=0), "auto", ["size is 0"]),
        (Given(meet="a", rank=0, size=1), "auto", ["meet is 'a'"]),
        (Given(meet="a:1", rank=0, size=1), "mpi", ["transport is mpi", "meet="]),
        (Given(), "udp", ["'udp'", "auto, mpi, tcp"]),
    ],
)
def test_arguments_that_cannot_be_right(given: Given, transport: str, words: list[str]) -> None:
    with pytest.raises(ArgumentError) as caught:
        find_way({}, given, transport)
    for word in words:
        assert word in str(caught.value)


@pytest.mark.parametrize(
    ("one", "other", "are_one_job"),
    [
        (STEP, {**STEP, "SLURM_PROCID": "0", "SLURM_STEP_NODELIST": "node03"}, True),
        (STEP, {**STEP, "SLURM_STEP_ID": "2"}, False),
        (STEP, {**STEP, "SLURM_JOB_ID": "8"}, False),
        (MASTER, {**MASTER, "RANK": "0", "MASTER_ADDR": "localhost"}, True),
        (MASTER, {**MASTER, "WORLD_SIZE": "3"}, False),
        (TORCHRUN, {**TORCHRUN, "TORCHELASTIC_RUN_ID": "some"}, False),
        (TORCHRUN, {**TORCHRUN, "TORCHELASTIC_RESTART_COUNT": "3"}, False),
        # A step of as many tasks is the job; the ranks of a job may also be in several steps, or jobs of Slurm.
        ({**STEP, **MASTER, "WORLD_SIZE": "8"}, {**STEP, **MASTER, "WORLD_SIZE": "8", "SLURM_STEP_ID": "2"}, False),
        ({**STEP, **MASTER, "WORLD_SIZE": "8"}, {**STEP, **MASTER, "WORLD_SIZE": "8", "SLURM_JOB_ID": "8"}, False),
        ({**STEP, **MASTER}, {**STEP, **MASTER, "SLURM_STEP_ID": "2", "SLURM_JOB_ID": "8"}, True),
    ],
)
def test_jobs_are_told_apart(one: dict[str, str], other: dict[str, str], are_one_job: bool) -> None:
    first, second = find_way(one), find_way(other)
    assert (first.prefix == second.prefix) == are_one_job
    if first.restart == second.restart:
        assert (first.password("token") == second.password("token")) == are_one_job
    assert first.password("token") != first.password("")


def test_where_only_a_token_tells_jobs_apart() -> None:
    assert find_way(MEET).prefix == "gradientflow"
    assert find_way(MEET).password("token") == "token"


def test_ports_of_steps() -> None:
    """Those of neighbors differ; and where the first one does not, the next ones do."""
    steps = [(job, step) for job in range(9000, 9090) for step in range(100)]

    def points(job: int, step: int, use: str = "") -> tuple[str, ...]:
        return meeting_points({**STEP, "SLURM_JOB_ID": str(job), "SLURM_STEP_ID": str(step)}, use)

    assert len({points(*each)[0] for each in steps}) == len(steps)
    assert points(1, 7)[0] == points(100, 8)[0]
    assert {*points(1, 7)[1:]}.isdisjoint(points(100, 8))
    assert {*points(1, 7)}.isdisjoint(points(1, 7, "another"))


def tasks(*places: tuple[str, int]) -> list[dict[str, str]]:
    """Return the variables of all tasks of a step: the node and the place on it of each."""
    return [
        {**STEP, "SLURM_STEP_NUM_TASKS": str(len(places)), "SLURM_STEP_NODELIST": "n[1-2]", "SLURM_PROCID": str(rank)}
        | {"SLURMD_NODENAME": node, "SLURM_LOCALID": str(local_rank)}
        for rank, (node, local_rank) in enumerate(places)
    ]


@pytest.mark.parametrize(
    ("step", "server"),
    [
        (tasks(("n1", 0), ("n1", 1), ("n2", 0)), 0),
        (tasks(("n2", 0), ("n1", 0), ("n1", 1)), 1),  # srun -m arbitrary, or -w n2 : -w n1
        (tasks(("n2", 0), ("n2", 1), ("n1", 0)), 2),
    ],
)
def test_a_step_is_served_where_all_look_for_it(step: list[dict[str, str]], server: int) -> None:
    """That is the first node of the list, in which Slurm sorts the nodes by name."""
    ways = [find_way(variables) for variables in step]
    assert [way.rank for way in ways if way.serves] == [server]
    assert {way.at[0].partition(":")[0] for way in ways} == {"n1"}


def test_why_not_the_ways_before() -> None:
    considered = consider_ways({**SRUN_OF_MPI, **TORCHRUN})
    assert [(each.name, each.applies) for each in considered] == [
        ("arguments of init", False),
        ("GRADIENTFLOW_MEET", False),
        ("MPI's launcher", False),
        ("RANK and MASTER_ADDR", True),
    ]
    assert "TORCHELASTIC_RUN_ID" in considered[2].why
    assert considered[3].why == "RANK and MASTER_ADDR, rank 1 of 2, at 10.0.0.1:29500"
    assert [each.why for each in consider_ways({})][1:] == [
        "GRADIENTFLOW_MEET is not set",
        "none of its variables is set",
        "RANK and WORLD_SIZE are not set",
        "this is no step of several tasks",
        "one rank, rank 0 of 1",
    ]


VALUES = st.sampled_from(["", "0", "1", "2", "4", "-1", "x", "True", "a:1", "node1"])
NAMES = sorted({*MEET, *MPIRUN, *TORCHRUN, *SRUN_OF_MPI, "GRADIENTFLOW_SERVERS"})


@given(variables=st.dictionaries(st.sampled_from(NAMES), VALUES), transport=st.sampled_from(["auto", "mpi", "tcp"]))
def test_any_variables_give_a_way_or_a_sentence(variables: dict[str, str], transport: str) -> None:
    considered = consider_ways(variables, transport=transport)
    assert all(not each.applies and each.why for each in considered[:-1])
    if not considered[-1].applies:
        with pytest.raises(ArgumentError, match=re.escape(considered[-1].why)):
            find_way(variables, transport=transport)
        return
    way = find_way(variables, transport=transport)
    assert (considered[-1].applies, considered[-1].name) == (True, way.name)
    assert transport in ("auto", way.transport)
    assert way.by_mpi or way.transport == "tcp"
    if way.rank is not None and way.size is not None and not way.by_mpi:
        assert 0 <= way.rank < way.size
    if not way.by_mpi and (way.size or 0) > 1:
        assert way.at


@given(host=st.sampled_from(["a", "10.0.0.1", "fe80::1%eth0", "::1"]), port=st.integers(1, 65535))
def test_addresses(host: str, port: int) -> None:
    assert split_address(join_address(host, port), "it") == (host, port)


@pytest.mark.parametrize(
    ("nodes", "first"),
    [("a", "a"), ("a,b", "a"), ("n[1-4]", "n1"), ("n[007,9]x,m", "n007x"), ("", "")],
)
def test_the_first_node(nodes: str, first: str) -> None:
    variables: dict[str, Any] = {"SLURM_JOB_NODELIST": nodes}
    assert first_node(variables) == first


def test_mpi_by_hand_is_refused_where_nobody_has_started_mpi() -> None:
    """Else each rank would be a job of its own."""
    variables = {"GRADIENTFLOW_MEET": "host0:29400", "GRADIENTFLOW_RANK": "0", "GRADIENTFLOW_SIZE": "2"}
    with pytest.raises(ArgumentError, match="say where 2 ranks meet, but the transport is mpi"):
        find_way(variables, transport="mpi")
    assert find_way({**variables, "OMPI_COMM_WORLD_SIZE": "2"}, transport="mpi").by_mpi
    assert find_way({**variables, "GRADIENTFLOW_SIZE": "1"}, transport="mpi").by_mpi
