"""When and what the ranks send, of gradients or of weights."""

from __future__ import annotations

from .arrays import ArraySynchronizer
from .csc import CSC
from .dense import Dense
from .dgc import DGC
from .explanation import Explanation
from .lags import LAGS
from .layout import Layout
from .monitor import LayerMonitor, MonitorReport
from .pooled import PoolStrategy, PoolSynchronizer
from .random_k import RandomK
from .slgs import SLGS
from .strategy import Strategy
from .synchronizer import Synchronizer
from .top_k import TopK
from .update import Settings, Update
from .words import as_strategy, parse_strategies, parse_strategy

__all__ = [
    "CSC",
    "DGC",
    "LAGS",
    "SLGS",
    "ArraySynchronizer",
    "Dense",
    "Explanation",
    "LayerMonitor",
    "Layout",
    "MonitorReport",
    "PoolStrategy",
    "PoolSynchronizer",
    "RandomK",
    "Settings",
    "Strategy",
    "Synchronizer",
    "TopK",
    "Update",
    "as_strategy",
    "parse_strategies",
    "parse_strategy",
]
