"""When and what the ranks send, of gradients or of weights."""

from __future__ import annotations

from .arrays import ArraySynchronizer
from .csc import CSC
from .dense import Dense
from .dgc import DGC
from .diloco import DiLoCo
from .explanation import Explanation
from .hpsgd import HPSGD
from .lags import LAGS
from .layout import Layout
from .local_sgd import LocalSGD
from .monitor import LayerMonitor, MonitorReport
from .pooled import PoolStrategy, PoolSynchronizer
from .power_sgd import PowerSGD
from .psgd import PSGD
from .random_k import RandomK
from .slgs import SLGS
from .sparse_loco import SparseLoCo
from .strategy import Strategy
from .synchronizer import Synchronizer
from .top_k import TopK
from .update import Settings, Update
from .words import as_strategy, parse_strategies, parse_strategy

__all__ = [
    "CSC",
    "DGC",
    "HPSGD",
    "LAGS",
    "PSGD",
    "SLGS",
    "ArraySynchronizer",
    "Dense",
    "DiLoCo",
    "Explanation",
    "LayerMonitor",
    "Layout",
    "LocalSGD",
    "MonitorReport",
    "PoolStrategy",
    "PoolSynchronizer",
    "PowerSGD",
    "RandomK",
    "Settings",
    "SparseLoCo",
    "Strategy",
    "Synchronizer",
    "TopK",
    "Update",
    "as_strategy",
    "parse_strategies",
    "parse_strategy",
]
