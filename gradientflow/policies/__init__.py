"""Which pushes a parameter server applies together, and which workers may go on."""

from __future__ import annotations

from .builtin import ASP, BSP, DSSP, SSP, ElasticBSP
from .policy import Answer, Policy, RunningPolicy
from .simulation import Event, Simulation, simulate
from .words import as_policy, parse_policies

__all__ = [
    "ASP",
    "BSP",
    "DSSP",
    "SSP",
    "Answer",
    "ElasticBSP",
    "Event",
    "Policy",
    "RunningPolicy",
    "Simulation",
    "as_policy",
    "parse_policies",
    "simulate",
]
