"""The choice among strategies without loss of accuracy, from measurements of a few steps."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import numpy.typing as npt

from gradientflow._location import load_core
from gradientflow.arguments import checked_int, checked_list
from gradientflow.communicator import Communicator
from gradientflow.errors import ArgumentError
from gradientflow.memory import itemsize
from gradientflow.pools.base import native_threshold
from gradientflow.pools.gradient import GradientPool
from gradientflow.strategies.contract import Strategy, Synchronizer
from gradientflow.strategies.exchange.places import aligned_offsets
from gradientflow.strategies.exchange.pooled import PoolStrategy, PoolSynchronizer
from gradientflow.strategies.layout import Layout
from gradientflow.strategies.predict.explanation import Explanation
from gradientflow.strategies.predict.link import Link
from gradientflow.strategies.update import Profile, Update

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
_LARGE = 1 << 18  # elements of the allreduce that is measured
_SETTLING = 2  # iterations that are not representative
_PROMISING = 0.01  # of a step with dense: the least predicted saving
_WORTH_IT = 0.99  # of a step with dense: the longest step, as tried out
_OFTEN = 0.7  # of the turns, which have to be faster: so that other load does not decide

logger = logging.getLogger("gradientflow")

Times = npt.NDArray[np.float64]


class Auto(PoolStrategy):
    """Dense communication, fused and rounded as is fastest here: measured, predicted, and tried out.

    It begins as `Dense`. After `steps` iterations all ranks measure the link. From this, and from the times at which
    gradients were ready, they predict communication for every fusion threshold and each allowed wire. The best
    candidate takes turns with `Dense` for twice as many iterations, and is chosen if its steps were shorter. All ranks
    choose the same.

    Parameters
    ----------
    allow : sequence of {"float16", "bfloat16"}, default ()
        What gradients of float32 may be rounded to between nodes.
    steps : int, default 10
        Iterations that are measured, 2 or more.
    algorithm : str, default "auto"
        As in `gradientflow.GradientPool`.

    Raises
    ------
    gradientflow.errors.ArgumentError
        If a wire is none of these, or `steps` is below 2.
    """

    name = "auto"
    pool = GradientPool
    is_identity_on_one_rank = True
    not_taken = dict.fromkeys(
        ("density", "ratio"), "it chooses among strategies that lose nothing; explain() tells what others would gain"
    ) | {"fusion_threshold": "it is what auto finds out", "wire": "allow=('float16',) lets auto choose that one"}

    options = ("algorithm",)
    fusion_threshold = "auto"
    wire = None

    def __init__(self, allow: Sequence[str] = (), *, steps: int = 10, **options: Any) -> None:
        super().__init__(**options)
        self.allow = (allow,) if isinstance(allow, str) else tuple(checked_list("allow", allow, "wires"))
        for wire in self.allow:
            if wire not in ("float16", "bfloat16"):
                message = f"allow is a sequence of the wires float16 and bfloat16, not {allow!r}"
                raise ArgumentError(message)
        self.steps = checked_int("steps", steps, 2)

    @classmethod
    def typical(cls, steps: int) -> Auto:
        """Return one that measures for at most a quarter of the steps, or 2."""
        return cls(steps=min(10, max(2, steps // 4)))

    @property
    def steps_to_choice(self) -> int:
        """Iterations after which the choice is made."""
        return 2 * _SETTLING + 3 * self.steps

    def profile(self) -> Profile:
        """Return that nothing is lost, and when the choice is made."""
        return Profile(self.steps_to_choice, is_lossless=True)

    def bind(self, comm: Communicator, layout: Layout) -> AutoSynchronizer:
        """Make gradient pools, one for each dtype. Collective."""
        return AutoSynchronizer(comm, layout, self)

    def pool_options(self, tensors: int) -> dict[str, Any]:
        """Return how pools fuse tensors until the choice is made."""
        return {"fusion_threshold": self.fusion_threshold}

    def dense(self, threshold: str = "auto", wire: str | None = None) -> Dense:
        """Return a candidate."""
        return Dense(fusion_threshold=threshold, wire=wire, algorithm=self.algorithm)

    def explain_layout(self, comm: Communicator, layout: Layout, **times: float | None) -> AutoExplanation:
        """Predict a step with the best of the allowed wires, and with the methods with loss. Collective."""
        wires = [None, *(self.allow if comm.nodes > 1 else ())]
        found = [self.dense(wire=wire).explain_layout(comm, layout, **times) for wire in wires]
        best = min(range(len(found)), key=lambda i: found[i].step_seconds)
        return AutoExplanation.of(found[best], repr(self.dense(wire=wires[best])), "", comm, layout, times)

    def explain(self, comm: Communicator, parameters: int, **options: Any) -> AutoExplanation:
        """Do the same for one tensor of so many parameters. Collective.

        Parameters
        ----------
        comm, parameters, **options
            As in `Strategy.explain`.
        """
        dtype, device = options.pop("dtype", "float32"), options.pop("device", "cpu")
        layout = Layout(("parameters",), ((checked_int("parameters", parameters),),), (dtype,), device)
        return self.explain_layout(comm, layout, **options)


@dataclass(frozen=True)
class AutoExplanation(Explanation):
    """What was chosen and why, and what the methods that lose accuracy would gain over it.

    Attributes
    ----------
    choice : str
        The strategy that was chosen, as text.
    why : str
        The reason, in a sentence; empty before the choice.
    lossy : tuple of (str, float)
        Strategies with loss, as text, each with its predicted steps a second as a multiple of those of the choice.
    """

    choice: str = "dense"
    why: str = ""
    lossy: tuple[tuple[str, float], ...] = ()

    @classmethod
    def of(
        cls,
        found: Explanation,
        choice: str,
        why: str,
        comm: Communicator,
        layout: Layout,
        times: Mapping[str, float | None],
    ) -> AutoExplanation:
        """Return an explanation that includes the strategies with loss. Collective."""
        kinds: tuple[type[Strategy], ...] = _LOSSY if comm.size > 1 else ()
        those = [each() for each in kinds]
        asked = [each.explain_layout(comm, layout, **times) for each in those]
        gains = [found.step_seconds / each.step_seconds if each.step_seconds > 0 else 1.0 for each in asked]
        remark = next(filter(None, (each.remark for each in (found, *asked))), "")
        known = {each.name: getattr(found, each.name) for each in fields(Explanation)}
        known |= {"strategy": "auto", "remark": remark}
        return cls(**known, choice=choice, why=why, lossy=tuple(zip(map(repr, those), gains, strict=True)))

    def _extra_lines(self) -> list[str]:
        gains = ", ".join(f"{words} {gain:.2f}" for words, gain in sorted(self.lossy, key=lambda each: -each[1]))
        chosen = f"  chosen:          {self.choice}"
        lossy = f"  with some loss:  {gains} times as many steps a second, each by its own model"
        return [f"{chosen}; {self.why}" if self.why else chosen, *([lossy] if self.ranks > 1 else [])]


class AutoSynchronizer(PoolSynchronizer):
    """Gradient pools that are regrouped once the choice is made.

    Attributes
    ----------
    choice : Dense or None
        The choice; None before it is made.
    why : str
        The reason for it, in a sentence.
    compute_seconds, backward_seconds : float or None
        Measured seconds of a step without waiting, and from the first gradient to the last.
    """

    strategy: Auto

    def __init__(self, comm: Communicator, layout: Layout, strategy: Auto) -> None:
        super().__init__(comm, layout, strategy)
        self._measure_anew()

    def _measure_anew(self) -> None:
        self.choice: Dense | None = None
        self.why = ""
        self.compute_seconds: float | None = None
        self.backward_seconds: float | None = None
        self._dense = self._now = self.strategy.dense()
        self._best: Dense | None = None  # the candidate that is tried out
        self._iteration = 0
        self._begun: float | None = None  # when the iteration began
        self._before = self._now  # what the iteration began with
        self._flushed = 0.0
        self._moments: Times = np.full(len(self.layout), np.nan)
        self._steps: dict[Dense, list[float]] = {}
        self._ready_after: list[Times] = []  # the first gradient, by iteration
        self._waited = 0.0  # seconds in the last iteration
        self._computing: list[float] = []  # seconds of steps without waiting

    # ---- the moments of an iteration -----------------------------------------------------------------------------

    def prepare(self) -> None:
        """Record how long the last iteration took."""
        super().prepare()
        if self.choice is None:
            now = time.perf_counter()
            if self._begun is not None and self._iteration > _SETTLING:
                self._steps.setdefault(self._before, []).append(now - self._begun)
                self._computing.append(now - self._begun - self._waited)
            self._begun, self._before = now, self._now
            self._moments[:] = np.nan

    def ready(self, index: int, stream: Any = None, elsewhere: int | None = None) -> None:  # noqa: D102
        if self.choice is None:
            self._moments[index] = time.perf_counter()
        super().ready(index, stream, elsewhere)

    def flush(self, stream: Any = None) -> None:  # noqa: D102
        self._flushed = time.perf_counter()
        super().flush(stream)

    def wait(self, stream: Any = None) -> Update:  # noqa: D102
        update = super().wait(stream)
        if self.choice is None and self._best is None and self._begun is not None:
            moments = np.where(np.isnan(self._moments), self._flushed, self._moments)
            self._ready_after.append(moments - moments.min(initial=np.inf))
            self._waited = time.perf_counter() - self._flushed
        return update

    def after_step(self) -> None:
        """Measure, predict, try out and choose when it is time."""
        super().after_step()
        if self.choice is not None:
            return
        self._iteration += 1
        steps = self.strategy.steps
        if self._iteration == _SETTLING + steps:
            self._predict()
        elif self._best is not None:
            if self._iteration < self.strategy.steps_to_choice - 1:
                self._use(self._best if self._now == self._dense else self._dense)
            else:
                self._decide()

    # ---- the choice ----------------------------------------------------------------------------------------------

    def _predict(self) -> None:
        """Choose the candidate to try out, from the link and the times at which gradients are ready."""
        ready = np.median(np.array(self._ready_after[_SETTLING:]), axis=0)
        self.comm.allreduce(ready, "max")
        own = np.array([np.median(self._steps[self._dense]), np.median(self._computing)])
        step, self.compute_seconds = self.comm.allreduce(own, "mean").tolist()
        self.backward_seconds = float(ready.max(initial=0.0))
        wires = [None, *(self.strategy.allow if self.comm.nodes > 1 and "float32" in self.layout.dtypes else ())]
        links = {wire: self._links(wire) for wire in wires}
        those = [self.strategy.dense(threshold, wire) for wire in wires for threshold in _THRESHOLDS]
        usual = int(self.pools[0]._native.fusion_threshold)  # that of "auto"
        exposed = np.array([self._exposed(ready, each, usual, links[each.wire]) for each in those])
        self.comm.broadcast(exposed)
        best = those[int(exposed.argmin())]
        saved = float(exposed[those.index(self._dense)] - exposed.min())
        if saved <= _PROMISING * step:
            hidden = self._milliseconds(float(exposed[those.index(self._dense)]))
            self._choose(self._dense, f"no threshold promises more: {hidden} of communication would not hide")
        else:
            self._saved = saved
            self._best = best
            self._use(best)

    def _exposed(self, ready: Times, dense: Dense, usual: int, links: Mapping[str, Link]) -> float:
        threshold = native_threshold(dense.fusion_threshold)
        return exposed_seconds(self.layout, ready, usual if threshold is None else threshold, links)

    def _links(self, wire: str | None) -> dict[str, Link]:
        """Measure an allreduce of each dtype, at most as large as its gradients. Collective."""
        return {
            dtype: Link.of_allreduce(
                self.comm,
                dtype,
                self.strategy.dense(wire=wire).wire_of(dtype),
                self.strategy.algorithm,
                self.layout.device,
                large=_LARGE,
            )
            for dtype, _ in self.layout.groups
        }

    def _decide(self) -> None:
        """Choose the candidate if its steps were shorter."""
        assert self._best is not None
        took = np.array([self._steps[each][-self.strategy.steps :] for each in (self._dense, self._best)])
        self.comm.allreduce(took, "mean")
        self.comm.broadcast(took)
        dense, best = np.median(took, axis=1).tolist()
        promised = f"{self._milliseconds(self._saved)} less were predicted"
        steps = f"a step took {self._milliseconds(dense)} with dense and {self._milliseconds(best)} with {self._best}"
        self._choose(self._best if is_faster(*took) else self._dense, f"{steps}; {promised}")

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

    # ---- what is to be known -------------------------------------------------------------------------------------

    def explain(self, **times: float | None) -> AutoExplanation:
        """Return the choice and its reason, and what methods with loss would gain, with measured times. Collective.

        Parameters
        ----------
        **times
            As in `Synchronizer.explain`; by default as measured.
        """
        known = {"compute_seconds": self.compute_seconds, "backward_seconds": self.backward_seconds}
        times = {**(known if self.choice is not None else {}), **times}
        why = self.why or f"which is measured until iteration {self.strategy.steps_to_choice}"
        found = self._now.explain_layout(self.comm, self.layout, **times)
        return AutoExplanation.of(found, repr(self._now), why, self.comm, self.layout, times)

    # ---- state ---------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Return the choice, its measurements, and the numbers of ranks and nodes for which it was made."""
        return {
            "choice": None if self.choice is None else [self.choice.fusion_threshold, self.choice.wire],
            "why": self.why,
            "ranks": self.comm.size,
            "nodes": self.comm.nodes,
            "compute_seconds": self.compute_seconds,
            "backward_seconds": self.backward_seconds,
        }

    def consolidated_state_dict(self) -> dict[str, Any]:
        """Return the same: other ranks choose anew."""
        return self.state_dict()

    def check_state_dict(self, state: Mapping[str, Any]) -> None:
        """Raise unless it has a choice."""
        if state and not set(self.state_dict()) <= set(state):
            message = "this is not the state of auto: it has no choice"
            raise ArgumentError(message)
        if state and state["choice"] is not None:
            threshold, wire = state["choice"]
            native_threshold(threshold)
            self.strategy.dense(threshold, wire)

    def load_state_dict(self, state: Mapping[str, Any] | None) -> None:
        """Take the choice of a state if it is allowed and for as many ranks and nodes; otherwise choose anew."""
        self._use(self._dense)
        self._measure_anew()
        if state and state["choice"] and (state["ranks"], state["nodes"]) == (self.comm.size, self.comm.nodes):
            choice = self.strategy.dense(*state["choice"])
            if choice.wire in (None, *self.strategy.allow):
                self._take(state, choice)

    def _take(self, state: Mapping[str, Any], choice: Dense) -> None:
        self.compute_seconds, self.backward_seconds = state["compute_seconds"], state["backward_seconds"]
        self.choice, self.why = choice, state["why"]
        self._use(choice)

    def summary(self, state: Mapping[str, Any]) -> dict[str, str]:
        """Return the choice, and the numbers of ranks and nodes for which it was made."""
        return {"the choice": " ".join(str(state.get(name)) for name in ("choice", "ranks", "nodes"))}

    def take_over(self, other: Synchronizer) -> None:
        """Take the choice of another synchronizer for the same tensors."""
        assert isinstance(other, AutoSynchronizer)
        super().take_over(other)
        if other.choice is not None and set(other.layout.names) == set(self.layout.names):
            self._take(other.state_dict(), other.choice)


