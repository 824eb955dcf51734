"""``gradientflow bench ps``: right before fast, its file, and what it refuses."""

from __future__ import annotations

import json
import os
import subprocess
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from needs_mpi import needs_mpi

import gradientflow as gf
from gradientflow.bench.core.hosts import Hosts
from gradientflow.bench.core.plan import PlanError
from gradientflow.bench.ps.columns import ServerResult
from gradientflow.bench.ps.contestants import ServerContestant
from gradientflow.bench.ps.plan import ServerPlan
from gradientflow.bench.ps.session import ServerSession
from gradientflow.launch import module_command


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"sizes": ()}, "--sizes names no size"),
        ({"sizes": (6,)}, "6 bytes is not a whole number"),
        ({"servers": ()}, "--servers names no number"),
        ({"servers": (-1,)}, "--servers needs at least 1"),
        ({"peers": ("gloo",)}, "--compare does not know 'gloo'"),
        ({"wires": ("float64",)}, "--wire does not know 'float64'"),
        ({"memories": ("pool",)}, "--memory does not know 'pool'"),
        ({"iterations": 0}, "--iterations needs at least 1"),
    ],
)
def test_what_cannot_be_measured_is_refused(change: dict[str, Any], words: str) -> None:
    with pytest.raises(PlanError, match=words):
        ServerPlan(**{"sizes": (4096,), **change})


def test_servers_are_in_ranks() -> None:
    with pytest.raises(PlanError, match="--servers 3 is more than the 2 ranks"):
        ServerPlan((4096,), (1, 3)).check_job(2, on_this_machine=False)
    with pytest.raises(PlanError, match="--sizes 256 is too little for 3 servers"):
        ServerPlan((4096, 256)).check_job(3, on_this_machine=False)


def test_the_busiest_link_counts() -> None:
    with gf.init() as comm:
        session = ServerSession(comm, ServerPlan((4096,)))
        session.outcome.hosts = Hosts(2, 1, "", 2, "8kbit")  # 1000 bytes a second
        session._places = ["a", "b"]
        session.comm = type("Ranks", (), {"size": 2})()
        # Of 4000 bytes, each worker pushes half to the other host, and each server answers half there.
        assert session._link_seconds(1000, 2, "float32") == 4.0
        # The only server is on host a: b pushes everything, a answers everything.
        assert session._link_seconds(1000, 1, "float32") == 4.0
        assert session._link_seconds(1000, 1, "float16") == 2.0


@needs_mpi
def test_a_wrong_exchange_is_found_and_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    original = ServerContestant.pull

    def spoil(contestant: ServerContestant) -> None:
        original(contestant)
        contestant.mean[3] += contestant.backend == "mpi"

    monkeypatch.setattr(ServerContestant, "pull", spoil)
    with gf.init() as comm:
        outcome = ServerSession(comm, ServerPlan((4096,), iterations=2)).run()
    *ours, mpi = outcome.results
    assert [(each.memory, each.wrong, each.iterations) for each in ours] == [("array", 0, 2), ("in-place", 0, 2)]
    assert (mpi.wrong > 0, mpi.median_us) == (True, None)


def test_what_numpy_does_not_know_has_no_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with gf.init() as comm:
        outcome = ServerSession(comm, ServerPlan((4096,), wires=("bfloat16",), peers=(), iterations=2)).run()
    assert [(each.memory, each.wrong) for each in outcome.results] == [("array", 0)]
    assert any("ml_dtypes" in remark for remark in outcome.remarks)


@pytest.mark.parametrize("nodes", [pytest.param(1, marks=pytest.mark.slow), 3])
def test_exchanges_are_right(nodes: int, tmp_path: Path) -> None:
    path = tmp_path / "found.json"
    arguments = ["bench", "ps", "-n", "3", "--sizes", "512,40K", "--servers", "1,2,3", "--wire", "float32,float16"]
    command = module_command("gradientflow.cli", [*arguments, "--iterations", "2", "--json", str(path)])
    environment = {**os.environ, "GRADIENTFLOW_NODE_SIZE": str(3 // nodes)}
    ended = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False, env=environment)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    results = json.loads(path.read_text())["results"]
    assert all(set(result) == {field.name for field in fields(ServerResult)} for result in results)
    assert [(result["bytes"], result["servers"]) for result in results if result["backend"] == "gradientflow"][::4] == [
        (size, servers) for size in (512, 40960) for servers in (1, 2, 3)
    ]
    assert {(result["wrong"], result["iterations"], result["workers"]) for result in results} == {(0, 2, 3)}
