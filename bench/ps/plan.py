"""The options of ``gradientflow bench ps`` as one checked value."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product

from ..core.plan import WIRES, Plan, PlanError, check_choices, check_memory, check_time, format_size

DTYPE = "float32"
DEFAULT_SIZES = "4K,64K,1M,16M,64M"
PEERS = ("mpi", "rpc")

ARRAY, IN_PLACE = "array", "in-place"
MEMORIES = (ARRAY, IN_PLACE)

AS_MANY = (0,)  # as many servers as workers

_ITEM = 4
_LEAST_SHARD = 128  # bytes of a server


@dataclass(frozen=True)
class ServerPlan(Plan):
    """One run of ``gradientflow bench ps``.

    Attributes
    ----------
    sizes : tuple of int
        Bytes of the gradients that each worker pushes, and of the weights that it pulls.
    servers : tuple of int
        The numbers of servers, in the ranks of workers; `AS_MANY` by default.
    wires : tuple of str
        The wire dtypes of ours, each a variant.
    memories : tuple of str
        The memory of our gradients and weights, each a variant: "array", arrays of the worker, which are copied;
        "in-place", memory that the servers read and write.
    peers : tuple of str
        The peers: "mpi", the exchange written with MPI_Isend and MPI_Irecv; "rpc", torch.distributed.rpc.
    iterations : int or None
        Timed exchanges of each contestant; None for as many as fit in `seconds`.
    seconds : float
        The time to spend on each size and number of servers, roughly.
    """

    sizes: tuple[int, ...]
    servers: tuple[int, ...] = AS_MANY
    wires: tuple[str, ...] = (DTYPE,)
    memories: tuple[str, ...] = MEMORIES
    peers: tuple[str, ...] = ("mpi",)
    iterations: int | None = None
    seconds: float = 3.0

    def __post_init__(self) -> None:
        """Refuse invalid options, with a sentence that names what to change."""
        check_choices("--wire", self.wires, WIRES)
        check_choices("--memory", self.memories, MEMORIES)
        check_choices("--compare", self.peers, PEERS, may_be_empty=True)
        if not self.sizes:
            raise PlanError(f"--sizes names no size: write for example {DEFAULT_SIZES}")
        for size in self.sizes:
            if size % _ITEM:
                raise PlanError(f"{size} bytes is not a whole number of {DTYPE} elements ({_ITEM} bytes each)")
        if not self.servers:
            raise PlanError("--servers names no number: write for example 1,2")
        if min(self.servers) < 1 and self.servers != AS_MANY:
            raise PlanError(f"--servers needs at least 1, not {min(self.servers)}")
        check_time(self.iterations, self.seconds)

    @property
    def blocks(self) -> list[tuple[int, int]]:
        """The blocks: each size with each number of servers."""
        return list(product(self.sizes, self.servers))

    def check_job(self, ranks: int, *, on_this_machine: bool) -> None:
        """Refuse also more servers than ranks."""
        super().check_job(ranks, on_this_machine=on_this_machine)
        most = ranks if self.servers == AS_MANY else max(self.servers)
        if min(self.sizes) < _LEAST_SHARD * most:
            raise PlanError(
                f"--sizes {min(self.sizes)} is too little for {most} servers, of which each needs {_LEAST_SHARD} bytes"
            )
        if most > ranks:
            raise PlanError(f"--servers {most} is more than the {ranks} ranks, which they are in")

    def check_machine(self, ranks: int) -> None:
        """Refuse options that need too much memory."""
        largest, contestants = max(self.sizes), len(self.wires) * len(self.memories) + len(self.peers)
        check_memory(
            7 * ranks * contestants * largest,  # gradient, weights, two slots, and a worker's part of the servers
            f"{format_size(largest)} with {contestants} contestants and {ranks} ranks needs",
            "smaller --sizes, or less to --compare",
            " of buffers",
        )
