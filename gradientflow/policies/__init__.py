"""Policies of a parameter server: they choose the pushes that it applies together, and the workers that may proceed."""

from __future__ import annotations

from .builtin import ASP, BSP, DSSP, SSP, ElasticBSP
from .parsing import as_policy, file_of_policy, parse_policies
from .policy import Answer, Policy, RunningPolicy
from .simulation import Event, Simulation, simulate
from .stragglers import Stragglers, as_stragglers
from .trace import Difference, Trace, trace_of

__all__ = [
    "ASP",
    "BSP",
    "DSSP",
    "SSP",
    "Answer",
    "Difference",
    "ElasticBSP",
    "Event",
    "Policy",
    "RunningPolicy",
    "Simulation",
    "Stragglers",
    "Trace",
    "as_policy",
    "as_stragglers",
    "file_of_policy",
    "parse_policies",
    "simulate",
    "trace_of",
]
