"""Models and contestants: the options of ``gradientflow bench train`` as one checked value."""

from __future__ import annotations

import inspect
import math
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from itertools import product

from gradientflow.policies import Stragglers
from gradientflow.strategies import Dense, Strategy, default_strategy, parse_strategies

from ..core.plan import AUTO, TRANSPORTS, WIRES, Plan, PlanError, Threshold, check_choices, parse_list
from .entry import DDP_ALONE, NONE, SINGLE, SINGLE_ACCUMULATED, Entry, Optimizer
from .perceptrons import is_perceptron, widths_of
from .rates import OwnRates, check_rate

MODELS = ("mlp", "cnn", "lstm", "resnet")
STRATEGIES = "dense; dense(wire='float16')"  # default strategies
ON_THE_LADDER = "csc(density=0.1)"  # default strategy with the ladder
PRECISIONS = ("float32", "bfloat16")  # float16 would need a loss scale, and processors are slow with it
OURS = "gradientflow"
CONTESTANTS = (OURS, "ddp-gloo", "ddp-gloo-fp16", "ddp-gloo-powersgd", "ddp-gradientflow", "mpi")
_ON_ALL_RANKS = "ddp-gradientflow"  # needs the whole job, whose process group it uses

# DDP rearranges its buckets after the first step, and PowerSGD compresses from the third on.
_UNTIMED_STEPS_AT_FIRST = 3


