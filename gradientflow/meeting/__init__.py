"""Meeting of the ranks of a job: the rules that choose a way, and the ways."""

from __future__ import annotations

from .rules import SERVERS, Considered, Given, consider_ways, find_way, is_mpi_job, servers_of
from .way import Way

__all__ = ["SERVERS", "Considered", "Given", "Way", "consider_ways", "find_way", "is_mpi_job", "servers_of"]
