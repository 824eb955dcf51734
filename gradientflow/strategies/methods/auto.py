"""The choice among strategies that lose no accuracy. The model makes it, from measurements of a few steps."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from gradientflow.annotations import State, StateDict
from gradientflow.arguments import checked_int, checked_list
from gradientflow.communicator import Communicator
from gradientflow.errors import ArgumentError
from gradientflow.model.computation import Computation
from gradientflow.model.costs import Costs
from gradientflow.model.fit import measure_link
from gradientflow.model.traffic import Traffic
from gradientflow.pools.base import native_threshold
from gradientflow.pools.gradient import GradientPool
from gradientflow.strategies.contract import Strategy, Synchronizer
from gradientflow.strategies.exchange.pooled import PoolStrategy, PoolSynchronizer
from gradientflow.strategies.layout import Layout
from gradientflow.strategies.predict.explanation import Explanation, Measured
from gradientflow.strategies.predict.ranking import Ranked
from gradientflow.strategies.update import Profile, Update
from gradientflow.wires import wires

from .csc import CSC
from .dense import Dense
from .diloco import DiLoCo
from .hpsgd import HPSGD
from .lags import LAGS
from .local_sgd import LocalSGD
from .power_sgd import PowerSGD
from .sparse_loco import SparseLoCo
from .ssd_sgd import SSDSGD

_THRESHOLDS = ("64KiB", "256KiB", "1MiB", "4MiB", "auto", "inf")
_LOSSY = (CSC, LAGS, PowerSGD, HPSGD, LocalSGD, DiLoCo, SparseLoCo, SSDSGD)
_SIZES = (1 << 9, 1 << 13, 1 << 16)  # elements of the allreduces that are measured
_SETTLING = 2  # iterations that are not representative, at the beginning and after a change
_PROMISING = 0.01  # least predicted saving, as a share of a step with dense

logger = logging.getLogger("gradientflow")

Times = npt.NDArray[np.float64]


class Auto(PoolStrategy):
    """Dense communication with the fastest fusion and rounding: measured, predicted, and verified.

    It begins as `Dense`. After `steps` iterations all ranks measure the link. From the link, and from the times at
    which gradients were ready, `gradientflow.model` predicts the step with every fusion threshold and each allowed
    wire. Training continues with the best combination, and returns to `Dense` if the next `steps` steps are longer. The
    first two steps after each change do not count. All ranks make the same choice.

    Parameters
    ----------
    allow : sequence of str, default ()
        The wires to which gradients of float32 may be rounded between nodes, as in
        `gradientflow.Communicator.allreduce`.
    steps : int, default 10
        Iterations to measure with `Dense`, and then with the best combination; 2 or more.
    algorithm : str, default "auto"
        As in `gradientflow.GradientPool`.

    Raises
    ------
    gradientflow.errors.ArgumentError
        If there is no such wire, or `steps` is below 2.
    """

    name = "auto"
    effect = "exact"
    pool = GradientPool
    is_identity_on_one_rank = True
    not_taken = dict.fromkeys(
        ("density", "ratio"), "it chooses among strategies that lose nothing; explain() tells what others would gain"
    ) | {"fusion_threshold": "it is what auto finds out", "wire": "allow=('float16',) lets auto choose that one"}

    options = ("algorithm",)
    fusion_threshold = "auto"
    wire = None

    def __init__(self, allow: Sequence[str] = (), *, steps: int = 10, **options: object) -> None:
        super().__init__(**options)
        self.allow = (allow,) if isinstance(allow, str) else tuple(checked_list("allow", allow, "wires"))
        narrow = [name for name in wires() if name != "float32"]
        if any(wire not in narrow for wire in self.allow):
            raise ArgumentError(f"allow is a sequence of the wires {', '.join(narrow)}, not {allow!r}")
        self.steps = checked_int("steps", steps, 2)

    @classmethod
    def typical(cls, steps: int) -> Auto:
        """Return the strategy that measures for at most a quarter of the steps, or 2."""
        return cls(steps=min(10, max(2, steps // 4)))

    @property
    def steps_to_choice(self) -> int:
        """Iterations after which the choice is made."""
        return 3 * _SETTLING + 2 * self.steps

    def profile(self) -> Profile:
        """Return the iterations until the choice; the profile says that nothing is lost."""
        return Profile(self.steps_to_choice, is_lossless=True)

    def bind(self, comm: Communicator, layout: Layout) -> AutoSynchronizer:
        """Make gradient pools, one for each dtype. Collective."""
        return AutoSynchronizer(comm, layout, self)

    def pool_options(self, tensors: int) -> dict[str, object]:
        """Return the fusion threshold of pools until the choice is made."""
        return {"fusion_threshold": self.fusion_threshold}

    def dense(self, threshold: str = "auto", wire: str | None = None) -> Dense:
        """Return a candidate: dense communication with this threshold and wire."""
        return Dense(fusion_threshold=threshold, wire=wire, algorithm=self.algorithm)

    def traffic(self, computation: Computation, costs: Costs) -> Traffic:
        """Return dense traffic, with the fusion threshold and wire that make the step shortest."""
        candidates = [each.traffic(computation, costs) for each in self.candidates(len(costs.cluster.nodes))]
        return min(candidates, key=lambda each: each.step(computation, costs).seconds)

    def explain_layout(self, comm: Communicator, layout: Layout, **times: float | None) -> AutoExplanation:
        """Predict a step with the best threshold and wire, and with the methods that lose accuracy. Collective."""
        measured = self.measured(comm, layout, **times)
        return AutoExplanation.of(
            measured, min(self.candidates(comm.nodes), key=lambda each: measured.step(each).seconds)
        )

    def candidates(self, nodes: int) -> list[Dense]:
        """Return the candidates on this number of nodes; the initial one comes first."""
        wires = [None, *(self.allow if nodes > 1 else ())]
        found = [self.dense(threshold, wire) for wire in wires for threshold in _THRESHOLDS]
        return sorted(found, key=lambda each: each != self.dense())


@dataclass(frozen=True)
class AutoExplanation(Explanation):
    """The choice and its reason, and the gain over it by methods that lose accuracy.

    Attributes
    ----------
    choice : str
        The chosen strategy, as text.
    why : str
        The reason, in a sentence; empty before the choice.
    lossy : tuple of (str, float)
        Methods that lose accuracy, as text, each with its predicted steps a second as a multiple of the choice's.
    """

    choice: str = "dense"
    why: str = ""
    lossy: tuple[tuple[str, float], ...] = ()

    @classmethod
    def of(cls, measured: Measured, choice: Dense, why: str = "") -> AutoExplanation:
        """Return an explanation that includes the methods that lose accuracy, all from one measured link."""
        found = measured.explain("auto", choice)
        those: list[Strategy] = [each() for each in _LOSSY] if found.ranks > 1 else []
        steps = [measured.step(each).seconds for each in those]
        gains = [found.step.seconds / seconds if seconds > 0 else 1.0 for seconds in steps]
        advice = measured.advice([*map(Ranked, those, steps)], Ranked("auto", found.step.seconds))
        lossy = tuple(zip(map(repr, those), gains, strict=True))
        return cls(**{**vars(found), "advice": advice}, choice=repr(choice), why=why, lossy=lossy)

    def _extra_lines(self) -> list[str]:
        gains = ", ".join(f"{words} {gain:.2f}" for words, gain in sorted(self.lossy, key=lambda each: -each[1]))
        chosen = f"  chosen:          {self.choice}"
        lossy = f"  with some loss:  {gains} times as many steps a second"
        return [f"{chosen}; {self.why}" if self.why else chosen, *([lossy] if self.ranks > 1 else [])]


class AutoSynchronizer(PoolSynchronizer):
    """Gradient pools that are regrouped once the choice is made.

    Attributes
    ----------
    choice : Dense or None
        The choice; None before it is made.
    why : str
        The reason for the choice, in a sentence.
    compute_seconds, backward_seconds : float or None
        Measured seconds of a step without waiting, and of the time from the first gradient to the last.
    """

    strategy: Auto
    pools: tuple[GradientPool, ...]

    def __init__(self, comm: Communicator, layout: Layout, strategy: Auto) -> None:
        super().__init__(comm, layout, strategy)
        self._reset_choice()

    def _reset_choice(self) -> None:
        self.choice: Dense | None = None
        self.why = ""
        self.compute_seconds: float | None = None
        self.backward_seconds: float | None = None
        self._dense = self._now = self.strategy.dense()
        self._best: Dense | None = None  # candidate that is verified
        self._iteration = 0
        self._begun: float | None = None  # time at which the iteration began
        self._before = self._now  # strategy with which the iteration began
        self._flushed = 0.0
        self._moments: Times = np.full(len(self.layout), np.nan)
        self._steps: dict[Dense, list[float]] = {}
        self._ready_after: list[Times] = []  # seconds from the first gradient to each, by iteration
        self._waited = 0.0  # seconds of waiting in the last iteration
        self._computing: list[float] = []  # seconds of steps without waiting

    # ---- the moments of an iteration -----------------------------------------------------------------------------

    def prepare(self) -> None:
        """Record the time of the last iteration."""
        super().prepare()
        if self.choice is None:
            now = time.perf_counter()
            if self._begun is not None and self._iteration > _SETTLING:
                self._steps.setdefault(self._before, []).append(now - self._begun)
                self._computing.append(now - self._begun - self._waited)
            self._begun, self._before = now, self._now
            self._moments[:] = np.nan

    def ready(self, index: int, stream: object = None, elsewhere: int | None = None) -> None:  # noqa: D102
        if self.choice is None:
            self._moments[index] = time.perf_counter()
        super().ready(index, stream, elsewhere)

    def flush(self, stream: object = None) -> None:  # noqa: D102
        self._flushed = time.perf_counter()
        super().flush(stream)

    def wait(self, stream: object = None) -> Update:  # noqa: D102
        update = super().wait(stream)
        if self.choice is None and self._best is None and self._begun is not None:
            moments = np.where(np.isnan(self._moments), self._flushed, self._moments)
            self._ready_after.append(moments - moments.min(initial=np.inf))
            self._waited = time.perf_counter() - self._flushed
        return update

    def after_step(self) -> None:
        """Measure, predict, verify and choose, each in its iteration."""
        super().after_step()
        if self.choice is not None:
            return
        self._iteration += 1
        steps = self.strategy.steps
        if self._iteration == _SETTLING + steps:
            self._predict()
        elif self._iteration == self.strategy.steps_to_choice - 1:
            self._decide()

    # ---- the choice ----------------------------------------------------------------------------------------------

    def _predict(self) -> None:
        """Continue with the candidate for which the model predicts the shortest step."""
        now = time.perf_counter()
        ready = np.median(np.array(self._ready_after[_SETTLING:]), axis=0)
        self.comm.allreduce(ready, "max")
        own = np.array([np.median(self._steps[self._dense]), np.median(self._computing)])
        step, self.compute_seconds = self.comm.allreduce(own, "mean").tolist()
        self.backward_seconds = min(float(ready.max(initial=0.0)), self.compute_seconds)
        ready = np.maximum.accumulate(ready) + self.compute_seconds - self.backward_seconds
        computation = Computation(
            self.layout.shapes,
            tuple(np.minimum(ready, self.compute_seconds).tolist()),
            self.compute_seconds,
            self.backward_seconds,
            self.layout.widest,
        )
        fit = measure_link(self.comm, _SIZES, self.layout.device, quick=True)
        model = Measured(computation, Costs(fit.measurement.cluster, fit.link))
        candidates = self.strategy.candidates(self.comm.nodes)
        predicted = [model.step(each) for each in candidates]
        times = np.array([(each.seconds, each.exposed_seconds) for each in predicted])
        self.comm.broadcast(times)
        seconds, exposed = times.T
        saved = float(seconds[0] - seconds.min())
        if saved <= _PROMISING * step:
            hidden = self._milliseconds(float(exposed[0]))
            self._choose(self._dense, f"no threshold promises more: {hidden} of communication would not hide")
        else:
            self._saved = saved
            self._best = candidates[int(seconds.argmin())]
            self._use(self._best)
        assert self._begun is not None
        self._begun += time.perf_counter() - now  # the prediction is not part of the step

    def _decide(self) -> None:
        """Choose the candidate unless its steps were longer."""
        assert self._best is not None
        took = np.array([self._steps[each][-self.strategy.steps :] for each in (self._dense, self._best)])
        self.comm.allreduce(took, "mean")
        self.comm.broadcast(took)
        dense, best = np.median(took, axis=1).tolist()
        promised = f"{self._milliseconds(self._saved)} less were predicted"
        steps = f"a step took {self._milliseconds(dense)} with dense and {self._milliseconds(best)} with {self._best}"
        self._choose(self._best if is_kept(dense, best) else self._dense, f"{steps}; {promised}")

    def _choose(self, choice: Dense, why: str) -> None:
        self.choice, self.why = choice, why
        self._use(choice)
        if self.comm.rank == 0:
            logger.info(
                "auto has chosen %s after %d iterations: %s; explain() tells what methods with loss would gain",
                choice,
                self._iteration,
                why,
            )

    def _use(self, dense: Dense) -> None:
        if dense != self._now:
            for pool in self.pools:
                pool.regroup(dense.fusion_threshold, dense.wire_of(pool.dtype))
        self._now = dense

    @staticmethod
    def _milliseconds(seconds: float) -> str:
        return f"{1e3 * seconds:.2f} ms"

    # ---- information ---------------------------------------------------------------------------------------------

    def explain(self, **times: float | None) -> AutoExplanation:
        """Return the choice, its reason, and the gain by methods that lose accuracy, from measured times. Collective.

        Parameters
        ----------
        **times
            Times as in `Synchronizer.explain`; by default the measured times.
        """
        known = {"compute_seconds": self.compute_seconds, "backward_seconds": self.backward_seconds}
        times = {**(known if self.choice is not None else {}), **times}
        why = self.why or f"which is measured until iteration {self.strategy.steps_to_choice}"
        return AutoExplanation.of(self.strategy.measured(self.comm, self.layout, **times), self._now, why)

    # ---- state ---------------------------------------------------------------------------------------------------

    def state_dict(self) -> StateDict:
        """Return the choice, its measurements, and the numbers of ranks and nodes for which it was made."""
        return {
            "choice": None if self.choice is None else [self.choice.fusion_threshold, self.choice.wire],
            "why": self.why,
            "ranks": self.comm.size,
            "nodes": self.comm.nodes,
            "compute_seconds": self.compute_seconds,
            "backward_seconds": self.backward_seconds,
        }

    def consolidated_state_dict(self) -> StateDict:
        """Return the same state as `state_dict`: another number of ranks chooses again."""
        return self.state_dict()

    def check_state_dict(self, state: State) -> None:
        """Raise unless the state has a choice."""
        if state and not set(self.state_dict()) <= set(state):
            raise ArgumentError("this is not the state of auto: it has no choice")
        if state and state["choice"] is not None:
            threshold, wire = state["choice"]
            native_threshold(threshold)
            self.strategy.dense(threshold, wire)

    def load_state_dict(self, state: State | None) -> None:
        """Take the choice of a state if it is allowed and made for as many ranks and nodes; otherwise choose again."""
        self._use(self._dense)
        self._reset_choice()
        if state and state["choice"] and (state["ranks"], state["nodes"]) == (self.comm.size, self.comm.nodes):
            choice = self.strategy.dense(*state["choice"])
            if choice.wire in (None, *self.strategy.allow):
                self._take(state, choice)

    def _take(self, state: State, choice: Dense) -> None:
        self.compute_seconds, self.backward_seconds = state["compute_seconds"], state["backward_seconds"]
        self.choice, self.why = choice, state["why"]
        self._use(choice)

    def summary(self, state: Mapping[str, object]) -> dict[str, str]:
        """Return the choice, and the numbers of ranks and nodes for which it was made."""
        return {"the choice": " ".join(str(state.get(name)) for name in ("choice", "ranks", "nodes"))}

    def take_over(self, other: Synchronizer) -> None:
        """Take the choice of another synchronizer for the same tensors on these ranks."""
        assert isinstance(other, AutoSynchronizer)
        super().take_over(other)
        if other.comm is self.comm and other.choice is not None and set(other.layout.names) == set(self.layout.names):
            self._take(other.state_dict(), other.choice)


def is_kept(dense: float, best: float) -> bool:
    """Return True if training continues with the predicted best: its median step is no longer than with dense."""
    return best <= dense


__all__ = ["Auto", "AutoExplanation", "AutoSynchronizer", "is_kept"]
