"""What to train and how to synchronise: the options of ``gradientflow bench train`` as one checked value."""

from __future__ import annotations

import importlib.util
import math
from dataclasses import dataclass
from itertools import product

from ..core.plan import (
    AUTO,
    WIRES,
    Plan,
    PlanError,
    Threshold,
    check_choices,
    check_densities,
    format_size,
    format_threshold,
    parse_list,
)

MODELS = ("mlp", "cnn", "lstm", "resnet")
STRATEGIES = ("dense", "csc")
PRECISIONS = ("float32", "bfloat16")  # float16 would need a loss scale, and processors are slow with it
CONTESTANTS = ("gradientflow", "ddp-gloo", "ddp-gloo-fp16", "ddp-gloo-powersgd", "ddp-gradientflow", "mpi")
CHUNK_SIZE = 32768  # the pool's default, and the paper's

NONE = "none"  # every rank trains alone: what a step costs without communication
SINGLE = "single"  # one process trains on the batches of all ranks
SINGLE_ACCUMULATED = "single-accumulated"  # the same, one rank's batch after the other: differs by rounding only

# DDP rearranges its buckets after the first step, and PowerSGD compresses from the third on.
_UNTIMED_STEPS_AT_FIRST = 3

_PACKAGES = {"torch": "torch", "sklearn": "scikit-learn"}


@dataclass(frozen=True)
class Sparse:
    """Settings of coarse-grained sparse communication.

    Attributes
    ----------
    density : float
        The share of the chunks that is sent.
    chunk_size : int
        Elements of a chunk.
    warmup : int
        Iterations in which the density falls to this.
    correction : bool
        Whether what is not sent is kept for later, and momentum corrected.
    """

    density: float
    chunk_size: int = CHUNK_SIZE
    warmup: int = 0
    correction: bool = True

    @property
    def settled(self) -> int:
        """The iterations after which the density is what it stays: the first two are dense in any case."""
        return max(self.warmup, 2)

    def __str__(self) -> str:
        """Write what is not the default."""
        parts = [f"csc {self.density:g}"]
        if self.chunk_size != CHUNK_SIZE:
            parts.append(f"chunks of {format_size(self.chunk_size)}")
        if self.warmup:
            parts.append(f"warm-up {self.warmup}")
        if not self.correction:
            parts.append("no correction")
        return ", ".join(parts)


@dataclass(frozen=True)
class Entry:
    """One way to train, as results name it.

    Attributes
    ----------
    contestant : str
        One of `CONTESTANTS`, or a reference.
    wire : str or None
        Ours: what gradients are rounded to between nodes.
    threshold : float, str or None
        Ours: the fusion threshold in bytes; infinite where nothing overlaps.
    approximation_rank : int or None
        PowerSGD: the rank of the matrices that are sent.
    sparse : Sparse or None
        Ours: sparse communication; None where all gradients are sent.
    algorithm : str
        Ours: of the allreduce.
    overlaps : bool
        Ours: whether gradients travel during the backward pass, and not only after it.
    precision : str
        Of the model. With 16 bits gradients have them too, and the update is that of float32 master weights.
    """

    contestant: str
    wire: str | None = None
    threshold: Threshold | None = None
    approximation_rank: int | None = None
    sparse: Sparse | None = None
    algorithm: str = AUTO
    overlaps: bool = True
    precision: str = "float32"

    @property
    def is_reference(self) -> bool:
        """Whether the ranks do not synchronise."""
        return self.contestant in (NONE, SINGLE, SINGLE_ACCUMULATED)

    @property
    def needs_ddp(self) -> bool:
        """Whether it is PyTorch's DistributedDataParallel."""
        return self.contestant.startswith("ddp-")

    @property
    def sent_dtype(self) -> str | None:
        """What travels of each gradient element; None where it is something else that travels."""
        if self.is_reference or self.contestant == "ddp-gloo-powersgd":
            return None
        return "float16" if self.contestant == "ddp-gloo-fp16" else self.wire or "float32"

    @property
    def setting(self) -> str:
        """What tells it from others of the same contestant; often empty."""
        if self.threshold is not None:
            parts = [] if self.sparse is None else [str(self.sparse)]
            parts += [] if self.algorithm == AUTO else [self.algorithm]
            parts += [str(self.wire) if self.precision == "float32" else f"{self.precision} model"]
            parts += [format_threshold(self.threshold)]
            parts += [] if self.overlaps else ["after backward"]
            return ", ".join(parts)
        return "" if self.approximation_rank is None else f"rank {self.approximation_rank}"

    @property
    def name(self) -> str:
        """The contestant with its setting."""
        return f"{self.contestant} ({self.setting})" if self.setting else self.contestant


