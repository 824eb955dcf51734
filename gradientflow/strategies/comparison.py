"""Strategies compared by their predicted steps on a job's ranks, with advice which to take."""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np

from gradientflow.arguments import checked_nonnegative
from gradientflow.communicator import Communicator
from gradientflow.errors import ArgumentError
from gradientflow.model.costs import Costs, Link
from gradientflow.model.prediction import Prediction, predict

from .contract import Strategy
from .layout import Layout
from .methods import Dense
from .parsing import parse_strategies
from .predict.explanation import Measured
from .predict.ranking import Ranked, advice, is_lossless

CANDIDATES = "all; dense(wire='float16'); csc(density=0.01)"


@dataclass(frozen=True)
class Comparison:
    """Predicted steps of strategies on a job's ranks. Its `str` is a table that ends with the advice.

    Attributes
    ----------
    link : gradientflow.model.Link
        Measured costs of messages and of passes over memory.
    strategies : tuple of Strategy
        The strategies.
    predictions : tuple of gradientflow.model.Prediction
        The predicted step of each.
    advice : tuple of str
        One or two sentences that name the strategy to take in place of the present one, or say that it is the best.
    remark : str
        A note if other processes kept the processors busy, so that the times are too long; otherwise empty.
    """

    link: Link
    strategies: tuple[Strategy, ...]
    predictions: tuple[Prediction, ...]
    advice: tuple[str, ...]
    remark: str = ""

    def __str__(self) -> str:
        """Return the table, the remark and the advice."""
        from gradientflow.tables import text_of

        from .predict.step_table import step_table

        table = text_of(step_table(self.predictions, self.strategies))
        return "\n\n".join(filter(None, (table, self.remark, "\n".join(self.advice))))


def compare(
    comm: Communicator,
    layout: Layout,
    present: Strategy,
    words: str = CANDIDATES,
    *,
    lossless: bool = False,
    momentum: bool = False,
    compute_seconds: float,
    backward_seconds: float | None = None,
) -> Comparison:
    """Measure the link; predict a step of each strategy for these tensors. Collective; changes nothing.

    Parameters
    ----------
    comm : Communicator
        Ranks that take part.
    layout : Layout
        The tensors.
    present : Strategy
        The strategy in use.
    words : str
        The strategies, as in `parse_strategies`.
    lossless : bool
        Whether to compare only strategies whose steps have the result of dense.
    momentum : bool
        Whether the optimizer has a momentum, which rules some strategies out.
    compute_seconds : float
        Seconds of a step without communication.
    backward_seconds : float, optional
        The part of `compute_seconds` that can hide communication; by default two thirds of it.

    Raises
    ------
    gradientflow.errors.ArgumentError
        If a number is not positive, or a strategy is unknown or has no `traffic` of its own.
    """
    if checked_nonnegative("compute_seconds", compute_seconds) == 0:
        raise ArgumentError("compute_seconds is the time of a step without communication, above 0")
    chosen = [
        each
        for each in parse_strategies(words)
        if (is_lossless(each) or not lossless) and (each.profile().takes_momentum or not momentum)
    ] or [Dense()]
    for each in (*chosen, present):
        each.check_traffic()
    measured = Measured.on(comm, layout, layout.device, compute_seconds, backward_seconds)
    costs = Costs(measured.costs.cluster, _of_rank_0(comm, measured.costs.link))
    predictions = [predict(each, measured.computation, costs) for each in chosen]
    candidates = [Ranked(strategy, each.step.seconds) for strategy, each in zip(chosen, predictions, strict=True)]
    seconds = predict(present, measured.computation, costs).step.seconds
    sentences = advice(candidates, Ranked(present, seconds)) if comm.size > 1 else []
    return Comparison(costs.link, tuple(chosen), tuple(predictions), tuple(sentences), measured.remark)


def _of_rank_0(comm: Communicator, link: Link) -> Link:
    """Return rank 0's link, since the last bits of fits may differ between ranks. Collective."""
    names = [each.name for each in fields(Link)]
    values = np.array([getattr(link, name) for name in names], np.float64)
    comm.broadcast(values)
    return Link(**dict(zip(names, values.tolist(), strict=True)))


__all__ = ["CANDIDATES", "Comparison", "compare"]
