"""A model of training on a real or imagined cluster: the traffic of strategies, and the time of their steps.

The flow: `Cluster` -> `schedule_of` a call -> `Costs` of a `Link` -> `Traffic` of a strategy -> `predict`.
"""

from .cluster import Cluster
from .computation import Computation
from .costs import Call, Costs, Link
from .fit import Fit, measure_link
from .networks import NETWORKS, computation_of, layers_of
from .prediction import Prediction, predict
from .schedule import Schedule, schedule_of
from .traces import computation_of_events
from .traffic import Step, Traffic

__all__ = [
    "NETWORKS",
    "Call",
    "Cluster",
    "Computation",
    "Costs",
    "Fit",
    "Link",
    "Prediction",
    "Schedule",
    "Step",
    "Traffic",
    "computation_of",
    "computation_of_events",
    "layers_of",
    "measure_link",
    "predict",
    "schedule_of",
]
