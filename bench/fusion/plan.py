"""The options of ``gradientflow bench fusion`` as one checked value."""

from __future__ import annotations

from dataclasses import dataclass

from ..core.plan import ComparedPlan, PlanError, Threshold, check_choices, check_memory, parse_sizes
from ..core.shapes import MODELS, Model

DEFAULT_THRESHOLDS = "auto,0,1M,8M,inf"
DEFAULT_BUFFER = "64M"  # Horovod's default

DTYPE = "float32"
_ITEM = 4


@dataclass(frozen=True)
class FusionPlan(ComparedPlan):
    """One run of ``gradientflow bench fusion``.

    Attributes
    ----------
    models : tuple of str
        Keys of `MODELS`: the models of the gradients.
    thresholds : tuple of float or str
        Thresholds of the pools in bytes: 0 for a range for each tensor, infinity for a single range.
    buffer_bytes : int
        Size of the buffer of copy fusion.
    """

    models: tuple[str, ...]
    thresholds: tuple[Threshold, ...]
    buffer_bytes: int

    def __post_init__(self) -> None:
        """Refuse invalid options, with a sentence that names the remedy."""
        check_choices("--models", self.models, tuple(MODELS))
        if not self.thresholds:
            raise PlanError(f"--thresholds names nothing: write for example {DEFAULT_THRESHOLDS}")
        super().__post_init__()

    @property
    def blocks(self) -> list[Model]:
        """The models; all contestants on one model are measured together."""
        return [MODELS[name] for name in self.models]

    def check_machine(self, ranks: int) -> None:
        """Refuse options that need too much memory."""
        contestants = len(self.wires) * (3 + len(self.thresholds)) + 2 * len(self.peers)
        largest = max(self.blocks, key=lambda model: model.parameters)
        buffers = (len(self.wires) + len(self.peers)) * self.buffer_bytes
        check_memory(
            ranks * (contestants * largest.parameters * _ITEM + buffers),
            f"the gradients of {largest.title} with {contestants} contestants and {ranks} ranks need",
            "fewer --thresholds, less to --compare, or smaller --models",
        )


def parse_buffer(text: str) -> int:
    """Read the size of the buffer of copy fusion."""
    sizes = parse_sizes(text)
    if len(sizes) != 1:
        raise PlanError(f"--fusion-buffer takes one size, such as {DEFAULT_BUFFER}, not {text!r}")
    return sizes[0]
