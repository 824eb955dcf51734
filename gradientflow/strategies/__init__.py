"""When and what the ranks send of their gradients."""

from __future__ import annotations

from .csc import CSC
from .dense import Dense
from .explanation import Explanation
from .strategy import Strategy

__all__ = ["CSC", "Dense", "Explanation", "Strategy"]
