"""When and what the ranks send, of gradients or of weights."""

from __future__ import annotations

from .arrays import ArraySynchronizer
from .csc import CSC
from .dense import Dense
from .explanation import Explanation
from .layout import Layout
from .pooled import PoolStrategy, PoolSynchronizer
from .strategy import Strategy
from .synchronizer import Synchronizer
from .update import Settings, Update
from .words import as_strategy, parse_strategies, parse_strategy

__all__ = [
    "CSC",
    "ArraySynchronizer",
    "Dense",
    "Explanation",
    "Layout",
    "PoolStrategy",
    "PoolSynchronizer",
    "Settings",
    "Strategy",
    "Synchronizer",
    "Update",
    "as_strategy",
    "parse_strategies",
    "parse_strategy",
]
