"""The faults of tests/faults: each still applies to the sources, and names tests that there are."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
from faults import Fault, all_faults
from mutants import mutants

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("fault", all_faults(), ids=lambda fault: fault.name)
def test_a_fault_applies_and_names_tests(fault: Fault) -> None:
    require_that_it_applies(fault)


def test_mutants_apply_and_name_tests() -> None:
    for mutant in mutants(ROOT, 3, seed=0):
        require_that_it_applies(mutant)


def require_that_it_applies(fault: Fault) -> None:
    command = ["git", "apply", "--check", "--whitespace=nowarn", "-"]
    done = subprocess.run(command, cwd=ROOT, input=fault.patch, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    files = [each for arguments in fault.tests for each in arguments if each.startswith("tests/")]
    assert files
    assert all((ROOT / re.sub("::.*", "", each)).exists() for each in files)


def test_faults_lie_in_all_parts_of_the_product() -> None:
    layers = {"/".join(file.split("/")[:2]) for fault in all_faults() for file in fault.files}
    kernels = {folder.name for folder in (ROOT / "kernels").iterdir() if folder.is_dir()}
    kernels.remove("third_party")
    assert {f"kernels/{name}" for name in kernels} <= layers
    assert {"gradientflow/strategies", "gradientflow/training", "gradientflow/torch", "bench/core"} <= layers
