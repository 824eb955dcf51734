"""One way in which the ranks of a job can meet."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from .variables import Place

# What every way is called, for people.
ARGUMENTS = "arguments of init"
MEET = "GRADIENTFLOW_MEET"
MPI_LAUNCHER = "MPI's launcher"
MASTER = "RANK and MASTER_ADDR"
SLURM = "Slurm's step"
ALONE = "one rank"

# How often a process of the launcher's has been started again; the launcher then keeps the store where ranks meet.
RESTARTS = "GRADIENTFLOW_RESTARTS"
# Behind the prefix in its store: why a rank will not come; and, with its number, that a rank is not in the job.
LACKS, OUTSIDE = "lacks", "outside"

PREFIX = "gradientflow"  # begins the names of all values of ours in a store


@dataclass(frozen=True)
class Way:
    """How this process meets the others of its job.

    Attributes
    ----------
    name : str
        The way, for people.
    transport : str
        "mpi" or "tcp": how the ranks then exchange messages; "auto" where those that MPI introduces to each other are
        to take the faster one.
    rank, size : int or None
        This process, and how many there are, with those that only serve; None where only MPI can tell.
    at : tuple of str
        Where they meet: ``host:port``, the first of them with a store of the job; or ``file:///path``. Empty where the
        ranks have something else in common, or nobody else is to come.
    serves : bool
        Whether this process opens the store there, or the store that the program gives may end with it.
    job : str
        What tells the job from others that could come to the same store, alike on all ranks; empty where only a token
        does.
    by_mpi : bool
        Whether MPI is started: it moves the messages, or introduces the ranks to each other.
    agent : bool
        Whether the launcher has opened the store at `at`, PyTorch's in the case of ``torchrun``.
    restart : str
        Which start of the same processes this is, as ``torchrun`` counts them.
    replaces : bool
        Whether the launcher has started this process, and no other, in place of one that had failed.
    """

    name: str
    transport: str
    rank: int | None = None
    size: int | None = None
    at: tuple[str, ...] = ()
    serves: bool = False
    job: str = ""
    by_mpi: bool = False
    agent: bool = False
    restart: str = ""
    replaces: bool = False

    @property
    def has_keeper(self) -> bool:
        """Whether our launcher keeps the store, and says there who will not come."""
        return self.agent and self.name == MEET

    @property
    def place(self) -> Place:
        """The place of this process, where the way tells it."""
        assert self.rank is not None
        assert self.size is not None
        return Place(self.rank, self.size)

    @property
    def prefix(self) -> str:
        """What begins the names of the job's values in a store: nobody of another job, or start, has the same."""
        job = self.job and hashlib.sha256(self.job.encode()).hexdigest()[:32]
        return "/".join(filter(None, [PREFIX, job, self.restart]))

    def password(self, token: str) -> str:
        """Return what a store of the job asks for: the token that guards it, and where the job is known, which."""
        return hashlib.sha256(f"{self.job}\n{token}".encode()).hexdigest() if self.job else token

    def __str__(self) -> str:
        """Say it in a few words."""
        place = f"rank {self.rank} of {self.size}" if self.rank is not None and self.size is not None else ""
        where = f"at {', '.join(self.at)}" if self.at else ""
        return ", ".join(filter(None, [self.name, place, where]))