@dataclass(frozen=True)
class Rung:
    """A column of the GradientFlow paper's Tables 1 and 2.

    Attributes
    ----------
    title : str
        What has been added so far.
    entry : Entry
        The contestant.
    """

    title: str
    entry: Entry


@dataclass(frozen=True)
class TrainPlan(Plan):
    """One run of ``gradientflow bench train``.

    Attributes
    ----------
    models : tuple of str
        Of `MODELS`.
    contestants : tuple of str
        Of `CONTESTANTS`; the references take part unasked.
    wires : tuple of str
        Variants of ours, and with `thresholds` each with each.
    thresholds : tuple of float or str
        Fusion thresholds in bytes.
    approximation_ranks : tuple of int
        Variants of PowerSGD.
    strategies : tuple of str
        Of `STRATEGIES`: variants of ours.
    densities, chunk_sizes, warmups, corrections : tuple
        Variants of sparse communication, see `Sparse`; each with each.
    precisions : tuple of str
        Of `PRECISIONS`: variants of ours.
    ladder : bool
        In place of all contestants, what each part of ours adds to the one before it, as in the GradientFlow paper.
    steps : int
        Timed steps of each contestant and seed.
    turn : int
        Timed steps that a contestant makes before it is the next one's turn.
    batch : int
        Samples of a rank in a step.
    seeds : tuple of int
        Each gives other initial parameters and another order of the data.
    learning_rate : float or None
        None for one that suits the model.
    threads : int
        Of PyTorch, in each rank.
    epochs : int or None
        Train this long, and compare with training in one process, in place of timing `steps`.
    """

    models: tuple[str, ...] = MODELS
    contestants: tuple[str, ...] = CONTESTANTS
    wires: tuple[str, ...] = ("float32", "float16")
    thresholds: tuple[Threshold, ...] = (AUTO,)
    approximation_ranks: tuple[int, ...] = (1,)
    strategies: tuple[str, ...] = ("dense",)
    densities: tuple[float, ...] = (0.1,)
    chunk_sizes: tuple[int, ...] = (CHUNK_SIZE,)
    warmups: tuple[int, ...] = (0,)
    corrections: tuple[bool, ...] = (True,)
    precisions: tuple[str, ...] = ("float32",)
    ladder: bool = False
    steps: int = 40
    turn: int = 5
    batch: int = 32
    seeds: tuple[int, ...] = (0,)
    learning_rate: float | None = None
    threads: int = 1
    epochs: int | None = None

    def __post_init__(self) -> None:
        """Refuse what cannot be measured, in one sentence that names what to change."""
        check_choices("--model", self.models, MODELS)
        check_choices("--contestants", self.contestants, CONTESTANTS, may_be_empty=True)
        check_choices("--wire", self.wires, WIRES)
        check_choices("--strategy", self.strategies, STRATEGIES)
        check_choices("--precision", self.precisions, PRECISIONS)
        check_densities(self.densities)
        if self.ladder and self.epochs is not None:
            raise PlanError("--ladder is about time: leave --convergence out")
        for option, numbers in (
            ("--thresholds", self.thresholds),
            ("--powersgd-rank", self.approximation_ranks),
            ("--chunk", self.chunk_sizes),
            ("--warmup", self.warmups),
            ("--correction", self.corrections),
            ("--seeds", self.seeds),
        ):
            if not numbers:
                raise PlanError(f"{option} names nothing")
        for option, number in (
            ("--steps", self.steps),
            ("--turn", self.turn),
            ("--batch", self.batch),
            ("--threads", self.threads),
            ("--powersgd-rank", min(self.approximation_ranks)),
            ("--convergence", self.epochs),
        ):
            if number is not None and number < 1:
                raise PlanError(f"{option} needs at least 1, not {number}")
        for option, numbers in (("--seeds", self.seeds), ("--warmup", self.warmups)):
            if min(numbers) < 0:
                raise PlanError(f"{option} needs 0 or more, not {min(numbers)}")
        if self.learning_rate is not None and not 0 < self.learning_rate < math.inf:
            raise PlanError(f"--lr needs more than 0, not {self.learning_rate:g}")

    @property
    def entries(self) -> list[Entry]:
        """All that take part, references first."""
        names = [NONE] if self.epochs is None else [SINGLE, SINGLE_ACCUMULATED]
        entries = [Entry(name) for name in names]
        if self.ladder:
            return entries + [rung.entry for rung in self.rungs]
        variants = {
            "gradientflow": self._ours,
            "ddp-gloo-powersgd": [
                Entry("ddp-gloo-powersgd", approximation_rank=rank) for rank in self.approximation_ranks
            ],
        }
        return entries + [entry for name in self.contestants for entry in variants.get(name, [Entry(name)])]

    @property
    def _ours(self) -> list[Entry]:
        """Our own ways to synchronise: each strategy with each precision, wire and threshold."""
        return [
            Entry("gradientflow", wire, threshold, sparse=sparse, precision=precision)
            for sparse in self.sparse_settings
            for precision in self.precisions
            for wire in (self.wires if precision == "float32" else (precision,))
            for threshold in self.thresholds
        ]

    @property
    def sparse_settings(self) -> list[Sparse | None]:
        """The strategies with their settings; None is dense."""
        variants = product(self.densities, self.chunk_sizes, self.warmups, self.corrections)
        sparse = [Sparse(*variant) for variant in variants]
        return [setting for name in self.strategies for setting in (sparse if name == "csc" else [None])]

    @property
    def rungs(self) -> list[Rung]:
        """The ladder: what each part of ours adds to the one before it."""

        def ring(wire: str, threshold: Threshold, sparse: Sparse | None = None, *, overlaps: bool = True) -> Entry:
            return Entry("gradientflow", wire, threshold, None, sparse, "ring", overlaps)

        rungs = [
            Rung("MPI", Entry("mpi")),
            Rung("ring", ring("float32", 0.0, overlaps=False)),
            Rung("ring +fp16", ring("float16", 0.0, overlaps=False)),
            Rung("ring +fp16 +overlap", ring("float16", 0.0)),
            Rung("ring +fp16 +lazy +overlap", ring("float16", AUTO)),
        ]
        for density, chunk_size in product(self.densities, self.chunk_sizes):
            entry = ring("float16", AUTO, Sparse(density, chunk_size))
            rungs.append(Rung(f"ring +fp16 +lazy +CSC {density:g} +overlap", entry))
        return rungs

    @property
    def untimed_steps(self) -> int:
        """Steps that every contestant makes before the first timed one: all do the same work."""
        settled = [entry.sparse.settled for entry in self.entries if entry.sparse is not None]
        return max([_UNTIMED_STEPS_AT_FIRST, *settled])

    @property
    def blocks(self) -> tuple[str, ...]:
        """What is measured together: all ways to train a model."""
        return self.models

    @property
    def stages(self) -> int:
        """How much there is to do, as progress is counted."""
        return self.all_turns

    @property
    def peers(self) -> tuple[str, ...]:  # type: ignore[override]
        """What has to be ready: PyTorch's default process group where DDP takes part."""
        return ("gloo",) if any(entry.needs_ddp for entry in self.entries) else ()

    @property
    def all_turns(self) -> int:
        """Turns of all contestants, for all models and seeds."""
        turns = len(self.turns) if self.epochs is None else self.epochs
        return len(self.models) * len(self.seeds) * turns * len(self.entries)

    @property
    def turns(self) -> list[int]:
        """Timed steps of each turn that a contestant has, where they are not epochs."""
        whole, rest = divmod(self.steps, self.turn)
        return [self.turn] * whole + [rest] * (rest > 0)


def check_packages() -> None:
    """Refuse to train without the packages that it takes."""
    missing = [package for module, package in _PACKAGES.items() if importlib.util.find_spec(module) is None]
    if missing:
        raise PlanError(f"bench train needs {' and '.join(missing)}: pip install {' '.join(missing)}")


def parse_numbers(option: str, text: str) -> tuple[int, ...]:
    """Read whole numbers separated by commas."""
    try:
        return tuple(dict.fromkeys(int(part) for part in parse_list(text)))
    except ValueError:
        raise PlanError(f"{option} takes whole numbers separated by commas, not {text!r}") from None


def parse_corrections(text: str) -> tuple[bool, ...]:
    """Read ``on`` and ``off``, separated by commas."""
    named = {"on": True, "off": False}
    parts = parse_list(text)
    check_choices("--correction", parts, tuple(named))
    return tuple(named[part] for part in parts)
