"""The predicted time of a strategy's step on the ranks of a job, computed by the model from the measured link."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from gradientflow.arguments import checked_instance, checked_nonnegative
from gradientflow.communicator import Communicator
from gradientflow.model.computation import Computation
from gradientflow.model.costs import Costs, Link
from gradientflow.model.fit import SIZES, measure_link
from gradientflow.model.pooled import counts_of, dense_traffic
from gradientflow.model.prediction import SendsTraffic
from gradientflow.model.traffic import Step
from gradientflow.strategies.layout import Layout
from gradientflow.strategies.predict.ranking import WORTH_IT, Named, Ranked, advice, better


@dataclass(frozen=True)
class Explanation:
    """A step of a strategy as the model predicts it, beside a step with dense float32. Its `str` explains it in words.

    Attributes
    ----------
    strategy : str
        Name of the strategy.
    ranks, nodes, parameters : int
        Sizes of the job and the model.
    link : gradientflow.model.Link
        Measured costs of messages and of passes over memory.
    step, dense : gradientflow.model.Step
        The step with the strategy, and with dense float32.
    compute_seconds : float
        Seconds of a step without communication, as given, or 0.
    remark : str
        A note if other processes kept the processors busy, so that the times are too long; otherwise empty.
    advice : tuple of str
        Sentences that recommend a strategy; none without the seconds of a step.
    """

    strategy: str
    ranks: int
    nodes: int
    parameters: int
    link: Link
    step: Step
    dense: Step
    compute_seconds: float = 0.0
    remark: str = ""
    advice: tuple[str, ...] = field(default=(), kw_only=True)

    @property
    def gain(self) -> float:
        """Predicted steps a second, as a multiple of the steps with dense float32."""
        return self.dense.seconds / self.step.seconds if self.step.seconds > 0 else 1.0

    @property
    def is_worth_it(self) -> bool:
        """True if the gain is above the variation of a step."""
        return self.gain > WORTH_IT

    def __str__(self) -> str:
        """Return the explanation in a few lines."""
        step, dense = self.step, self.dense
        lines = [
            f"{self.strategy} on {_number(self.ranks, 'rank')} on {_number(self.nodes, 'node')}, "
            f"{self.parameters:,} parameters:",
            f"  link:            {self.link if self.nodes > 1 else 'the memory of one node'}",
            f"  sent in a step:  {step.bytes_sent / 1e6:,.2f} MB a rank to other nodes; dense float32 "
            f"{dense.bytes_sent / 1e6:,.2f} MB",
            f"  exchanges take:  {_milliseconds(step.communication_seconds)}, {_milliseconds(step.exposed_seconds)} of "
            f"it waiting; dense float32 {_milliseconds(dense.communication_seconds)}, "
            f"{_milliseconds(dense.exposed_seconds)} of it waiting",
            f"  work of a rank:  {_milliseconds(step.own_seconds)} to choose, add and apply what is sent",
            *self._extra_lines(),
        ]
        if self.compute_seconds:
            lines.append(
                f"  a step takes:    {_milliseconds(step.seconds)}; dense float32 {_milliseconds(dense.seconds)}, "
                f"without communication {_milliseconds(self.compute_seconds)}"
            )
        lines.append(f"  gain to expect:  {self._verdict()}")
        remark = [f"  remark:          {self.remark}"] if self.remark else []
        return "\n".join([*lines, *remark, *self.advice])

    def _extra_lines(self) -> list[str]:
        """Return the lines that only this class of explanation has."""
        return []

    def _verdict(self) -> str:
        if self.ranks == 1:
            return "none: one rank has nobody to send to"
        if not self.compute_seconds and self.step.exposed_seconds == 0:
            return "depends on what it hides behind: tell compute_seconds"
        if self.is_worth_it:
            of_what = "steps a second" if self.compute_seconds else "averaging alone; less for a step with computation"
            return f"{self.gain:.2f} times ({of_what})"
        if self.compute_seconds and self.dense.exposed_seconds <= (WORTH_IT - 1) * self.dense.seconds:
            return "none: dense communication hides behind backpropagation already"
        if self.step.own_seconds > self.dense.exposed_seconds - self.step.exposed_seconds:
            return "none: the rank's own work takes longer than the communication that it saves"
        return "none to speak of"


@dataclass(frozen=True)
class Measured:
    """Measured costs of a job's ranks and a step without communication, from which every strategy is explained.

    Attributes
    ----------
    computation : Computation
        The step.
    costs : Costs
        The costs, as measured.
    remark : str
        As in `Explanation`.
    """

    computation: Computation
    costs: Costs
    remark: str = ""

    @classmethod
    def on(
        cls,
        comm: Communicator,
        layout: Layout,
        device: str | int = "cpu",
        compute_seconds: float | None = None,
        backward_seconds: float | None = None,
    ) -> Measured:
        """Measure the link between the ranks, for memory on this device. Collective."""
        checked_instance("comm", comm, Communicator)
        for what, number in (("compute_seconds", compute_seconds), ("backward_seconds", backward_seconds)):
            if number is not None:
                checked_nonnegative(what, number)
        seconds = compute_seconds if compute_seconds is not None else backward_seconds or 0.0
        computation = Computation.of(layout.shapes, layout.counts, seconds, backward_seconds)
        fit = measure_link(comm, SIZES, device)
        return cls(
            replace(computation, dtype=layout.widest),
            Costs(fit.measurement.cluster, fit.link),
            fit.measurement.remark,
        )

    def step(self, strategy: SendsTraffic) -> Step:
        """Predict a step with a strategy."""
        return strategy.traffic(self.computation, self.costs).step(self.computation, self.costs)

    def explain(self, name: str, strategy: SendsTraffic) -> Explanation:
        """Predict a step with a strategy, and with dense float32."""
        traffic = dense_traffic(
            replace(self.computation, dtype="float32"), len(self.costs.cluster.nodes), "auto", None, "auto"
        )
        step, dense = self.step(strategy), traffic.step(self.computation, self.costs)
        used, plain = Ranked(strategy, step.seconds), Ranked(Named("dense"), dense.seconds)
        return Explanation(
            name,
            self.costs.cluster.ranks,
            len(self.costs.cluster.nodes),
            sum(counts_of(self.computation)),
            self.costs.link,
            step,
            dense,
            self.computation.seconds,
            self.remark,
            advice=self.advice([used], plain) if better([used], plain) else self.advice([plain], used),
        )

    def advice(self, candidates: Sequence[Ranked], present: Ranked) -> tuple[str, ...]:
        """Return what `ranking.advice` says; nothing without the seconds of a step, or on one rank."""
        known = self.computation.seconds > 0 and self.costs.cluster.ranks > 1
        return tuple(advice(candidates, present)) if known else ()


def _number(count: int, thing: str) -> str:
    return f"{count} {thing}" if count == 1 else f"{count} {thing}s"


def _milliseconds(seconds: float) -> str:
    return f"{seconds * 1e3:,.2f} ms"


__all__ = ["Explanation", "Measured"]