@dataclass(frozen=True)
class Rung:
    """A column of the GradientFlow paper's Tables 1 and 2.

    Attributes
    ----------
    title : str
        The parts added so far.
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
        Names in `MODELS`, or perceptrons of a given size.
    contestants : tuple of str
        Names in `CONTESTANTS`; the references always take part.
    strategies : tuple of Strategy
        Our strategies; empty for the default.
    wires : tuple of str
        Variants of each strategy, in all combinations with `thresholds`; empty for the wire of each strategy.
    thresholds : tuple of float or str
        Fusion thresholds in bytes: variants of each strategy; empty for the threshold of each strategy.
    approximation_ranks : tuple of int
        Variants of PowerSGD.
    precisions : tuple of str
        Names in `PRECISIONS`: variants of ours.
    fused : bool
        True for variants of ours with the fused step.
    survive : bool
        True for variants of ours that continue when ranks die.
    views : bool
        True for DDP variants with ``gradient_as_bucket_view``, and a reference without communication.
    transports : tuple of str
        Transports of our messages, each a variant; `AUTO` for the job's.
    ladder : bool
        True to compare, in place of all contestants, the parts of the GradientFlow paper added in turn.
    steps : int
        Timed steps of each contestant and seed.
    turn : int
        Timed steps in a turn.
    batch : int
        Samples of a rank in a step.
    seeds : tuple of int
        Seeds of initial parameters and of the order of the data.
    learning_rate : float or None
        Learning rate; None for a rate that suits the model.
    own_rates : tuple of (str, float)
        Rates of single contestants, by a name of `Entry.titles`.
    momentum : float
        Momentum of the optimizer, if the strategy uses it.
    threads : int
        Threads of PyTorch and NumPy in each rank.
    epochs : int or None
        Epochs to train for, and compare with training in one process, in place of timing `steps`.
    stragglers : Stragglers or None
        The computing time of each rank's steps, relative to the fastest rank; ranks sleep to extend it.
    step_ms : float or None
        The step of the fastest rank; None for one and a half times the measured step.
    traces : str or None
        Folder for the traces of the servers' policies.
    scale : tuple of int
        Numbers of ranks that also train alone, for the scale efficiency; empty for none.
    resume : str or None
        File that keeps finished parts.
    """

    models: tuple[str, ...] = MODELS
    contestants: tuple[str, ...] = CONTESTANTS
    strategies: tuple[Strategy, ...] = ()
    wires: tuple[str, ...] = ()
    thresholds: tuple[Threshold, ...] = ()
    approximation_ranks: tuple[int, ...] = (1,)
    precisions: tuple[str, ...] = ("float32",)
    fused: bool = False
    survive: bool = False
    views: bool = False
    transports: tuple[str, ...] = (AUTO,)
    ladder: bool = False
    steps: int = 40
    turn: int = 5
    batch: int = 32
    seeds: tuple[int, ...] = (0,)
    learning_rate: float | None = None
    own_rates: OwnRates = ()
    momentum: float = 0.9
    threads: int = 1
    epochs: int | None = None
    stragglers: Stragglers | None = None
    step_ms: float | None = None
    traces: str | None = None
    scale: tuple[int, ...] = ()
    resume: str | None = None

    def __post_init__(self) -> None:
        """Refuse invalid options, with a sentence that names the remedy."""
        perceptrons = [*filter(is_perceptron, self.models)]
        for name in perceptrons:
            widths_of(name)  # checks the size
        check_choices("--model", self.models, (*MODELS, *perceptrons))
        check_choices("--contestants", self.contestants, CONTESTANTS, may_be_empty=True)
        check_choices("--wire", self.wires, WIRES, may_be_empty=True)
        check_choices("--transport", self.transports, (AUTO, *TRANSPORTS))
        if self.transports != (AUTO,) and (self.scale or self.ladder):
            raise PlanError("--transport compares all ranks by our strategies: leave --scale and --ladder out")
        check_choices("--precision", self.precisions, PRECISIONS)
        if self.ladder and self.epochs is not None:
            raise PlanError("--ladder is about time: leave --convergence out")
        if self.strategies and not self.ladder and OURS not in self.contestants:
            raise PlanError(f"--strategy is about {OURS}, which is not among --contestants")
        for option, numbers in (("--powersgd-rank", self.approximation_ranks), ("--seeds", self.seeds)):
            if not numbers:
                raise PlanError(f"{option} names nothing")
        for option, number in (
            ("--steps", self.steps),
            ("--turn", self.turn),
            ("--batch", self.batch),
            ("--threads", self.threads),
            ("--powersgd-rank", min(self.approximation_ranks)),
            ("--convergence", self.epochs),
            ("--scale", min(self.scale, default=None)),
        ):
            if number is not None and number < 1:
                raise PlanError(f"{option} needs at least 1, not {number}")
        if min(self.seeds) < 0:
            raise PlanError(f"--seeds needs 0 or more, not {min(self.seeds)}")
        if self.learning_rate is not None:
            check_rate(self.learning_rate)
        if not 0 <= self.momentum < 1:
            raise PlanError(f"--momentum needs at least 0 and less than 1, not {self.momentum:g}")
        if self.ladder and self.stragglers is not None:
            raise PlanError("--ladder is for ranks that are equally fast: leave --stragglers out")
        if self.survive and self.transports != ("tcp",):
            raise PlanError("--survive goes with --transport tcp")
        if self.scale and (self.ladder or self.stragglers is not None):
            option = "--ladder" if self.ladder else "--stragglers"
            raise PlanError(f"--scale does not go with {option}: leave one of them out")
        if self.step_ms is not None and self.stragglers is None:
            raise PlanError("--step-ms is about --stragglers: name them, or leave it out")
        if self.step_ms is not None and not 0 < self.step_ms < math.inf:
            raise PlanError(f"--step-ms needs more than 0, not {self.step_ms:g}")
        names = [entry.name for entry in self.entries]
        for name in names:
            if names.count(name) > 1:
                raise PlanError(f"two strategies would both be shown as {name}: give one of them another name")
        titles = list(dict.fromkeys(title for entry in self.entries for title in entry.titles))
        for name, _ in self.own_rates:
            if name not in titles:
                raise PlanError(
                    f"--lr has a rate for {name}, which does not take part: it goes with {', '.join(titles)}"
                )
        for entry in self.entries:
            if self.epochs is None and self.steps < entry.profile.period:
                raise PlanError(f"--steps needs at least {entry.profile.period}, the period of {entry.strategy}")

    @cached_property
    def entries(self) -> list[Entry]:
        """All entries that take part, references first."""
        names = [NONE] if self.epochs is None else [SINGLE, SINGLE_ACCUMULATED]
        entries = [Entry(name) for name in names]
        if self.ladder:
            return list(dict.fromkeys([*entries, *(rung.entry for rung in self.rungs)]))
        variants = {
            OURS: self._ours,
            "ddp-gloo-powersgd": [
                Entry("ddp-gloo-powersgd", approximation_rank=rank) for rank in self.approximation_ranks
            ],
        }
        others = [entry for name in self.contestants for entry in variants.get(name, [Entry(name)])]
        if self.views:
            entries += [Entry(DDP_ALONE)] if self.epochs is None else []
        found = entries + others
        return found + [replace(entry, views=True) for entry in found if self.views and entry.needs_ddp]

    @property
    def _ours(self) -> list[Entry]:
        """Our own ways to synchronize: each strategy with each precision, wire and threshold."""
        found: list[Entry] = []
        for strategy, precision in product(self.strategies or _usual_strategies(), self.precisions):
            if precision == "float32":
                wired = _variants(strategy, "--wire", "wire", self.wires)
            else:  # 16-bit gradients are not rounded again
                wired = [_with(strategy, wire=None) if "wire" in strategy.settings else strategy]
            for each in wired:
                for variant in _variants(each, "--thresholds", "fusion_threshold", self.thresholds):
                    found.append(Entry(OURS, variant, precision=precision))
                    if self.fused and precision == "float32" and variant.step == "any":
                        found.append(Entry(OURS, variant, fused=True))
        if self.survive:
            found += [replace(entry, survives=True) for entry in found]
        if self.transports != (AUTO,):
            found = [replace(entry, transport=transport) for entry in found for transport in self.transports]
        return list(dict.fromkeys(found))

    @property
    def rungs(self) -> list[Rung]:
        """The ladder: each rung adds one part to the previous one."""

        def ring(wire: str, threshold: Threshold, *, overlaps: bool = True) -> Entry:
            return Entry(OURS, Dense(fusion_threshold=threshold, wire=wire, algorithm="ring"), overlaps=overlaps)

        rungs = [
            *([Rung("MPI", Entry("mpi"))] if "mpi" in self.contestants else []),
            Rung("ring", ring("float32", 0, overlaps=False)),
            Rung("ring +fp16", ring("float16", 0, overlaps=False)),
            Rung("ring +fp16 +overlap", ring("float16", 0)),
            Rung("ring +fp16 +lazy +overlap", ring("float16", AUTO)),
        ]
        for strategy in self.strategies or parse_strategies(ON_THE_LADDER):
            (narrow,) = _variants(strategy, "--ladder", "wire", ["float16"])
            (on_ring,) = _variants(narrow, "--ladder", "algorithm", ["ring"])
            rungs.append(Rung(f"ring +fp16 +lazy +{strategy} +overlap", Entry(OURS, on_ring)))
        return rungs

    def optimizer_of(self, entry: Entry, suitable_rate: float) -> Optimizer:
        """Give the optimizer of a contestant."""
        rate = self.own_rate_of(entry) or self.learning_rate or suitable_rate
        return Optimizer(rate, self.momentum if entry.profile.takes_momentum else 0.0)

    def own_rate_of(self, entry: Entry) -> float | None:
        """Give the learning rate set for a contestant, by its most specific title."""
        own = dict(self.own_rates)
        return next((own[title] for title in reversed(entry.titles) if title in own), None)

    @property
    def untimed_steps(self) -> int:
        """Steps that every contestant makes before the first timed one: all do the same work."""
        return max([_UNTIMED_STEPS_AT_FIRST, *(entry.profile.warmup for entry in self.entries)])

    @property
    def blocks(self) -> tuple[str, ...]:
        """The models; all contestants of a model are measured together."""
        return self.models

    @property
    def stages(self) -> int:
        """The number of stages, to show progress."""
        return self.all_turns + len(self.scales) * self.on_a_part.all_turns

    @property
    def scales(self) -> list[int]:
        """All numbers of ranks of the scale efficiency, including 1, to which it is relative."""
        return sorted({1, *self.scale}) if self.scale else []

    @property
    def on_a_part(self) -> TrainPlan:
        """The plan of a part of the ranks, for the scale efficiency."""
        contestants = tuple(name for name in self.contestants if name != _ON_ALL_RANKS)
        return replace(
            self, contestants=contestants, seeds=self.seeds[:1], epochs=None, scale=(), traces=None, views=False
        )

    def check_job(self, ranks: int, *, on_this_machine: bool) -> None:
        """Refuse, before anything is started, options that would fail later."""
        super().check_job(ranks, on_this_machine=on_this_machine)
        self.check_scale(ranks)

    def check_scale(self, ranks: int) -> None:
        """Refuse more ranks than the job has."""
        if max(self.scale, default=0) > ranks:
            raise PlanError(f"--scale goes up to the {ranks} ranks that there are, not to {max(self.scale)}")

    @property
    def peers(self) -> tuple[str, ...]:  # type: ignore[override]
        """The peers to open: PyTorch's default process group if DDP takes part."""
        return ("gloo",) if any(entry.needs_ddp for entry in self.entries) else ()

    @property
    def all_turns(self) -> int:
        """Turns of all contestants, for all models and seeds."""
        turns = len(self.turns) if self.epochs is None else self.epochs
        return len(self.models) * len(self.seeds) * turns * len(self.entries)

    @property
    def conditions(self) -> dict[str, str]:
        """The conditions that all results must share; models, seeds and `scale` may be extended."""
        others = {"models", "seeds", "scale", "resume", "strategies"}
        found = {item.name: str(getattr(self, item.name)) for item in fields(self) if item.name not in others}
        # The name of the module of a user's strategy contains a hash of its file.
        strategies = (f"{each} of {type(each).__module__}" for each in self.strategies)
        return {**found, "strategies": "; ".join(strategies)}

    @property
    def turns(self) -> list[int]:
        """Timed steps of each turn of a contestant, unless turns are epochs."""
        whole, rest = divmod(self.steps, self.turn)
        return [self.turn] * whole + [rest] * (rest > 0)


