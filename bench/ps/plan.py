"""The options of ``gradientflow bench ps`` as one checked value."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product

from gradientflow.machine import format_size

from ..core.plan import SINGLE_WIRES, ComparedPlan, PlanError, check_choices, check_memory, check_sizes

DTYPE = "float32"
DEFAULT_SIZES = "4K,64K,1M,16M,64M"
PEERS = ("mpi", "rpc")  # the exchange written with MPI_Isend and MPI_Irecv; torch.distributed.rpc

ARRAY, IN_PLACE = "array", "in-place"
MEMORIES = (ARRAY, IN_PLACE)

ONE_PER_WORKER = (0,)  # number of servers; 0: one for each worker

_LEAST_SHARD = 128  # least bytes of a server


@dataclass(frozen=True)
class ServerPlan(ComparedPlan):
    """One run of ``gradientflow bench ps``.

    Attributes
    ----------
    sizes : tuple of int
        Bytes of the gradients that each worker pushes, and of the weights that it pulls.
    servers : tuple of int
        The numbers of servers, on ranks that are also workers; `ONE_PER_WORKER` by default.
    memories : tuple of str
        The memory of our gradients and weights, each a variant: "array", arrays of the worker, which are copied;
        "in-place", memory that the servers read and write.
    """

    sizes: tuple[int, ...]
    servers: tuple[int, ...] = ONE_PER_WORKER
    memories: tuple[str, ...] = MEMORIES
    known_peers = PEERS
    known_wires = SINGLE_WIRES

    def __post_init__(self) -> None:
        """Refuse invalid options, with a sentence that names the remedy."""
        super().__post_init__()
        check_choices("--memory", self.memories, MEMORIES)
        check_sizes(self.sizes, DTYPE, DEFAULT_SIZES)
        if not self.servers:
            raise PlanError("--servers names no number: write for example 1,2")
        if min(self.servers) < 1 and self.servers != ONE_PER_WORKER:
            raise PlanError(f"--servers needs at least 1, not {min(self.servers)}")

    @property
    def blocks(self) -> list[tuple[int, int]]:
        """The blocks: each size with each number of servers."""
        return list(product(self.sizes, self.servers))

    def check_job(self, ranks: int, *, on_this_machine: bool) -> None:
        """Refuse also more servers than ranks."""
        super().check_job(ranks, on_this_machine=on_this_machine)
        most = ranks if self.servers == ONE_PER_WORKER else max(self.servers)
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
