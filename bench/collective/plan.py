"""The options of a bench of one collective as one checked value."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import product

import numpy as np

from gradientflow.machine import format_size

from ..core.case import COLLECTIVES, Case
from ..core.data import alphabet
from ..core.device import check_device
from ..core.plan import (
    DEVICES,
    PEERS,
    WIRES,
    ComparedPlan,
    PlanError,
    check_choices,
    check_memory,
    check_sizes,
    check_time,
)

DTYPES = ("float16", "float32", "float64", "int8", "uint8", "int32", "int64")
OPS = ("sum", "mean", "max", "min", "prod")
MEMORIES = ("pool", "array")
ALGORITHMS = ("auto", "ring", "hierarchical", "hierarchical_lanes", "recursive_doubling", "shared", "mpi")
ALGORITHMS_OF = {"cpu": ALGORITHMS, "cuda": (*ALGORITHMS, "nccl")}
LIMIT = "limit"  # the limit set by memory: not a library
PREPARED = "prepared"  # our prepared calls, compared with our ordinary calls
PEERS_OF = {"cpu": (*PEERS, LIMIT, PREPARED), "cuda": (*PEERS, "nccl")}
DEFAULT_SIZES = "1K,16K,256K,1M,4M,16M,64M"


@dataclass(frozen=True)
class CollectivePlan(ComparedPlan):
    """One run of ``gradientflow bench`` over a collective.

    Attributes
    ----------
    collective : str
        A key of `COLLECTIVES`.
    sizes : tuple of int
        Bytes, as nccl-tests counts them for the collective.
    memories, algorithms : tuple of str
        Variants of ours: each memory with each algorithm.
    dtype, op : str
        Element type and reduction.
    device : str
        Location of the arrays: "cpu", or "cuda" for a device of each rank.
    """

    collective: str
    sizes: tuple[int, ...]
    memories: tuple[str, ...] = MEMORIES
    algorithms: tuple[str, ...] = ("auto",)
    dtype: str = "float32"
    op: str = "sum"
    wires: tuple[str, ...] = field(default=(), kw_only=True)  # if empty, the element type
    device: str = "cpu"

    def __post_init__(self) -> None:
        """Refuse invalid options, with a sentence that names the remedy."""
        check_choices("collective", (self.collective,), tuple(COLLECTIVES))
        check_choices("--dtype", (self.dtype,), DTYPES)
        check_choices("--op", (self.op,), OPS)
        check_choices("--memory", self.memories, MEMORIES)
        check_choices("--device", (self.device,), DEVICES)
        check_choices("--algorithm", self.algorithms, ALGORITHMS_OF[self.device])
        check_choices("--compare", self.peers, PEERS_OF[self.device], may_be_empty=True)
        if LIMIT in self.peers and self.collective != "allreduce":
            raise PlanError(f"--compare limit is for allreduce, not {self.collective}")
        if self.op == "mean" and np.dtype(self.dtype).kind != "f":
            raise PlanError(f"--op mean needs a floating --dtype, not {self.dtype}")
        for wire in self.wires:
            self._check_wire(wire)
        check_time(self.iterations, self.seconds)
        check_sizes(self.sizes, self.dtype, DEFAULT_SIZES)

    @property
    def blocks(self) -> tuple[int, ...]:
        """The sizes; all contestants at one size are measured together."""
        return self.sizes

    @property
    def variants(self) -> list[tuple[str, str, str]]:
        """Our variants: every memory with every algorithm and wire. A barrier touches no memory, so one is enough."""
        memories = self.memories if self.collective != "barrier" else ("array",)
        return list(product(memories, self.algorithms, self.wires or (self.dtype,)))

    def check_job(self, ranks: int, *, on_this_machine: bool) -> None:
        """Refuse invalid options, and sums that are not exact."""
        if ranks > 0:
            alphabet(self._largest(ranks))
        super().check_job(ranks, on_this_machine=on_this_machine)

    def check_machine(self, ranks: int) -> None:
        """Refuse options that need too much memory, and a missing device."""
        case = self._largest(ranks)
        contestants = len(self.variants) + len(self.peers)
        buffers = 1 if COLLECTIVES[self.collective].in_place else 2
        check_memory(
            contestants * ranks * buffers * case.bytes,
            f"{format_size(case.size)} with {contestants} contestants and {ranks} ranks needs",
            "smaller --sizes, or less to --compare",
            " of buffers",
        )
        check_device(self.device)

    def _largest(self, ranks: int) -> Case:
        return Case(self.collective, max(self.sizes, default=0), self.dtype, self.op, ranks, 0, self.wires)

    def _check_wire(self, wire: str) -> None:
        if self.collective != "allreduce":
            raise PlanError(f"--wire is for allreduce, not {self.collective}")
        if wire != self.dtype:
            check_choices("--wire", (wire,), WIRES)
            if self.dtype != "float32":
                raise PlanError(f"--wire {wire} needs --dtype float32, not {self.dtype}")
