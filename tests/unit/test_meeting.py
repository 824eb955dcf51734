"""Meeting of ranks: the rule that applies, and why."""

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
from gradientflow.meeting import InitArguments, MeetingPlan, consider_rules, find_plan, is_mpi_job
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

BY_MEET = MeetingPlan("GRADIENTFLOW_MEET", "tcp", 1, 3, ("10.0.0.1:29400",))
BY_MPI = MeetingPlan("MPI's launcher", "auto", 2, 4, by_mpi=True)
BY_MASTER = MeetingPlan("RANK and MASTER_ADDR", "tcp", 1, 2, ("10.0.0.1:29500",), job="2 ranks")
BY_TORCHRUN = replace(BY_MASTER, job="2 ranks, torchrun's job none", agent=True, restart="2")
PORTS = tuple(f"node03:{port}" for port in (20708, 24476, 24260, 21005))
BY_STEP = MeetingPlan("Slurm's step", "tcp", 5, 8, PORTS, job="Slurm's step 7.1")
ALONE = MeetingPlan("one rank", "mpi", 0, 1, by_mpi=True)


@pytest.mark.parametrize(
    ("variables", "plan"),
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
        ({"PMI_RANK": "1", "PMI_SIZE": "2"}, MeetingPlan("MPI's launcher", "auto", 1, 2, by_mpi=True)),
        (
            {"MV2_COMM_WORLD_RANK": "0", "MV2_COMM_WORLD_SIZE": "2"},
            MeetingPlan("MPI's launcher", "auto", 0, 2, by_mpi=True),
        ),
        ({**STEP, "PMIX_RANK": "5"}, MeetingPlan("MPI's launcher", "auto", by_mpi=True)),
        ({"PMI_SIZE": "3"}, MeetingPlan("MPI's launcher", "auto", None, 3, by_mpi=True)),
        ({"PMI_RANK": "some", "PMI_SIZE": "3"}, MeetingPlan("MPI's launcher", "auto", None, 3, by_mpi=True)),
        # Ranks that only serve are none of the world of PyTorch.
        (
            {**MPIRUN, **MASTER, "RANK": "2", "WORLD_SIZE": "3", "GRADIENTFLOW_SERVERS": "1"},
            BY_MPI,
        ),
        # One launcher below another.
        (
            {"PMI_RANK": "1", "PMI_SIZE": "2", "OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "1", **MASTER},
            MeetingPlan("MPI's launcher", "auto", 0, 1, by_mpi=True),
        ),
        # Addresses.
        (
            {**MEET, "GRADIENTFLOW_MEET": "a:1,[fe80::1%eth0]:2"},
            MeetingPlan("GRADIENTFLOW_MEET", "tcp", 1, 3, ("a:1", "[fe80::1%eth0]:2")),
        ),
        (
            {**MEET, "GRADIENTFLOW_MEET": "file:///shared/meet"},
            MeetingPlan("GRADIENTFLOW_MEET", "tcp", 1, 3, ("file:///shared/meet",)),
        ),
        ({**MASTER, "MASTER_ADDR": "::1"}, replace(BY_MASTER, at=("[::1]:29500",))),
        # Who opens the store.
        ({**MEET, "GRADIENTFLOW_RANK": "0"}, replace(BY_MEET, rank=0, serves=True)),
        ({**MEET, "GRADIENTFLOW_RANK": "0", "GRADIENTFLOW_RESTARTS": "0"}, replace(BY_MEET, rank=0, agent=True)),
        ({**MASTER, "RANK": "0"}, replace(BY_MASTER, rank=0, serves=True)),
        ({**TORCHRUN, "RANK": "0"}, replace(BY_TORCHRUN, rank=0)),
        ({**STEP, "SLURM_PROCID": "0"}, replace(BY_STEP, rank=0, serves=True)),
        # Nobody else is to come.
        (
            {"RANK": "0", "WORLD_SIZE": "1"},
            MeetingPlan("RANK and MASTER_ADDR", "tcp", 0, 1, serves=True, job="1 ranks"),
        ),
        # No step of several tasks: a batch script, a shell of an allocation, one task.
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "4", "SLURM_NNODES": "2"}, ALONE),
        ({**STEP, "SLURM_STEP_ID": str(0xFFFFFFFB)}, ALONE),
        ({**STEP, "SLURM_STEP_NUM_TASKS": "1", "SLURM_PROCID": "0"}, ALONE),
        # An empty variable is one that is not set.
        ({"RANK": "", "WORLD_SIZE": "", "GRADIENTFLOW_MEET": "", "PMI_RANK": ""}, ALONE),
    ],
)
def test_the_first_rule_that_applies(variables: dict[str, str], plan: MeetingPlan) -> None:
    assert find_plan(variables) == plan


