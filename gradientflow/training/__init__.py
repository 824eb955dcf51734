"""The training loop: what is common to all frameworks, from accumulation to checkpoints."""

from __future__ import annotations

from gradientflow.agreement import raise_together, require_same

from .array_loop import ArrayLoop
from .consolidation import consolidated
from .loop import Loop
from .loss_scale import LossScale
from .state import TrainingState
from .tensors import Tensors
from .uneven import Batches, join

__all__ = [
    "ArrayLoop",
    "Batches",
    "Loop",
    "LossScale",
    "Tensors",
    "TrainingState",
    "consolidated",
    "join",
    "raise_together",
    "require_same",
]
