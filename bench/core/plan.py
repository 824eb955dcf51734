"""Reading and checking the options of ``gradientflow bench``: what the plans of all benches are made with."""

from __future__ import annotations

import importlib.util
import math
import re
from collections.abc import Sequence
from typing import Any

from gradientflow.errors import ArgumentError

from .environment import memory_available

DEVICES = ("cpu", "cuda")
WIRES = ("float32", "float16", "bfloat16")
PEERS = ("mpi", "gloo")
AUTO = "auto"  # the library's own choice

Threshold = float | str  # bytes, 0 and infinity included, or AUTO

_SIZE = re.compile(r"(\d+)\s*([KMGT]?)(?:i?B)?", re.IGNORECASE | re.ASCII)


class PlanError(ArgumentError):
    """The options do not describe a measurement; the message is one sentence for the user."""


class Plan:
    """The options of a bench as one checked value."""

    peers: tuple[str, ...] = ()

    @property
    def blocks(self) -> Sequence[Any]:
        """What is measured, one after the other; all contestants of a block beside each other."""
        raise NotImplementedError

    @property
    def stages(self) -> int:
        """How much there is to do, as progress is counted."""
        return len(self.blocks)

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
        if on_this_machine:
            self.check_machine(ranks)

    def check_machine(self, ranks: int) -> None:
        """Refuse what this machine cannot do with so many ranks."""


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


def parse_counts(text: str) -> tuple[int, ...]:
    """Read whole numbers separated by commas."""
    try:
        return tuple(int(part) for part in parse_list(text))
    except ValueError:
        raise PlanError(f"{text!r} is not a list of whole numbers such as 10,100,1000") from None


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
    for peer in ("gloo", "rpc"):
        if peer in peers and importlib.util.find_spec("torch") is None:
            raise PlanError(f"--compare {peer} needs PyTorch, which is not installed: pip install torch")


def check_time(iterations: int | None, seconds: float) -> None:
    """Refuse to time nothing."""
    if iterations is not None and iterations < 1:
        raise PlanError(f"--iterations needs at least 1, not {iterations}")
    if not seconds > 0:
        raise PlanError(f"--seconds needs more than 0, not {seconds:g}")


def check_memory(needed: int, who: str, choose: str, of: str = "") -> None:
    """Refuse what needs more memory than this machine has to give.

    Parameters
    ----------
    needed : int
        Bytes.
    who : str
        Subject and verb of the message, such as "64M needs".
    choose : str
        What to choose in its place.
    of : str
        What the memory is for.
    """
    if needed > (available := memory_available()):
        free = f"{needed / 2**30:.1f} GiB{of}, and {available / 2**30:.1f} GiB are free"
        raise PlanError(f"{who} {free}: choose {choose}")


def threshold_bytes(threshold: Threshold | None) -> int | str | None:
    """Give a threshold as result files hold it."""
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
    """Write a threshold as `parse_thresholds` reads it."""
    size = threshold_bytes(threshold)
    return format_size(size) if isinstance(size, int) else str(size)


def parse_densities(text: str) -> tuple[float, ...]:
    """Read densities such as ``1,0.1``."""
    try:
        return tuple(dict.fromkeys(float(part) for part in parse_list(text)))
    except ValueError:
        raise PlanError(f"--density takes numbers separated by commas, not {text!r}") from None


def check_densities(densities: tuple[float, ...]) -> None:
    """Refuse what is not the share of chunks that are sent."""
    if not densities:
        raise PlanError("--density names nothing: write for example 0.1")
    for density in densities:
        if not 0 < density <= 1:
            raise PlanError(f"--density needs more than 0 and at most 1, not {density:g}")