def test_c_knows_the_launchers_by_the_same_variables() -> None:
    text = Path(__file__).parents[2].joinpath("kernels/transport/mpi/launcher.cpp").read_text(encoding="utf-8")
    known = re.findall(r'\{"([A-Z_]+)", "([A-Z_]+)", "', text)
    launchers = (launcher_variables.OPEN_MPI, launcher_variables.MPICH, launcher_variables.SLURM)
    assert known == [(each["RANK"], each["WORLD_SIZE"]) for each in (*launchers, launcher_variables.TORCHRUN)]


@pytest.mark.parametrize(
    ("given", "plan"),
    [
        (InitArguments(communicator=True), MeetingPlan("arguments of init", "auto", by_mpi=True)),
        (InitArguments(store=True, rank=0, size=2), MeetingPlan("arguments of init", "tcp", 0, 2, serves=True)),
        (InitArguments(meet="h:80", rank=1, size=2), MeetingPlan("arguments of init", "tcp", 1, 2, ("h:80",))),
    ],
)
def test_what_the_program_says_comes_first(given: InitArguments, plan: MeetingPlan) -> None:
    for variables in ({}, MEET, MPIRUN, TORCHRUN, STEP, {"RANK": "1"}):
        assert find_plan(variables, given) == plan


def test_mpi_that_the_program_has_started() -> None:
    """Its launcher may set variables that nobody knows here."""
    assert find_plan(MASTER, InitArguments(mpi_size=3)) == MeetingPlan("MPI's launcher", "auto", size=3, by_mpi=True)
    assert find_plan(MASTER, InitArguments(mpi_size=1)) == BY_MASTER
    assert find_plan(TORCHRUN, InitArguments(mpi_size=3)) == BY_TORCHRUN


@pytest.mark.parametrize("variables", [{}, MPIRUN, TORCHRUN, STEP, {**MPIRUN, **MASTER}, {"WORLD_SIZE": "x"}])
def test_mpi_by_hand(variables: dict[str, str]) -> None:
    assert find_plan(variables, transport="mpi") == MeetingPlan("MPI's launcher", "mpi", by_mpi=True)


@pytest.mark.parametrize(
    ("variables", "given", "plan", "starts_mpi"),
    [
        ({}, InitArguments(), ALONE, False),
        (MEET, InitArguments(), BY_MEET, False),
        (MPIRUN, InitArguments(), BY_MPI, True),  # the ranks meet through it
        (TORCHRUN, InitArguments(), BY_TORCHRUN, False),
        ({**SRUN_OF_MPI, **TORCHRUN}, InitArguments(), BY_TORCHRUN, False),
        (STEP, InitArguments(), BY_STEP, False),
        ({}, InitArguments(communicator=True), MeetingPlan("arguments of init", "mpi"), True),
        # Tasks of srun need no MPI to meet, which may not know of the others; but mpirun starts processes below a task.
        ({**STEP, "PMI_RANK": "5", "PMI_SIZE": "8", "SLURM_MPI_TYPE": "pmi2"}, InitArguments(), BY_STEP, False),
        ({**STEP, "PMIX_RANK": "5"}, InitArguments(), BY_STEP, False),
        ({**STEP, "PMIX_RANK": "5"}, InitArguments(mpi_size=8), MeetingPlan("MPI's launcher", "mpi", size=8), True),
        ({**STEP, **MPIRUN}, InitArguments(), BY_MPI, True),
        ({**STEP, "PMI_RANK": "5", "PMI_SIZE": "4"}, InitArguments(), MeetingPlan("MPI's launcher", "mpi", 5, 4), True),
        (
            {**STEP, "PMI_RANK": "5", "PMI_SIZE": "8", "MPI_LOCALNRANKS": "1"},
            InitArguments(),
            MeetingPlan("MPI's launcher", "mpi", 5, 8),
            True,
        ),
    ],
)
def test_tcp_by_hand(variables: dict[str, str], given: InitArguments, plan: MeetingPlan, starts_mpi: bool) -> None:
    assert find_plan(variables, given, "tcp") == MeetingPlan(
        **{**asdict(plan), "transport": "tcp", "by_mpi": starts_mpi}
    )


