"""A plan by which the ranks of a job meet."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from .variables import RankAndSize

# Names of the rules that make plans, for messages.
ARGUMENTS = "arguments of init"
MEET = "GRADIENTFLOW_MEET"
MPI_LAUNCHER = "MPI's launcher"
MASTER = "RANK and MASTER_ADDR"
SLURM = "Slurm's step"
ALONE = "one rank"

# Number of this rank's restarts by the launcher; set only if the launcher keeps the store where the ranks meet.
RESTARTS = "GRADIENTFLOW_RESTARTS"
# Keys in that store: LACKS has the reason why a rank is missing for good; OUTSIDE/RANK: the rank is outside the job.
LACKS, OUTSIDE = "lacks", "outside"

PREFIX = "gradientflow"  # prefix of all our keys in a store


@dataclass(frozen=True)
class MeetingPlan:
    """The plan by which this process meets its job.

    Attributes
    ----------
    name : str
        Name of the rule that made the plan, for messages.
    transport : str
        Transport of messages after meeting: "mpi" or "tcp"; "auto" if ranks that meet through MPI choose the faster.
    rank, size : int or None
        Rank of this process, and number of ranks, including ranks that only serve; None if only MPI knows.
    at : tuple of str
        Meeting points: ``host:port``, of which the first with a store of the job counts; or ``file:///path``. Empty if
        the ranks meet through MPI or a given store, or there is one rank.
    serves : bool
        True if this process opens the store at `at`, or if the program's store may end with this process.
    job : str
        Name that tells the job from other jobs in the same store, equal on all ranks; empty if the token alone does.
    by_mpi : bool
        True if MPI is started, to move the messages or for the ranks to meet.
    agent : bool
        True if the launcher has opened the store at `at`; with ``torchrun``, this is PyTorch's store.
    restart : str
        Number of this start of the same processes, as counted by ``torchrun``.
    replaces : bool
        True if the launcher has started this process alone, in place of a failed one.
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
    def has_store_server(self) -> bool:
        """True if our launcher keeps the store, and notes there which rank is missing for good."""
        return self.agent and self.name == MEET

    @property
    def place(self) -> RankAndSize:
        """Rank of this process and number of ranks, if the plan has them."""
        assert self.rank is not None
        assert self.size is not None
        return RankAndSize(self.rank, self.size)

    @property
    def prefix(self) -> str:
        """Prefix of the job's keys in a store; differs between jobs and between starts of a job."""
        job = self.job and hashlib.sha256(self.job.encode()).hexdigest()[:32]
        return "/".join(filter(None, [PREFIX, job, self.restart]))

    def password(self, token: str) -> str:
        """Return the password of the job's store: the token, hashed with the name of the job if it has one."""
        return hashlib.sha256(f"{self.job}\n{token}".encode()).hexdigest() if self.job else token

    def __str__(self) -> str:
        """Return a short description."""
        place = f"rank {self.rank} of {self.size}" if self.rank is not None and self.size is not None else ""
        where = f"at {', '.join(self.at)}" if self.at else ""
        return ", ".join(filter(None, [self.name, place, where]))
