"""The groups of strategies: what ranks run in a job, and how that is checked."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from . import counts, local_log, rounds_log, sums
from .ending import Ending
from .local import Local
from .log import Log
from .means import Means
from .roster import Roster
from .task import MOMENTUM, Vector, contribution


@dataclass(frozen=True)
class Group:
    """A way to train that loses ranks.

    Attributes
    ----------
    check : callable
        Takes what is left; gives what is wrong, or nothing.
    strategy : str
        Its words, for the program.
    program : str
        The module that ranks run: its arguments are the file that says when to end, the number of the process, and
        the name of the group.
    keep : callable, optional
        Lets synchronizers write into the log of a rank.
    contribution : callable
        What a process contributes to a step.
    momentum : float
        Of the optimizer.
    ends_together : bool
        Whether ranks end together, so that what is left is right if some are killed meanwhile.
    may_lose_weights : bool
        Whether these are lost if a server and the rank with its copies die together: then one rank is killed at a time,
        and all may end with the error that says so.
    """

    check: Callable[[Ending], str]
    strategy: str = ""
    program: str = "trainee"
    keep: Callable[[Log, Roster], None] | None = None
    contribution: Callable[[int, int, int], Vector] = contribution
    momentum: float = MOMENTUM
    ends_together: bool = True
    may_lose_weights: bool = False


def _local(words: str) -> Group:
    return Group(Local.of_exchanges(words), words, keep=local_log.keep)


def _rounds(words: str) -> Group:
    return Group(Local.of_rounds(), words, keep=rounds_log.keep, momentum=0.0)


def _in_step(words: str) -> Group:
    return Group(Means("everything"), words, may_lose_weights=True)


def _own_pace(words: str) -> Group:
    return Group(counts.problem, words, contribution=counts.contribution, momentum=0.0, may_lose_weights=True)


_CHUNKS = {"density": 0.2, "chunk_size": 32}

GROUPS = {
    "collectives": Group(sums.problem, program="adder", ends_together=False),
    "dense": Group(Means("everything"), "dense"),
    "csc": Group(Means("chunks", _CHUNKS), "csc(density=0.2, chunk_size=32, momentum=1.0)"),
    "top_k": Group(Means("entries", {"ratio": 8}), "top_k(ratio=8)"),
    "lags": Group(Means("entries", {"ratio": 8}), "lags(max_ratio=8, warmup=1000000000, selection='exact')"),
    "powersgd": Group(Means("products", {"rank": 2, "warmup": 3}, 1e-4), "powersgd(rank=2, warmup=3)"),
    "local_sgd": _local("local_sgd(period=4)"),
    "diloco": _local("diloco(period=6, fragments=2, delay=4, outer_rate=0.5, outer_momentum=0.5)"),
    "sparse_loco": _local("sparse_loco(period=4, decay=0.5)"),
    "hpsgd": _rounds("hpsgd"),
    "ssgd": _in_step("ssgd(replicas=1)"),
    "ssd_sgd": _in_step("ssd_sgd(k=3, warmup=3, replicas=1)"),
    "asgd": _own_pace("asgd(replicas=1)"),
    "ssp": _own_pace("ssp(3, replicas=1)"),
    "dssp": _own_pace("dssp(2, 4, replicas=1)"),
    "elastic_bsp": _own_pace("elastic_bsp(8, replicas=1)"),
}