@pytest.mark.parametrize(
    ("variables", "given", "transport", "expected"),
    [
        ({}, InitArguments(), "auto", False),
        ({"RANK": "1", "GRADIENTFLOW_MEET": "a:1"}, InitArguments(), "auto", False),  # which are no way
        (MEET, InitArguments(), "auto", False),
        ({**MPIRUN, **MEET}, InitArguments(), "auto", False),
        (
            {**MPIRUN, **MASTER, "GRADIENTFLOW_MEET": "a:1"},
            InitArguments(),
            "auto",
            True,
        ),  # though they contradict each other
        ({**SRUN_OF_MPI, **TORCHRUN}, InitArguments(), "auto", False),
        (MASTER, InitArguments(mpi_size=2), "auto", True),
        (MPIRUN, InitArguments(), "tcp", False),
        ({}, InitArguments(), "mpi", True),
    ],
)
def test_whether_messages_are_those_of_mpi(
    variables: dict[str, str], given: InitArguments, transport: str, expected: bool
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
        find_plan(variables)
    for word in words:
        assert word in str(caught.value)
    assert str(caught.value) == consider_rules(variables)[-1].why
    assert not consider_rules(variables)[-1].applies


@pytest.mark.parametrize(
    ("given", "transport", "words"),
    [
        (InitArguments(communicator=True, meet="a:1"), "auto", ["communicator", "meet"]),
        (InitArguments(communicator=True, rank=0), "auto", ["communicator", "rank"]),
        (InitArguments(store=True, meet="a:1", rank=0, size=1), "auto", ["store=", "meet="]),
        (InitArguments(rank=0, size=1), "auto", ["store=", "meet="]),
        (InitArguments(meet="a:1"), "auto", ["meet=", "rank=", "size="]),
        (InitArguments(store=True, rank=0), "auto", ["store=", "size="]),
        (InitArguments(store=True, rank=2, size=2), "auto", ["rank is 2", "size is 2"]),
        (InitArguments(store=True, rank=-1, size=2), "auto", ["rank is -1"]),
        (InitArguments(store=True, rank=0, size=0), "auto", ["size is 0"]),
        (InitArguments(meet="a", rank=0, size=1), "auto", ["meet is 'a'"]),
        (InitArguments(meet="a:1", rank=0, size=1), "mpi", ["transport is mpi", "meet="]),
        (InitArguments(), "udp", ["'udp'", "auto, mpi, tcp"]),
    ],
)
def test_arguments_that_cannot_be_right(given: InitArguments, transport: str, words: list[str]) -> None:
    with pytest.raises(ArgumentError) as caught:
        find_plan({}, given, transport)
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
    first, second = find_plan(one), find_plan(other)
    assert (first.prefix == second.prefix) == are_one_job
    if first.restart == second.restart:
        assert (first.password("token") == second.password("token")) == are_one_job
    assert first.password("token") != first.password("")


def test_where_only_a_token_tells_jobs_apart() -> None:
    assert find_plan(MEET).prefix == "gradientflow"
    assert find_plan(MEET).password("token") == "token"


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
    plans = [find_plan(variables) for variables in step]
    assert [plan.rank for plan in plans if plan.serves] == [server]
    assert {plan.at[0].partition(":")[0] for plan in plans} == {"n1"}


def test_why_not_the_ways_before() -> None:
    considered = consider_rules({**SRUN_OF_MPI, **TORCHRUN})
    assert [(each.name, each.applies) for each in considered] == [
        ("arguments of init", False),
        ("GRADIENTFLOW_MEET", False),
        ("MPI's launcher", False),
        ("RANK and MASTER_ADDR", True),
    ]
    assert "TORCHELASTIC_RUN_ID" in considered[2].why
    assert considered[3].why == "RANK and MASTER_ADDR, rank 1 of 2, at 10.0.0.1:29500"
    assert [each.why for each in consider_rules({})][1:] == [
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
    considered = consider_rules(variables, transport=transport)
    assert all(not each.applies and each.why for each in considered[:-1])
    if not considered[-1].applies:
        with pytest.raises(ArgumentError, match=re.escape(considered[-1].why)):
            find_plan(variables, transport=transport)
        return
    plan = find_plan(variables, transport=transport)
    assert (considered[-1].applies, considered[-1].name) == (True, plan.name)
    assert transport in ("auto", plan.transport)
    assert plan.by_mpi or plan.transport == "tcp"
    if plan.rank is not None and plan.size is not None and not plan.by_mpi:
        assert 0 <= plan.rank < plan.size
    if not plan.by_mpi and (plan.size or 0) > 1:
        assert plan.at


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
        find_plan(variables, transport="mpi")
    assert find_plan({**variables, "OMPI_COMM_WORLD_SIZE": "2"}, transport="mpi").by_mpi
    assert find_plan({**variables, "GRADIENTFLOW_SIZE": "1"}, transport="mpi").by_mpi
