"""Checks that pass, fail on one rank, are skipped, and end the job: what pytest makes of them."""

from __future__ import annotations

import os
from unittest import SkipTest

from marks import on_ranks, thorough
from support import RANK, nothing, run_checks


@on_ranks(1, 3)
def check_passing() -> None:
    pass


def check_failing_on_one_rank() -> None:
    assert RANK == 0, "a mistake"


@on_ranks(2)
def check_skipped() -> None:
    raise SkipTest("not here")


def check_ending() -> None:
    os._exit(3)


@thorough
def check_behind() -> None:
    pass


run_checks([{"window": 2}], around=nothing)
