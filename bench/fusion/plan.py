"""The options of ``gradientflow bench fusion`` as one checked value."""

from __future__ import annotations

from dataclasses import dataclass

from ..core.plan import (
    PEERS,
    WIRES,
    Plan,
    PlanError,
    Threshold,
    check_choices,
    check_memory,
    check_time,
    parse_sizes,
)
from ..core.shapes import MODELS, Model

DEFAULT_THRESHOLDS = "auto,0,1M,8M,inf"
DEFAULT_BUFFER = "64M"  # Horovod's

DTYPE = "float32"
_ITEM = 4


@dataclass(frozen=True)
class FusionPlan(Plan):
    """One run of ``gradientflow bench fusion``.

    Attributes
    ----------
    models : tuple of str
        Keys of `MODELS`: the models of the gradients.
    thresholds : tuple of float or str
        Thresholds of the pools in bytes: 0 for one range for each tensor, infinity for one range.
    buffer_bytes : int
        Size of the buffer of copy fusion.
    peers : tuple of str
        The peers.
    wires : tuple of str
        Dtypes of our messages between nodes, each a variant.
    iterations : int or None
        Timed steps of each contestant; None for as many as fit in `seconds`.
    seconds : float
        The time to spend on each model, roughly.
    """

    models: tuple[str, ...]
    thresholds: tuple[Threshold, ...]
    buffer_bytes: int
    peers: tuple[str, ...] = ("mpi",)
    wires: tuple[str, ...] = (DTYPE,)
    iterations: int | None = None
    seconds: float = 10.0

    def __post_init__(self) -> None:
        """Refuse invalid options, with a sentence that names what to change."""
        check_choices("--models", self.models, tuple(MODELS))
        check_choices("--wire", self.wires, WIRES)
        check_choices("--compare", self.peers, PEERS, may_be_empty=True)
        if not self.thresholds:
            raise PlanError(f"--thresholds names nothing: write for example {DEFAULT_THRESHOLDS}")
        check_time(self.iterations, self.seconds)

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
