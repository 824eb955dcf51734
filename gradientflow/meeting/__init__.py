"""How the ranks of a job meet: the rules that say which way applies, and the ways."""

from __future__ import annotations

from .rules import SERVERS, Considered, Given, consider_ways, find_way, is_mpi_job, servers_of
from .way import Way

__all__ = ["SERVERS", "Considered", "Given", "Way", "consider_ways", "find_way", "is_mpi_job", "servers_of"]
