"""Tests beside real engines: each test names its own in ``pytest.mark.real("slurm")``, and is skipped without them.

The tests import an engine inside of functions, because README's `pytest` collects these files, too.
"""

from __future__ import annotations

import argparse
import importlib.util
import shutil
from collections.abc import Iterator
from typing import Any

import pytest

# The programs of each engine; the other engines are modules of Python.
_PROGRAMS = {
    "slurm": ("slurmctld", "slurmd", "srun", "munged", "ip", "unshare"),
    "pmix": (),  # a plugin of Slurm, of which the cluster tells
    "ssh": ("ssh", "sshd", "ssh-keygen"),
}
_MODULES = {"accelerate", "deepspeed", "ipykernel", "kubeflow", "kubernetes-validate", "lightning", "nbclient", "ray"}
_MODULES |= {"torch", "torchft", "transformers"}


def _known(names: str) -> set[str]:
    """Split names of engines at commas."""
    chosen, known = set(filter(None, names.split(","))), _PROGRAMS.keys() | _MODULES
    if unknown := chosen - known:
        raise argparse.ArgumentTypeError(f"{', '.join(unknown)}: an engine is {', '.join(sorted(known))}")
    return chosen


def pytest_addoption(parser: pytest.Parser) -> None:
    text = "tests that need other engines than these fail where they would be skipped, as in .ci/run --all=real"
    parser.addoption("--allow-missing", metavar="NAME,...", type=_known, help=text)


def _engines(item: pytest.Item) -> set[str]:
    return {name for mark in item.iter_markers("real") for name in mark.args}


def _missing(engine: str) -> list[str]:
    """List what is missing of an engine: programs, or its module."""
    if engine not in _MODULES:
        return [program for program in _PROGRAMS[engine] if shutil.which(program) is None]
    return [] if importlib.util.find_spec(engine.replace("-", "_")) else [engine]


def pytest_runtest_setup(item: pytest.Item) -> None:
    for engine in sorted(_engines(item)):
        if missing := _missing(engine):
            pytest.skip(f"{engine} is missing ({', '.join(missing)}): tests/real/install installs it")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[Any]:
    report = yield
    allowed = item.config.getoption("allow_missing", None)
    if report.skipped and allowed is not None and not _engines(item).intersection(allowed):
        report.outcome = "failed"
    return report
