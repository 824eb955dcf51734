"""Meeting of the ranks of a job: rules that choose a plan, and execution of the plan."""

from __future__ import annotations

from .plan import MeetingPlan
from .rules import SERVERS, Considered, InitArguments, consider_rules, find_plan, is_mpi_job, servers_of

__all__ = [
    "SERVERS",
    "Considered",
    "InitArguments",
    "MeetingPlan",
    "consider_rules",
    "find_plan",
    "is_mpi_job",
    "servers_of",
]
