"""The step time of strategies whose ranks exchange something every few steps, or in the background."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import Any

from .explanation import Explanation


@dataclass(frozen=True)
class ExchangeExplanation(Explanation):
    """Traffic and step time of a strategy whose steps do not wait for the mean of every gradient.

    Communication, bytes and bookkeeping are means over steps. With `parts` exchanges in `period` steps, each of which
    takes `exchange_seconds` and can hide behind the computation of `hidden_steps` steps::

        step = computation + bookkeeping + parts / period * max(0, exchange_seconds - hidden_steps * computation)

    The model does not include what computation loses to an exchange in the background, cores and memory bandwidth.

    Attributes
    ----------
    exchange_seconds : float
        Seconds of one exchange, as measured.
    period : float
        Steps in which everything is exchanged once; infinite if nothing is exchanged before the end.
    parts : int
        Exchanges in `period` steps.
    hidden_steps : float
        Steps of computation that hide an exchange; infinite where no step waits for one.
    """

    exchange_seconds: float = 0.0
    period: float = 1.0
    parts: int = 1
    hidden_steps: float = 0.0

    @classmethod
    def of(
        cls,
        found: Explanation,
        *,
        exchange_seconds: float,
        period: float,
        parts: int = 1,
        hidden_steps: float = 0.0,
        bookkeeping_seconds: float = 0.0,
        sent: float = 1.0,
        bytes_sent: float | None = None,
    ) -> ExchangeExplanation:
        """Return the explanation of a strategy, from that of sending everything in every step.

        Parameters
        ----------
        found : Explanation
            That of sending everything in every step.
        exchange_seconds, period, parts, hidden_steps
            As the attributes.
        bookkeeping_seconds : float
            In a step, on average.
        sent : float
            The share of the weights that is sent in `period` steps.
        bytes_sent : float, optional
            Bytes that a rank sends to other nodes in `period` steps; by default those of `found`.
        """
        nbytes = found.bytes_sent if bytes_sent is None else bytes_sent
        known: dict[str, Any] = {each.name: getattr(found, each.name) for each in fields(found)}
        return cls(
            **known
            | {
                "elements_sent": math.ceil(found.parameters * sent / period),
                "bytes_sent": nbytes / period,
                "communication_seconds": exchange_seconds * parts / period,
                "bookkeeping_seconds": bookkeeping_seconds,
            },
            exchange_seconds=exchange_seconds,
            period=period,
            parts=parts,
            hidden_steps=hidden_steps,
        )

    @property
    def exposed_seconds(self) -> float:
        """Seconds of an exchange for which a step waits."""
        hidden = math.inf if math.isinf(self.hidden_steps) else self.hidden_steps * self.compute_seconds
        return max(0.0, self.exchange_seconds - hidden)

    @property
    def step_seconds(self) -> float:
        """The mean seconds of a step, as predicted."""
        return self.compute_seconds + self.bookkeeping_seconds + self.exposed_seconds * self.parts / self.period

    def _sent(self) -> str:
        return f"{self.elements_sent:,} values on average"

    def _extra_lines(self) -> list[str]:
        if math.isinf(self.period):
            return ["  an exchange:     none until finish()"]
        what = f"{self.exchange_seconds * 1e3:,.2f} ms, {self._frequency()}"
        waiting = (
            "nobody waits for it" if self.exposed_seconds == 0 else f"{self.exposed_seconds * 1e3:,.2f} ms exposed"
        )
        return [f"  an exchange:     {what}; {waiting}"]

    def _frequency(self) -> str:
        steps = self.period / self.parts
        return "in every step" if steps == 1 else f"every {steps:g} steps"

    def _verdict(self) -> str:
        if self.ranks > 1 and self.hidden_steps > 0 and not self.compute_seconds:
            return "depends on what it hides behind: tell compute_seconds"
        return super()._verdict()


__all__ = ["ExchangeExplanation"]
