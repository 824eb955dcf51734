"""What to measure: the options of ``gradientflow bench fusion`` as one checked value."""

from __future__ import annotations

import math
from dataclasses import dataclass

from .environment import memory_available
from .plan import PEERS, WIRES, PlanError, check_choices, check_installed, format_size, parse_list, parse_sizes
from .shapes import MODELS

DEFAULT_THRESHOLDS = "auto,0,1M,8M,inf"
AUTO = "auto"  # the pool's own choice

Threshold = float | str  # bytes, 0 and infinity included, or AUTO
DEFAULT_BUFFER = "64M"  # Horovod's

DTYPE = "float32"
_ITEM = 4


@dataclass(frozen=True)
class FusionPlan:
    """One run of ``gradientflow bench fusion``.

    Attributes
    ----------
    models : tuple of str
        Keys of `MODELS`: whose gradients are exchanged.
    thresholds : tuple of float or str
        Of the pools, in bytes: 0 for one range a tensor, infinity for one range.
    buffer_bytes : int
        Size of the buffer of copy fusion.
    peers : tuple of str
        Whom to compare with.
    wires : tuple of str
        What ours rounds values to where they travel between nodes, each a variant.
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
        """Refuse what cannot be measured, in one sentence that names what to change."""
        check_choices("--models", self.models, tuple(MODELS))
        check_choices("--wire", self.wires, WIRES)
        check_choices("--compare", self.peers, PEERS, may_be_empty=True)
        if not self.thresholds:
            raise PlanError(f"--thresholds names nothing: write for example {DEFAULT_THRESHOLDS}")
        if self.iterations is not None and self.iterations < 1:
            raise PlanError(f"--iterations needs at least 1, not {self.iterations}")
        if not self.seconds > 0:
            raise PlanError(f"--seconds needs more than 0, not {self.seconds:g}")

    def check_peers(self) -> None:
        """Refuse peers that are not installed."""
        check_installed(self.peers)

    def check_job(self, ranks: int, *, on_this_machine: bool) -> None:
        """Refuse, before anything is started, what could only fail on the way.

        Parameters
        ----------
        ranks : int
            How many there will be.
        on_this_machine : bool
            Whether all of them will share this machine's memory.
        """
        if ranks < 1:
            raise PlanError(f"-n needs at least 1 rank, not {ranks}")
        contestants = len(self.wires) * (3 + len(self.thresholds)) + 2 * len(self.peers)
        largest = max((MODELS[name] for name in self.models), key=lambda model: model.parameters)
        buffers = (len(self.wires) + len(self.peers)) * self.buffer_bytes
        needed = ranks * (contestants * largest.parameters * _ITEM + buffers)
        if on_this_machine and needed > (available := memory_available()):
            raise PlanError(
                f"the gradients of {largest.title} with {contestants} contestants and {ranks} ranks need "
                f"{needed / 2**30:.1f} GiB, and {available / 2**30:.1f} GiB are free: choose fewer --thresholds, "
                "less to --compare, or smaller --models"
            )


def parse_thresholds(text: str) -> tuple[Threshold, ...]:
    """Read thresholds such as ``auto,0,8M,inf``.

    Parameters
    ----------
    text : str
        Sizes separated by commas; 0, inf and auto are allowed.

    Returns
    -------
    tuple of float or str
        Bytes, in the order given; "auto" as it is.
    """
    special: dict[str, Threshold] = {"0": 0.0, "inf": math.inf, AUTO: AUTO}
    return tuple(
        dict.fromkeys(
            special[part.lower()] if part.lower() in special else float(parse_sizes(part)[0])
            for part in parse_list(text)
        )
    )


def parse_buffer(text: str) -> int:
    """Read the size of the buffer of copy fusion."""
    sizes = parse_sizes(text)
    if len(sizes) != 1:
        raise PlanError(f"--fusion-buffer takes one size, such as {DEFAULT_BUFFER}, not {text!r}")
    return sizes[0]


def format_threshold(threshold: Threshold) -> str:
    """Write a threshold as `parse_thresholds` reads it."""
    if isinstance(threshold, str):
        return threshold
    return "inf" if math.isinf(threshold) else format_size(int(threshold))
