"""Checks by trial jobs: two ranks sum random integers, and report the library's description of itself."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping, Sequence

from gradientflow.annotations import JsonObject
from gradientflow.cli.job import TIMED_OUT, Job, run_job
from gradientflow.cli.library import built_with
from gradientflow.launch import (
    LaunchError,
    asked_binding,
    find_launcher,
    job_here,
    launch_environment,
    module_command,
    mpirun_command,
    rank_of_this_process,
    rank_program,
    tcp_command,
)
from gradientflow.mpi_library import missing_mpi

from .check import Check
from .network import words_of_paths
from .probe import MARK

_START = "start"
_PROBE = module_command("gradientflow.cli.doctor.probe", [])
_PROBE_SECONDS = 60.0
_FACTS = (
    ("nodes_remark", "layout"),
    ("simd", "kernels for"),
    ("staging_bytes_per_rank", "staging bytes per rank"),
)


def this_job() -> list[Check]:
    """Check the job of this process like the trial jobs below; all of its ranks must call this function."""
    return _try(_PROBE, {})


def live_job() -> list[Check]:
    """Check an MPI job of two ranks, which sums random integers."""
    if obstacle := _obstacle():
        return [obstacle]
    if missing_mpi():
        return [Check(_START, "ok", "not tried: there is no MPI")]
    try:
        launcher = find_launcher(built_with())
    except LaunchError:
        return [Check(_START, "fail", "not tried", "without an mpirun nothing can be started")]
    command = rank_program(_PROBE, bind=asked_binding())
    return _try(mpirun_command(launcher, 2, command), launch_environment(launcher), by_mpi=True)


def live_job_without_mpi() -> list[Check]:
    """Check a job of two ranks over TCP, which sums random integers."""
    obstacle = _obstacle()
    return [obstacle] if obstacle else _try(tcp_command(job_here(2, _PROBE, bind=asked_binding())), {})


def _obstacle() -> Check | None:
    """Return a failed check with the reason if no job can be tried; else None."""
    try:
        asked_binding()
    except LaunchError as error:
        return Check(_START, "fail", "not tried", str(error))
    return None


def _try(command: Sequence[str], environment: Mapping[str, str], *, by_mpi: bool = False) -> list[Check]:
    with tempfile.TemporaryFile() as output:
        status = run_job(Job(command, environment, output, _PROBE_SECONDS, by_mpi))
        output.seek(0)
        text = output.read().decode(errors="replace")
    report = next((line[len(MARK) :] for line in text.splitlines() if line.startswith(MARK)), None)
    if status == 0 and report is None and rank_of_this_process():
        return [Check(_START, "ok", "rank 0 says what its job found")]
    if status != 0 or report is None:
        what = f"no end within {_PROBE_SECONDS:g} s" if status == TIMED_OUT else f"exit status {status}"
        return [Check(_START, "fail", what, _last_lines(text))]
    return judge(json.loads(report))


def judge(report: JsonObject) -> list[Check]:
    """Return the checks that follow from a report of ``gradientflow.cli.doctor.probe``."""
    found = [Check("start", "ok", f"{report['ranks']} ranks")]
    for memory, words in (("pool", "node memory"), ("array", "ordinary arrays")):
        wrong = report["wrong"][memory]
        value = "allreduce exact" if wrong == 0 else f"{wrong} wrong elements"
        advice = "" if wrong == 0 else "do not train with this installation; please report it with the output of --json"
        found.append(Check(words, "fail" if wrong else "ok", value, advice))
    names = [f"rank {rank}: {name}" for rank, name in enumerate(report["cores"])]
    found.append(Check("cores of ranks", "ok", "; ".join(names)))
    facts = report["describe"]
    if remark := facts.get("cores_remark"):
        found.append(Check("cores are short", "warn", remark, "right, but slow: waiting ranks take each other's time"))
    direct = facts["direct_read"]
    advice = "" if direct == "available" else "ordinary arrays go through staging, which is slower for large ones"
    found.append(Check("direct reads", "warn" if advice else "ok", direct, advice))
    remark = facts.get("transport_remark")
    found.append(Check("messages", "ok", f"over {facts['transport'].upper()}{remark and f': {remark}'}"))
    found += [Check(words, "ok", str(facts[key])) for key, words in _FACTS if facts.get(key)]
    found.append(Check("allreduce of arrays", "ok", words_of_paths(facts["allreduce_of_arrays"])))
    found.append(Check("allreduce of node memory", "ok", words_of_paths(facts["allreduce_of_node_memory"])))
    return found


def _last_lines(text: str) -> str:
    lines = [line for line in text.splitlines() if line.strip(" -")]
    return " | ".join(lines[-6:]) or "it printed nothing"
