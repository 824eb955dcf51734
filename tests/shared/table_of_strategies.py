"""What strategies promise: one table for the loop for arrays and for PyTorch, which checks are generated from."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from gradientflow.errors import AbandonedError, PeerError

EXAMPLES = Path(__file__).resolve().parents[2] / "docs" / "examples"


@dataclass(frozen=True)
class Promise:
    """What a strategy promises, as docs/choosing.md and docs/strategies.md have it.

    Parameters
    ----------
    words : str
        The strategy, as users write it.
    told : {"all", "one", "none"}
        Which ranks have an error where one has gradients that are not finite.
    taken : tuple of int
        After how many steps a state is taken from which training goes on bit for bit; empty where it depends on time.
    finished : bool
        Whether states come after `finish`.
    uneven : {"join", "finish", "told"}
        What ranks with other numbers of steps need: `join`, `finish` alone, or an error that tells of them.
    sums : {"mean", "sum", None}
        What becomes of each gradient in the end, with what is kept; None if some of it is lost, or becomes more.
    given_up : type or None
        The error of all others where one rank gives up an iteration; None if it drops it alone.
    own : bool
        Whether ranks train on weights of their own for a time.
    momentum : float
        That of the optimizer; 0.0 where the strategy has one, or takes none.
    elsewhere : float or None
        How close training comes, after its state goes to another number of ranks, to training without.
    compute : bool or None
        Whether `explain` counts calculations of its own; None if it depends on the machine.
    silent : bool
        Whether no messages are sent in a step.
    """

    words: str
    told: Literal["all", "one", "none"] = "all"
    taken: tuple[int, ...] = (5,)
    finished: bool = False
    uneven: Literal["join", "finish", "told"] = "join"
    sums: Literal["mean", "sum"] | None = None
    given_up: type[Exception] | None = AbandonedError
    own: bool = False
    momentum: float = 0.5
    elsewhere: float | None = None
    compute: bool | None = None
    silent: bool = False

    @property
    def name(self) -> str:
        """The name of the strategy."""
        return self.words.rpartition(":")[2].partition("(")[0]

    @property
    def is_own(self) -> bool:
        """Whether it is a user's."""
        return ":" in self.words

    @property
    def is_same(self) -> bool:
        """Whether two runs have the same bits, whenever its ranks come."""
        return bool(self.taken) and not self.finished

    @property
    def is_ranked(self) -> bool:
        """Whether each rank has a state of its own."""
        return not self.is_served and self.name not in ("dense", "auto", "psgd", "hpsgd", "SignSGD")

    @property
    def remembers(self) -> bool:
        """Whether it changes tensors by what it has kept of earlier steps."""
        return self.name in (
            "csc",
            "top_k",
            "random_k",
            "lags",
            "slgs",
            "dgc",
            "powersgd",
            "diloco",
            "sparse_loco",
            "TopK",
        )

    @property
    def is_served(self) -> bool:
        """Whether it has servers."""
        return self.name in ("ssgd", "ssd_sgd", "asgd", "ssp", "dssp", "elastic_bsp")


def _pooled(words: str, **others: object) -> Promise:
    return Promise(words, **{"sums": "mean", "elsewhere": 1e-5, **others})  # type: ignore[arg-type]


def _local(words: str, **others: object) -> Promise:
    return Promise(
        words,
        **{"told": "one", "taken": (7,), "uneven": "told", "given_up": None, "own": True, **others},  # type: ignore[arg-type]
    )


def _asynchronous(words: str) -> Promise:
    return Promise(words, told="one", taken=(), uneven="finish", sums="sum", given_up=None)


def _delayed(words: str, **others: object) -> Promise:
    return Promise(words, **{"taken": (6, 7), "uneven": "finish", "given_up": None, "own": True, **others})  # type: ignore[arg-type]


PROMISES = (
    _pooled("dense", told="none", elsewhere=None),
    _pooled("auto", told="none", elsewhere=None),
    _pooled("csc(density=0.5, chunk_size=16, momentum=1.0)"),
    _pooled("csc(density=0.25, chunk_size=16, momentum=0.5, warmup=6)", sums=None),
    _pooled("top_k(ratio=4)"),
    _pooled("random_k(ratio=4)"),
    _pooled("lags(ratio=4, warmup=0, selection='exact')"),
    _pooled("lags(max_ratio=50, warmup=1, monitor=True)", elsewhere=None),
    _pooled("slgs(ratio=8, selection='exact')"),
    _pooled("dgc(ratio=4, momentum=0.5, selection='exact')", sums=None, momentum=0.0),
    _pooled("powersgd(rank=1, warmup=0)", elsewhere=1e-4, given_up=PeerError),
    _pooled("powersgd(rank=2, warmup=4)", elsewhere=1e-4, given_up=PeerError),
    _local("local_sgd(period=1)", sums="mean", own=False),
    _local("local_sgd(period=4, delay=2)"),
    _local("diloco(period=2, outer_rate=0.5)", compute=True, elsewhere=1e-5),
    _local("diloco(period=4, nesterov=False)", compute=True),
    _local("diloco(period=6, fragments=3, delay=1, mixing=0.25)", compute=True),
    _local("sparse_loco(period=1, decay=1.0)", compute=True, own=False),
    _local("sparse_loco(period=3)", compute=True),
    _local("psgd", uneven="finish", sums="mean", own=False, silent=True),
    Promise("hpsgd", "one", (5,), True, "finish", "mean", None, own=True, momentum=0.0, compute=True),
    Promise("ssgd", taken=(1, 6), uneven="finish"),
    Promise("ssgd(optimizer='adam')", uneven="finish", momentum=0.0),
    _asynchronous("asgd"),
    _asynchronous("ssp(2)"),
    _asynchronous("dssp(1, 4)"),
    _asynchronous("elastic_bsp(3)"),
    _delayed("ssd_sgd(k=1, warmup=1, local_update='sgd')"),
    _delayed("ssd_sgd(k=3, warmup=3)", taken=(1, 3, 6, 7)),
    _delayed("ssd_sgd(k=2, warmup=2, local_update='dc_asgd')"),
    _delayed("ssd_sgd(k=2, warmup=2, local_update='none')", compute=False),
    # Users' own: the examples of the docs, as they stand.
    _pooled(f"{EXAMPLES}/sign_sgd.py:SignSGD(scale=0.5)", told="none", sums=None, elsewhere=None, given_up=PeerError),
    _pooled(f"{EXAMPLES}/top_k.py:TopK(density=0.1)", elsewhere=None, given_up=PeerError),
    _local(f"{EXAMPLES}/local_sgd.py:LocalSGD(period=3)", sums="mean", own=False, silent=True),
)
