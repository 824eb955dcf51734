"""Model of the iteration times of workers with different speeds. A seed gives the same times on every rank."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from gradientflow.arguments import checked_float, checked_int, checked_list, checked_nonnegative
from gradientflow.description import Description, Parser
from gradientflow.errors import ArgumentError


class Stragglers(Description):
    """Durations of the iterations of each worker, in units of an iteration of the fastest worker.

    Parameters
    ----------
    ratios : sequence of float
        Duration for each worker, before `jitter`, more than 0. More workers reuse the ratios in turn.
    jitter : float, default 0
        Variation between iterations: a duration is its ratio times e to the power of a normal random number with this
        standard deviation.
    slows : int, optional
        Worker that slows down in mid-run.
    at : int, default 100
        First slow iteration of that worker.
    by : float, default 3
        Factor by which the iterations of that worker take longer from then on.
    seed : int, default 0
        Seed of the random numbers.

    Raises
    ------
    gradientflow.errors.ArgumentError
        If a number is out of range.
    """

    name = "stragglers"

    def __init__(
        self,
        ratios: Sequence[float],
        *,
        jitter: float = 0.0,
        slows: int | None = None,
        at: int = 100,
        by: float = 3.0,
        seed: int = 0,
    ) -> None:
        self.ratios = tuple(_positive("a ratio", ratio) for ratio in checked_list("ratios", ratios, "numbers"))
        if not self.ratios:
            raise ArgumentError("ratios are one or more numbers, not none")
        self.jitter = checked_nonnegative("jitter", jitter)
        self.slows = None if slows is None else checked_int("slows", slows)
        self.at = checked_int("at", at)
        self.by = _positive("by", by)
        self.seed = checked_int("seed", seed)

    def durations(self, worker: int, iterations: int, *, run: int = 0) -> npt.NDArray[np.float64]:
        """Return the durations of the first iterations of a worker, in units of an iteration of the fastest worker.

        Parameters
        ----------
        worker, iterations : int
            The worker, and the number of iterations.
        run : int, default 0
            Number of the run: each run draws its own random numbers.
        """
        rng = np.random.default_rng((self.seed, run, worker))
        found = self.ratios[worker % len(self.ratios)] * np.exp(self.jitter * rng.standard_normal(iterations))
        if worker == self.slows:
            found[self.at :] *= self.by
        return np.asarray(found, dtype=np.float64)


def _positive(name: str, value: object) -> float:
    found = checked_float(name, value)
    if not 0 < found < np.inf:
        raise ArgumentError(f"{name} is more than 0, not {value}")
    return found


_PARSER: Parser[Stragglers] = Parser(Stragglers, "straggler model", (Stragglers,))


def as_stragglers(value: object) -> Stragglers:
    """Return a straggler model given as an object or in words.

    Parameters
    ----------
    value : Stragglers or str
        In words: ratios separated by commas, ``"1,1.3,1.7,2.2"``, or ``"stragglers((1, 1.3), jitter=0.1, slows=0)"``.

    Raises
    ------
    gradientflow.errors.ArgumentError
        If the words name no straggler model.
    gradientflow.errors.ArgumentTypeError
        If `value` is of any other type.
    """
    if isinstance(value, str):
        try:
            return Stragglers([float(part) for part in value.split(",")])
        except ValueError:
            pass
    return _PARSER.given(value)


__all__ = ["Stragglers", "as_stragglers"]
