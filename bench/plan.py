"""What to measure: the options of ``gradientflow bench`` as one checked value."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np

from gradientflow.errors import ArgumentError

from .collectives import COLLECTIVES

DTYPES = ("float16", "float32", "float64", "int8", "uint8", "int32", "int64")
OPS = ("sum", "mean", "max", "min", "prod")
DEVICES = ("cpu", "cuda")
MEMORIES = ("pool", "array")
ALGORITHMS = ("auto", "ring", "hierarchical", "hierarchical_lanes", "recursive_doubling", "shared", "mpi")
WIRES = ("float32", "float16", "bfloat16")
PEERS = ("mpi", "gloo")
ALGORITHMS_OF = {"cpu": ALGORITHMS, "cuda": (*ALGORITHMS, "nccl")}
PEERS_OF = {"cpu": PEERS, "cuda": (*PEERS, "nccl")}
DEFAULT_SIZES = "1K,16K,256K,1M,4M,16M,64M"

_SIZE = re.compile(r"(\d+)\s*([KMGT]?)(?:i?B)?", re.IGNORECASE | re.ASCII)


class PlanError(ArgumentError):
    """The options do not describe a measurement; the message is one sentence for the user."""


@dataclass(frozen=True)
class Plan:
    """One run of ``gradientflow bench`` over a collective.

    Attributes
    ----------
    collective : str
        A key of `COLLECTIVES`.
    sizes : tuple of int
        Bytes, as nccl-tests counts them for the collective.
    memories, algorithms, peers : tuple of str
        Our variants (each memory with each algorithm) and whom to compare them with.
    dtype, op : str
        Element type and reduction.
    wires : tuple of str
        What ours rounds values to where they travel between nodes, each a variant; empty: the element type only.
    iterations : int or None
        Timed calls of each contestant; None for as many as fit in `seconds`.
    seconds : float
        The time to spend on each size, roughly.
    device : str
        Where the arrays are: "cpu", or "cuda" for a device of each rank.
    """

    collective: str
    sizes: tuple[int, ...]
    memories: tuple[str, ...] = MEMORIES
    algorithms: tuple[str, ...] = ("auto",)
    peers: tuple[str, ...] = ("mpi",)
    dtype: str = "float32"
    op: str = "sum"
    wires: tuple[str, ...] = ()
    iterations: int | None = None
    seconds: float = 1.0
    device: str = "cpu"

    def __post_init__(self) -> None:
        """Refuse what cannot be measured, in one sentence that names what to change."""
        check_choices("collective", (self.collective,), tuple(COLLECTIVES))
        check_choices("--dtype", (self.dtype,), DTYPES)
        check_choices("--op", (self.op,), OPS)
        check_choices("--memory", self.memories, MEMORIES)
        check_choices("--device", (self.device,), DEVICES)
        check_choices("--algorithm", self.algorithms, ALGORITHMS_OF[self.device])
        check_choices("--compare", self.peers, PEERS_OF[self.device], may_be_empty=True)
        if self.op == "mean" and np.dtype(self.dtype).kind != "f":
            raise PlanError(f"--op mean needs a floating --dtype, not {self.dtype}")
        for wire in self.wires:
            self._check_wire(wire)
        if self.iterations is not None and self.iterations < 1:
            raise PlanError(f"--iterations needs at least 1, not {self.iterations}")
        if not self.seconds > 0:
            raise PlanError(f"--seconds needs more than 0, not {self.seconds:g}")
        if not self.sizes:
            raise PlanError(f"--sizes names no size: write for example {DEFAULT_SIZES}")
        item = np.dtype(self.dtype).itemsize
        for size in self.sizes if self.collective != "barrier" else ():
            if size < item or size % item:
                raise PlanError(f"{size} bytes is not a whole number of {self.dtype} elements ({item} bytes each)")

    @property
    def variants(self) -> list[tuple[str, str, str]]:
        """Ours: every memory with every algorithm and wire. A barrier touches no memory, so one is enough."""
        memories = self.memories if self.collective != "barrier" else ("array",)
        return list(product(memories, self.algorithms, self.wires or (self.dtype,)))

    def check_peers(self) -> None:
        """Refuse peers that are not installed."""
        check_installed(self.peers)

    def _check_wire(self, wire: str) -> None:
        if self.collective != "allreduce":
            raise PlanError(f"--wire is for allreduce, not {self.collective}")
        if wire != self.dtype:
            check_choices("--wire", (wire,), WIRES)
            if self.dtype != "float32":
                raise PlanError(f"--wire {wire} needs --dtype float32, not {self.dtype}")


def parse_sizes(text: str) -> tuple[int, ...]:
    """Read sizes such as ``16K,1M,64M``; K, M, G and T are powers of 1024, with or without ``B`` or ``iB``.

    Parameters
    ----------
    text : str
        Sizes separated by commas.

    Returns
    -------
    tuple of int
        Bytes, in the order given.
    """
    return tuple(dict.fromkeys(_parse_size(item) for item in parse_list(text)))


def parse_list(text: str) -> tuple[str, ...]:
    """Split a comma-separated option into its distinct parts, in order; an empty one gives none."""
    return tuple(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))


def format_size(size: int) -> str:
    """Write a number of bytes as `parse_sizes` reads it: ``64K``, ``1M``, ``1000``."""
    for exponent, unit in ((40, "T"), (30, "G"), (20, "M"), (10, "K")):
        if size and size % (1 << exponent) == 0:
            return f"{size >> exponent}{unit}"
    return str(size)


def _parse_size(text: str) -> int:
    match = _SIZE.fullmatch(text)
    if match is None:
        raise PlanError(f"{text!r} is not a size: write bytes, or a number with K, M or G, such as 64K or 1M")
    size = int(match[1]) << 10 * " KMGT".index(match[2].upper() or " ")
    if size == 0:
        raise PlanError("a size has to be larger than 0")
    return size


def check_choices(option: str, values: Sequence[str], allowed: Sequence[str], *, may_be_empty: bool = False) -> None:
    """Refuse an option that names something unknown, or nothing.

    Parameters
    ----------
    option : str
        Its name, for the message.
    values : sequence of str
        What was given.
    allowed : sequence of str
        What may be given.
    may_be_empty : bool
        Whether nothing may be given as well.
    """
    if not values and not may_be_empty:
        raise PlanError(f"{option} names nothing: choose from {', '.join(allowed)}")
    for value in values:
        if value not in allowed:
            raise PlanError(f"{option} does not know {value!r}: choose from {', '.join(allowed)}")


def check_installed(peers: Sequence[str]) -> None:
    """Refuse peers that are not installed."""
    if "gloo" in peers and importlib.util.find_spec("torch") is None:
        raise PlanError("--compare gloo needs PyTorch, which is not installed: pip install torch")
