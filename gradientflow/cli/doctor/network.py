"""Checks of the way in which ranks would meet, and of the transport of their messages between hosts."""

from __future__ import annotations

import os
from collections.abc import Sequence

from gradientflow._location import core
from gradientflow.config import Config
from gradientflow.errors import GradientFlowError
from gradientflow.job import asked_transport
from gradientflow.machine import format_size
from gradientflow.meeting import consider_rules, find_plan
from gradientflow.meeting.endpoints import near
from gradientflow.meeting.plan import ALONE
from gradientflow.mpi_library import missing_mpi

from .check import Check


def meeting() -> list[Check]:
    """Report the way in which ranks started like this process would meet, and why earlier ways do not apply."""
    *before, last = consider_rules(os.environ, transport=asked_transport())
    found = [Check(each.name, "ok", f"no: {each.why}") for each in before]
    if not last.applies:
        return [*found, Check(last.name, "fail", "not possible", last.why)]
    plan = find_plan(os.environ, transport=asked_transport())
    transport = "tcp" if plan.name == ALONE and missing_mpi() else plan.transport
    over = "the faster of MPI and TCP" if transport == "auto" else transport.upper()
    found.append(Check(last.name, "ok", f"yes: {last.why}; messages over {over}"))
    return found if transport == "mpi" else [*found, address_towards(near(plan), by_mpi=plan.by_mpi)]


def address_towards(place: str, *, by_mpi: bool = False) -> Check:
    """Report the address at which ranks would reach this host; unless `by_mpi`, on the route to the meeting point."""
    try:
        interface = core.choice_between_hosts(dict(Config()))[2] if by_mpi else Config()["interface"]
        address = core.own_address(place, {**Config(), "interface": interface})
    except (GradientFlowError, ValueError) as error:
        return Check("address of this host", "warn", "not known", str(error))
    why = f"it leads to {place}" if place else "the default route's"
    if interface != "auto":
        why = "by GRADIENTFLOW_INTERFACE" if Config()["interface"] != "auto" else f"by variables of MPI: {interface}"
    return Check("address of this host", "ok", f"{address} ({why})")


def mpi_between_hosts() -> Check:
    """Report the transport of messages in an MPI job on several hosts like this host."""
    name = "MPI between hosts"
    try:
        transport, why, _ = core.choice_between_hosts(dict(Config(transport=asked_transport())))
    except (GradientFlowError, ValueError) as error:
        return Check(name, "warn", "not known", str(error))
    return Check(name, "ok", f"messages over {transport.upper()}: {why}")


def between_hosts() -> list[Check]:
    """Report the path that an allreduce would take between hosts, with the reason."""
    paths_by_size = core.paths_by_size
    layouts = (("2 hosts", [1, 1]), ("4 hosts", [1] * 4), ("2 hosts of 2 ranks", [2, 2]), ("4 hosts of 8", [8] * 4))
    try:
        return [Check(name, "ok", words_of_paths(paths_by_size(node_sizes))) for name, node_sizes in layouts]
    except ValueError as error:
        return [Check("choice", "warn", "not known", str(error))]


def words_of_paths(paths: Sequence[tuple[int, str, str]]) -> str:
    """Return words for the paths of an allreduce, each with its smallest size in bytes and the reason."""
    return "; ".join(f"{f'from {format_size(start)} on ' if start else ''}{path} ({why})" for start, path, why in paths)
