"""What a rank's environment tells JAX, in jobs of every launcher."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from gradientflow._location import jax_library
from gradientflow.jax.versions import NEWEST, OLDEST, untried
from gradientflow.launch import jax_contradictions, jax_variables
from gradientflow.meeting import find_plan

ROOT = Path(__file__).resolve().parents[2]

OPEN_MPI = {"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_LOCAL_RANK": "1"}
MPICH = {"PMI_RANK": "2", "PMI_SIZE": "4", "MPI_LOCALRANKID": "0"}
TORCHRUN = {
    "RANK": "3",
    "WORLD_SIZE": "4",
    "LOCAL_RANK": "1",
    "MASTER_ADDR": "host0",
    "MASTER_PORT": "29500",
    "TORCHELASTIC_RUN_ID": "none",
    "TORCHELASTIC_USE_AGENT_STORE": "True",
}
SLURM = {
    "SLURM_JOB_ID": "7",
    "SLURM_STEP_ID": "0",
    "SLURM_STEP_NUM_TASKS": "4",
    "SLURM_PROCID": "2",
    "SLURM_LOCALID": "1",
    "SLURM_STEP_NODELIST": "node[3-4]",
}
MET = {"GRADIENTFLOW_MEET": "host0:20000", "GRADIENTFLOW_RANK": "0", "GRADIENTFLOW_SIZE": "4"}
MASTER = {"MASTER_ADDR": "host0", "MASTER_PORT": "21000"}


def test_outside_a_job_only_what_all_ranks_share() -> None:
    assert jax_variables({}) == {
        "MPITRAMPOLINE_LIB": str(jax_library()),
        "JAX_CPU_COLLECTIVES_IMPLEMENTATION": "mpi",
    }


@pytest.mark.parametrize(
    ("environment", "place", "coordinator"),
    [
        pytest.param({**OPEN_MPI, **MASTER}, (1, 4, 1), "host0:21001", id="Open MPI"),
        pytest.param({**MPICH, **MASTER}, (2, 4, 0), "host0:21001", id="MPICH"),
        pytest.param({**MET, **MASTER}, (0, 4, 0), "host0:21001", id="over TCP"),
        pytest.param({**MET, **MASTER, "MASTER_ADDR": "fd00::1"}, (0, 4, 0), "[fd00::1]:21001", id="IPv6"),
        pytest.param(TORCHRUN, (3, 4, 1), "host0:29501", id="torchrun"),
        pytest.param(SLURM, (2, 4, 1), "node3:21135", id="Slurm"),
        pytest.param({**MET, "JAX_COORDINATOR_ADDRESS": "here:1"}, (0, 4, 0), "here:1", id="address given"),
    ],
)
def test_jax_finds_the_job(environment: dict[str, str], place: tuple[int, int, int], coordinator: str) -> None:
    found = {**environment, **jax_variables(environment)}
    names = ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK")
    assert tuple(int(found[name]) for name in names) == place
    assert found["JAX_COORDINATOR_ADDRESS"] == coordinator
    assert found["OMPI_MCA_orte_hnp_uri"]


@pytest.mark.parametrize("environment", [MET, OPEN_MPI], ids=["over TCP", "Open MPI"])
def test_without_an_address_jax_is_not_told_of_the_job(environment: dict[str, str]) -> None:
    assert set(jax_variables(environment)) == set(jax_variables({}))


@pytest.mark.parametrize("environment", [TORCHRUN, SLURM], ids=["torchrun", "Slurm"])
def test_a_job_of_another_launcher_does_not_become_one_of_mpi(environment: dict[str, str]) -> None:
    """And not at a port that PyTorch's store or JAX's coordinator has."""
    found = {**environment, **jax_variables(environment)}
    before, plan = find_plan(environment), find_plan(found)
    assert plan.name == "GRADIENTFLOW_MEET"
    assert plan.place == before.place
    assert {*plan.at}.isdisjoint({*before.at, found["JAX_COORDINATOR_ADDRESS"]})
    assert found["GRADIENTFLOW_TOKEN"] == before.password("")


@pytest.mark.parametrize("environment", [{**MET, **MASTER}, {**OPEN_MPI, **MASTER}], ids=["over TCP", "Open MPI"])
def test_the_way_in_which_ranks_meet_stays(environment: dict[str, str]) -> None:
    assert find_plan({**environment, **jax_variables(environment)}) == find_plan(environment)


def test_a_port_that_is_kept_free() -> None:
    assert jax_variables({**MET, **MASTER}, 23456)["JAX_COORDINATOR_ADDRESS"] == "host0:23456"


def test_what_is_set_stays() -> None:
    """A real OMPI_MCA_orte_hnp_uri is what processes of Open MPI 4 find their launcher by."""
    own = {
        "MPITRAMPOLINE_LIB": "/lib/libother.so",
        "JAX_CPU_COLLECTIVES_IMPLEMENTATION": "gloo",
        "JAX_COORDINATOR_ADDRESS": "there:1",
        "OMPI_MCA_orte_hnp_uri": "1.0;tcp://10.0.0.1:2",
    }
    added = jax_variables({**OPEN_MPI, **MASTER, **own})
    assert not {*own, *OPEN_MPI} & {*added}
    assert [sentence.split()[0] for sentence in jax_contradictions(own)] == [*own][:2]
    assert jax_contradictions(jax_variables({})) == []


@pytest.mark.parametrize("version", [OLDEST, "0.6.3", "0.7.2", f"{NEWEST}.0", f"{NEWEST}.2.dev20260101"])
def test_versions_that_have_been_tried(version: str) -> None:
    assert untried(version) == ""


@pytest.mark.parametrize("version", ["0.4.38", "0.6.1", "0.11.0", "1.0"])
def test_other_versions_are_told_which_those_are(version: str) -> None:
    assert untried(version) == f"JAX {version} has not been tried with GradientFlow: JAX {OLDEST} to {NEWEST} have"


def test_the_package_allows_the_versions_that_have_been_tried() -> None:
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    bounds = re.search(r'^jax = \["jax>=([\d.]+),<(\d+)\.(\d+)"\]', text, re.MULTILINE)
    assert bounds is not None
    assert bounds[1] == OLDEST
    major, minor = map(int, NEWEST.split("."))
    assert (int(bounds[2]), int(bounds[3])) == (major, minor + 1)