def parse_numbers(option: str, text: str) -> tuple[int, ...]:
    """Read whole numbers separated by commas."""
    try:
        return tuple(dict.fromkeys(int(part) for part in parse_list(text)))
    except ValueError:
        raise PlanError(f"{option} takes whole numbers separated by commas, not {text!r}") from None


def _with(strategy: Strategy, **arguments: object) -> Strategy:
    """Copy a strategy with other arguments."""
    return type(strategy)(**{**strategy.settings, **arguments})


def _usual_strategies() -> list[Strategy]:
    """Return the default strategies, and the strategy of the settings file."""
    return list(dict.fromkeys([*parse_strategies(STRATEGIES), default_strategy()]))


def _variants(strategy: Strategy, option: str, argument: str, values: Sequence[object]) -> list[Strategy]:
    """Copy a strategy with each of these values of an argument; without values, give the strategy itself."""
    if not values:
        return [strategy]
    if argument not in strategy.settings:
        raise PlanError(
            f"{option} does not go with {strategy}, which has no argument {argument}: leave {option} out, and write "
            f"{argument}=... where a strategy has it"
        )
    if strategy.settings[argument] != inspect.signature(type(strategy)).parameters[argument].default:
        raise PlanError(f"{option} does not go with {strategy}: leave {option} out, or {argument} in the strategy")
    return [_with(strategy, **{argument: value}) for value in values]
