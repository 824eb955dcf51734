"""Strategies: descriptions of which gradients or weights the ranks send, and when."""

from __future__ import annotations

from gradientflow import former_names

from . import methods
from .comparison import Comparison, compare
from .contract import Strategy, Synchronizer
from .exchange.arrays import ArraySynchronizer
from .exchange.pooled import PoolStrategy, PoolSynchronizer
from .exchange.served import ServedStrategy, ServedSynchronizer
from .exchange.survivable import Survivable, SurvivableArrays
from .layout import Layout
from .methods import *  # noqa: F403 (their only list)
from .methods.auto import AutoExplanation
from .node_weights import NodeWeights
from .parsing import as_strategy, default_strategy, parse_strategies, parse_strategy, words_of_default_strategy
from .predict.explanation import Explanation
from .predict.monitor import LayerMonitor, MonitorTable
from .predict.speed_model import StepTimes
from .update import Iteration, Profile, Settings, Update, Withheld

__all__ = [
    "ArraySynchronizer",
    "AutoExplanation",
    "Comparison",
    "Explanation",
    "Iteration",
    "LayerMonitor",
    "Layout",
    "MonitorTable",
    "NodeWeights",
    "PoolStrategy",
    "PoolSynchronizer",
    "Profile",
    "ServedStrategy",
    "ServedSynchronizer",
    "Settings",
    "StepTimes",
    "Strategy",
    "Survivable",
    "SurvivableArrays",
    "Synchronizer",
    "Update",
    "Withheld",
    "as_strategy",
    "compare",
    "default_strategy",
    "parse_strategies",
    "parse_strategy",
    "words_of_default_strategy",
]
__all__ += methods.__all__
__getattr__ = former_names.names_of(__name__)
