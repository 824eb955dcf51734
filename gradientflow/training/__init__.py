"""The training loop that all frameworks share, from accumulation to checkpoints."""

from __future__ import annotations

from gradientflow.agreement import raise_together, require_same

from .array_loop import ArrayLoop
from .consolidation import consolidated, of_any_rank
from .deal import Deal
from .loop import Loop
from .loss_scale import LossScale
from .membership import Membership
from .tensors import Tensors

__all__ = [
    "ArrayLoop",
    "Deal",
    "Loop",
    "LossScale",
    "Membership",
    "Tensors",
    "consolidated",
    "of_any_rank",
    "raise_together",
    "require_same",
]
