"""Strategies: when the ranks send which gradients or weights."""

from __future__ import annotations

from .arrays import ArraySynchronizer
from .asgd import ASGD
from .auto import Auto, AutoExplanation
from .csc import CSC
from .dense import Dense
from .dgc import DGC
from .diloco import DiLoCo
from .dssp import DSSP
from .elastic_bsp import ElasticBSP
from .exchange_model import ExchangeExplanation
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
from .served import ServedStrategy, ServedSynchronizer
from .shared import NodeWeights
from .slgs import SLGS
from .sparse_loco import SparseLoCo
from .speed_model import ServedExplanation, StepTimes
from .ssd_sgd import SSDSGD
from .ssgd import SSGD
from .ssp import SSP
from .strategy import Strategy
from .synchronizer import Synchronizer
from .top_k import TopK
from .update import Settings, Update
from .words import as_strategy, parse_strategies, parse_strategy

__all__ = [
    "ASGD",
    "CSC",
    "DGC",
    "DSSP",
    "HPSGD",
    "LAGS",
    "PSGD",
    "SLGS",
    "SSDSGD",
    "SSGD",
    "SSP",
    "ArraySynchronizer",
    "Auto",
    "AutoExplanation",
    "Dense",
    "DiLoCo",
    "ElasticBSP",
    "ExchangeExplanation",
    "Explanation",
    "LayerMonitor",
    "Layout",
    "LocalSGD",
    "MonitorReport",
    "NodeWeights",
    "PoolStrategy",
    "PoolSynchronizer",
    "PowerSGD",
    "RandomK",
    "ServedExplanation",
    "ServedStrategy",
    "ServedSynchronizer",
    "Settings",
    "SparseLoCo",
    "StepTimes",
    "Strategy",
    "Synchronizer",
    "TopK",
    "Update",
    "as_strategy",
    "parse_strategies",
    "parse_strategy",
]
