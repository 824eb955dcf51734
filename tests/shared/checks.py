"""The checks of programs of several ranks: found without running the program, run in one job, told one by one."""

from __future__ import annotations

import ast
import json
import re
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from jobs import PROGRAMS, Finished, begin

_MANY = 3  # or more ranks: those of a check without a mark


@dataclass(frozen=True)
class Check:
    """A check of a program, and its marks."""

    name: str
    ranks: frozenset[int]  # as on_ranks has them
    mark: str  # "thorough", "slow" or ""


@cache
def _marked(program: str) -> dict[str, Check]:
    """Read the checks of a program, in their order. Importing it here would start MPI in pytest."""
    tree = ast.parse((PROGRAMS / f"{program}.py").read_text(encoding="utf-8"))
    checks = {}
    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and node.name.startswith("check_"):
            marks = ", ".join(map(ast.unparse, node.decorator_list))
            ranks = re.search(r"on_ranks\((.*?)\)", marks)
            numbers = frozenset(map(int, ranks[1].split(","))) if ranks else frozenset({_MANY})
            checks[node.name] = Check(
                node.name, numbers, next((each for each in ("thorough", "slow") if each in marks), "")
            )
    return checks


def checks_of(program: str, *only: str, without: Sequence[str] = ()) -> list[Check]:
    """List the checks of a program, the functions check_*."""
    checks = _marked(program)
    if unknown := {*only, *without} - {*checks}:
        raise ValueError(f"{program}.py has no {', '.join(sorted(unknown))}")
    return [check for name, check in checks.items() if name not in without and (not only or name in only)]


def without_repeats(items: Sequence[pytest.Function]) -> list[pytest.Function]:
    """Leave out the checks that are not marked for the ranks of their test, of which these are all items.

    What is slow stays. Where a test has fewer than three ranks, its most stand for them.
    """
    many = min(_MANY, max(map(_ranks_of, items), default=0))

    def stays(item: pytest.Function) -> bool:
        ranks = _ranks_of(item)
        if ranks == 0:
            return True
        marked = _MANY if ranks >= many else ranks
        return marked in _marked(item.get_closest_marker("checks").args[0])[item.callspec.params["check"]].ranks

    left = [*filter(stays, items)]
    if without := {job_of(each.nodeid) for each in items} - {job_of(each.nodeid) for each in left}:
        raise pytest.UsageError(f"no check is marked for the ranks of {', '.join(sorted(without))}")
    return left


def _ranks_of(item: pytest.Function) -> int:
    """Return the number of ranks of a check, 0 of what is no check or is slow."""
    if item.get_closest_marker("checks") is None or item.get_closest_marker("slow") is not None:
        return 0
    return item.callspec.params.get("ranks", 0)


def job_of(nodeid: str) -> str:
    """Return what the checks of one job have in common: their name without the check."""
    return re.sub(r"-?check_\w+\]$", "]", nodeid)


class CheckedJob:
    """A job that runs some checks of a program, and tells the outcome of each as soon as it is known.

    Parameters
    ----------
    command : sequence of str
        The command line of the job.
    names : sequence of str
        The checks that it is to run.
    env : dict
        Its environment.
    timeout : float
        Seconds after which it is killed.
    """

    def __init__(self, command: Sequence[str], names: Sequence[str], env: dict[str, str], timeout: float) -> None:
        self._names = names
        self._folder = tempfile.TemporaryDirectory(prefix="gradientflow-checks-")
        self._outcomes = Path(self._folder.name) / "outcomes"
        told = {"CHECKS": ",".join(names), "CHECKS_OUTCOMES": str(self._outcomes)}
        self._job = begin([*command], {**env, **told}, timeout)
        self._executor = ThreadPoolExecutor(1)
        self._end: Future[Finished] = self._executor.submit(self._job.finish)

    def wait_for(self, name: str) -> Finished | None:
        """Wait for a check; fail or skip as it did. The last one waits for the end of the job, too, and returns it."""
        while True:
            over = self._end.done()
            begun, ended = self._read()
            if name in ended:
                break
            if over:
                pytest.fail(self._why_without(name, begun), pytrace=False)
            time.sleep(0.02)
        if ended[name]["failure"]:
            pytest.fail(ended[name]["failure"], pytrace=False)
        finished = self._finish() if name == self._names[-1] else None
        if ended[name]["skipped"]:
            pytest.skip(ended[name]["skipped"])
        return finished

    def close(self) -> None:
        """Leave nothing behind, also where not all outcomes were asked for."""
        self._job.kill()
        self._executor.shutdown()
        self._folder.cleanup()

    def _read(self) -> tuple[list[str], dict[str, dict[str, Any]]]:
        """Return which checks have begun, and the outcome of those that have ended."""
        lines = self._outcomes.read_text(encoding="utf-8").splitlines(keepends=True) if self._outcomes.exists() else []
        records = [json.loads(line) for line in lines if line.endswith("\n")]
        begun = [record["begun"] for record in records if "begun" in record]
        return begun, {record["ended"]: record for record in records if "ended" in record}

    def _finish(self) -> Finished:
        """Wait for the end of the job, which may fail only for a check that has failed."""
        if failure := self._end.exception():
            pytest.fail(f"all checks have ended, but {failure}", pytrace=False)
        finished = self._end.result()
        if finished.returncode != 0 and not any(outcome["failure"] for outcome in self._read()[1].values()):
            pytest.fail(f"all checks have passed, but the job has failed: {finished.output}", pytrace=False)
        return finished

    def _why_without(self, name: str, begun: list[str]) -> str:
        """Say how the job has ended, where it has no outcome of a check."""
        how = str(self._end.exception() or f"the job has ended: {self._end.result().output}")
        if begun and begun[-1] != name:
            return f"this check was not run: the job ended in {begun[-1]}"
        return f"in this check, {how}" if begun else f"before the first check, {how}"