def is_faster(dense: Times, best: Times) -> bool:
    """Tell whether steps that took turns with those of dense were shorter: in the median, and in most turns.

    Parameters
    ----------
    dense, best : numpy.ndarray
        Seconds of the steps.
    """
    return bool(np.median(best) <= _WORTH_IT * np.median(dense) and np.mean(best < dense) >= _OFTEN)


def exposed_seconds(layout: Layout, ready: Times, threshold: int, links: Mapping[str, Link]) -> float:
    """Return the predicted seconds from the last gradient to the last mean.

    A range is sent once all of its tensors and all ranges before it are ready, and ranges due earlier have been sent.

    Parameters
    ----------
    layout : Layout
        The tensors.
    ready : numpy.ndarray
        When each gradient is ready, in seconds.
    threshold : int
        Bytes of a range, at least.
    links : mapping of str to Link
        The link of an allreduce, by dtype.
    """
    due: list[tuple[float, float]] = []
    for dtype, indices in layout.groups:
        width = itemsize(dtype)
        sizes = np.diff(aligned_offsets([layout.counts[index] * width for index in indices])).tolist()
        moment = 0.0
        for begin, end in load_core().fuse(sizes, threshold):
            moment = max(moment, *(float(ready[index]) for index in indices[begin:end]))
            due.append((moment, links[dtype].seconds(sum(sizes[begin:end]) / width)))
    sent = 0.0
    for moment, seconds in sorted(due):
        sent = max(sent, moment) + seconds
    return max(0.0, sent - float(ready.max(initial=0.0)))


__all__ = ["Auto", "AutoExplanation", "AutoSynchronizer", "exposed_seconds", "is_faster"]
