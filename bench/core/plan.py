"""Parsing and checks of the options of ``gradientflow bench``, for the plans of all benches."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import numpy as np

from gradientflow.errors import ArgumentError
from gradientflow.machine import format_size, memory_available
from gradientflow.meeting import rules
from gradientflow.wires import wires

DEVICES = ("cpu", "cuda")
WIRES = tuple(wires())
SINGLE_WIRES = tuple(name for name, wire in wires().items() if wire.dtype)  # each value stands for itself
PEERS = ("mpi", "gloo")
AUTO = "auto"  # the library's own choice
TRANSPORTS = tuple(each for each in rules.TRANSPORTS if each != AUTO)

P = TypeVar("P", bound=Any)

Threshold = float | str  # bytes, possibly 0 or infinity, or AUTO

_SIZE = re.compile(r"(\d+)\s*([KMGT]?)(?:i?B)?", re.IGNORECASE | re.ASCII)


class PlanError(ArgumentError):
    """The options do not describe a measurement; the message is one sentence for the user."""


class Plan:
    """The options of a bench as one checked value."""

    peers: tuple[str, ...] = ()

    @property
    def blocks(self) -> Sequence[object]:
        """The blocks, measured in order; all contestants of a block are interleaved."""
        raise NotImplementedError

    @property
    def stages(self) -> int:
        """The number of stages, to show progress."""
        return len(self.blocks)

    def check_job(self, ranks: int, *, on_this_machine: bool) -> None:
        """Refuse, before anything is started, options that would fail later.

        Parameters
        ----------
        ranks : int
            The number of ranks.
        on_this_machine : bool
            True if all ranks will share this machine's memory.
        """
        if ranks < 1:
            raise PlanError(f"-n needs at least 1 rank, not {ranks}")
        if on_this_machine:
            self.check_machine(ranks)

    def check_machine(self, ranks: int) -> None:
        """Refuse options that this machine does not support with this number of ranks."""


@dataclass(frozen=True, kw_only=True)
class ComparedPlan(Plan):
    """The options of a bench that compares GradientFlow with peers.

    Attributes
    ----------
    wires : tuple of str
        The dtypes of our messages between nodes, each a variant.
    peers : tuple of str
        The peers.
    transports : tuple of str
        Transports of our messages between nodes, each a variant; `AUTO` for the job's.
    iterations : int or None
        Timed calls of each contestant; None for as many as fit in `seconds`.
    seconds : float
        The time to spend on each block, roughly.
    """

    known_peers: ClassVar[Sequence[str]] = PEERS
    known_wires: ClassVar[Sequence[str]] = WIRES

    wires: tuple[str, ...] = WIRES[:1]
    peers: tuple[str, ...] = PEERS[:1]
    transports: tuple[str, ...] = (AUTO,)
    iterations: int | None = None
    seconds: float = 1.0

    def __post_init__(self) -> None:
        """Refuse invalid options, with a sentence that names what to change."""
        check_choices("--wire", self.wires, self.known_wires)
        check_choices("--compare", self.peers, self.known_peers, may_be_empty=True)
        check_choices("--transport", self.transports, (AUTO, *TRANSPORTS))
        check_time(self.iterations, self.seconds)


def without_mpi(plan: P) -> P:
    """Return the plan without parts that need MPI; the same plan if it has none.

    Raises `PlanError` if the transport needs MPI.
    """
    if "mpi" in getattr(plan, "transports", ()):
        raise PlanError("--transport mpi needs a job of MPI")
    names = {field.name for field in fields(plan)} & {"peers", "algorithms", "contestants"}
    rest = {name: tuple(each for each in getattr(plan, name) if each != "mpi") for name in names}
    changed = {name: value for name, value in rest.items() if value != getattr(plan, name)}
    return replace(plan, **changed) if changed else plan


def parse_sizes(text: str) -> tuple[int, ...]:
    """Read sizes such as ``16K,1M,64M``; K, M, G and T are powers of 1024, with or without ``B`` or ``iB``."""
    return tuple(dict.fromkeys(parse_size(item) for item in parse_list(text)))


def parse_list(text: str) -> tuple[str, ...]:
    """Split a comma-separated option into its distinct parts, in order; an empty option gives no parts."""
    return tuple(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))


def parse_counts(text: str) -> tuple[int, ...]:
    """Read whole numbers separated by commas."""
    try:
        return tuple(int(part) for part in parse_list(text))
    except ValueError:
        raise PlanError(f"{text!r} is not a list of whole numbers such as 10,100,1000") from None


def parse_size(text: str) -> int:
    """Read one size."""
    match = _SIZE.fullmatch(text)
    if match is None:
        raise PlanError(f"{text!r} is not a size: write bytes, or a number with K, M or G, such as 64K or 1M")
    size = int(match[1]) << 10 * " KMGT".index(match[2].upper() or " ")
    if size == 0:
        raise PlanError("a size has to be larger than 0")
    return size


def check_choices(option: str, values: Sequence[str], allowed: Sequence[str], *, may_be_empty: bool = False) -> None:
    """Refuse an option that is empty or has an unknown value.

    Parameters
    ----------
    option : str
        Name of the option, for the message.
    values : sequence of str
        The given values.
    allowed : sequence of str
        The permitted values.
    may_be_empty : bool
        True if the option may be empty.
    """
    if not values and not may_be_empty:
        raise PlanError(f"{option} names nothing: choose from {', '.join(allowed)}")
    for value in values:
        if value not in allowed:
            raise PlanError(f"{option} does not know {value!r}: choose from {', '.join(allowed)}")


def check_sizes(sizes: Sequence[int], dtype: str, example: str) -> None:
    """Refuse an empty list of sizes, and sizes that are no whole number of elements."""
    item = np.dtype(dtype).itemsize
    if not sizes:
        raise PlanError(f"--sizes names no size: write for example {example}")
    for size in sizes:
        if size % item:
            raise PlanError(f"{size} bytes is not a whole number of {dtype} elements ({item} bytes each)")


def check_writable(path: str) -> None:
    """Refuse a file that cannot be written."""
    if not (os.access(Path(path).parent, os.W_OK) and not Path(path).is_dir()):
        raise PlanError(f"{path} cannot be written")


def check_time(iterations: int | None, seconds: float) -> None:
    """Refuse iterations or seconds that leave nothing to time."""
    if iterations is not None and iterations < 1:
        raise PlanError(f"--iterations needs at least 1, not {iterations}")
    if not seconds > 0:
        raise PlanError(f"--seconds needs more than 0, not {seconds:g}")


def check_memory(needed: int, who: str, choose: str, of: str = "") -> None:
    """Refuse options that need more memory than this machine has available.

    Parameters
    ----------
    needed : int
        Needed bytes.
    who : str
        Subject and verb of the message, such as "64M needs".
    choose : str
        Alternative to choose.
    of : str
        The purpose of the memory.
    """
    if needed > (available := memory_available()):
        free = f"{needed / 2**30:.1f} GiB{of}, and {available / 2**30:.1f} GiB are free"
        raise PlanError(f"{who} {free}: choose {choose}")


def threshold_bytes(threshold: Threshold | None) -> int | str | None:
    """Give a threshold in the form of result files."""
    if threshold is None or isinstance(threshold, str):
        return threshold
    return "inf" if math.isinf(threshold) else int(threshold)


def parse_thresholds(text: str) -> tuple[Threshold, ...]:
    """Read fusion thresholds such as ``auto,0,8M,inf`` in bytes."""
    special: dict[str, Threshold] = {"0": 0.0, "inf": math.inf, AUTO: AUTO}
    return tuple(
        dict.fromkeys(
            special[part.lower()] if part.lower() in special else float(parse_sizes(part)[0])
            for part in parse_list(text)
        )
    )


def format_threshold(threshold: Threshold) -> str:
    """Write a threshold in the form that `parse_thresholds` reads."""
    size = threshold_bytes(threshold)
    return format_size(size) if isinstance(size, int) else str(size)


def parse_densities(text: str) -> tuple[float, ...]:
    """Read densities such as ``1,0.1``."""
    try:
        return tuple(dict.fromkeys(float(part) for part in parse_list(text)))
    except ValueError:
        raise PlanError(f"--density takes numbers separated by commas, not {text!r}") from None


def check_densities(densities: tuple[float, ...]) -> None:
    """Refuse densities outside their range."""
    if not densities:
        raise PlanError("--density names nothing: write for example 0.1")
    for density in densities:
        if not 0 < density <= 1:
            raise PlanError(f"--density needs more than 0 and at most 1, not {density:g}")
