"""What to train and how to synchronise: the options of ``gradientflow bench train`` as one checked value."""

from __future__ import annotations

import importlib.util
import math
from dataclasses import dataclass

from gradientflow.bench.fusion_plan import AUTO, Threshold, format_threshold
from gradientflow.bench.plan import WIRES, PlanError, check_choices, parse_list

MODELS = ("mlp", "cnn", "lstm")
CONTESTANTS = ("gradientflow", "ddp-gloo", "ddp-gloo-fp16", "ddp-gloo-powersgd", "ddp-gradientflow")
NONE = "none"  # every rank trains alone: what a step costs without communication
SINGLE = "single"  # one process trains on the batches of all ranks
SINGLE_ACCUMULATED = "single-accumulated"  # the same, one rank's batch after the other: differs by rounding only

_PACKAGES = {"torch": "torch", "sklearn": "scikit-learn"}


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
    """

    contestant: str
    wire: str | None = None
    threshold: Threshold | None = None
    approximation_rank: int | None = None

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
            return f"{self.wire}, {format_threshold(self.threshold)}"
        return "" if self.approximation_rank is None else f"rank {self.approximation_rank}"

    @property
    def name(self) -> str:
        """The contestant with its setting."""
        return f"{self.contestant} ({self.setting})" if self.setting else self.contestant


@dataclass(frozen=True)
class TrainPlan:
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
        for option, numbers in (
            ("--thresholds", self.thresholds),
            ("--powersgd-rank", self.approximation_ranks),
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
        if min(self.seeds) < 0:
            raise PlanError(f"--seeds needs 0 or more, not {min(self.seeds)}")
        if self.learning_rate is not None and not 0 < self.learning_rate < math.inf:
            raise PlanError(f"--lr needs more than 0, not {self.learning_rate:g}")

    @property
    def entries(self) -> list[Entry]:
        """All that take part, references first."""
        names = [NONE] if self.epochs is None else [SINGLE, SINGLE_ACCUMULATED]
        entries = [Entry(name) for name in names]
        for name in self.contestants:
            if name == "gradientflow":
                entries += [Entry(name, wire, threshold) for wire in self.wires for threshold in self.thresholds]
            elif name == "ddp-gloo-powersgd":
                entries += [Entry(name, approximation_rank=rank) for rank in self.approximation_ranks]
            else:
                entries.append(Entry(name))
        return entries

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
