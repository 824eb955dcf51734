"""Which pushes a parameter server applies together, and which workers may go on."""

from __future__ import annotations

from .builtin import ASP, BSP
from .policy import Answer, Policy, RunningPolicy
from .words import as_policy, parse_policies

__all__ = ["ASP", "BSP", "Answer", "Policy", "RunningPolicy", "as_policy", "parse_policies"]
