"""The status that travels with gradients: tensors with a gradient, ranks with batches, ranks that gave up."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from gradientflow.communicator import Communicator
from gradientflow.errors import AbandonedError, MismatchError

from .rates import Rates

Numbers = npt.NDArray[np.float64]

# Times travel in hundredths of a second, at most ten minutes, so that float16 has them to a thousandth.
_PER_SECOND, _MOST = 100.0, 60000.0


class ExchangeStatus(NamedTuple):
    """Status of all ranks in an exchange."""

    present: Sequence[bool] | None  # flags of tensors with a gradient on any rank; None if no rank lacks any
    any_has_batches: bool  # a rank has batches left
    given_up: list[int]  # ranks that gave up the iteration
    rates_differ: bool  # two ranks make steps with different learning rates

    @property
    def is_dropped(self) -> bool:
        """True if all ranks drop the iteration."""
        return bool(self.given_up) or self.rates_differ


class Status:
    """Status of this rank, written into `Synchronizer.extra`, and of all ranks, read from the means.

    The numbers are: for each tensor, 1 if it has a gradient on this rank; 1 if any tensor lacks one; 1 unless this rank
    is out of batches; for each rank, the time for which it was busy since the last exchange, -1 if it gives up the
    iteration, or 0 if unknown; the learning rates, as `Rates` encodes them. A mean is nonzero if the number is nonzero
    on any rank, so no further communication is needed. If gradients are not averaged, nothing is sent, and a rank knows
    only its own status.

    Attributes
    ----------
    busy : list of float or None
        Times for which the ranks were busy before the exchange that was read last, see `seconds_of`; None if not sent.
    """

    def __init__(self, comm: Communicator, tensors: int, is_sent: bool) -> None:
        self.rates = Rates()  # compared if all ranks make the same step
        self.busy: list[float] | None = None
        self._tensors = tensors
        self._is_sent = is_sent
        self.use(comm)

    def use(self, comm: Communicator) -> None:
        """Use another communicator, with other ranks."""
        self._comm = comm
        complete = [1.0] * self._tensors + [0.0, 1.0] + [0.0] * comm.size
        self._complete = np.array(complete if self._is_sent else [])
        self.count = len(self._complete) + Rates.numbers if self._is_sent else 0

    def write(
        self,
        extra: Numbers,
        used: Sequence[bool] | None,
        has_batches: bool = True,
        gives_up: bool = False,
        busy: float = 0.0,
    ) -> None:
        """Write the status; `used` has flags of tensors with a gradient, or is None if all tensors have a gradient."""
        if not self.count:
            return
        status = extra[: len(self._complete)]
        status[:] = self._complete
        if used is not None:
            status[: self._tensors] = used
            status[self._tensors] = 1
            status[self._tensors + 1] = has_batches
        if gives_up or has_batches:
            status[self._tensors + 2 + self._comm.rank] = -1.0 if gives_up else min(busy * _PER_SECOND, _MOST)
        self.rates.write(extra[len(self._complete) :], has_step=has_batches and not gives_up)

    def read(self, means: Numbers, used: Sequence[bool]) -> ExchangeStatus:
        """Read the means over the ranks; where none are sent, the outcome is that of this rank."""
        self.busy = None
        if not self.count:
            return ExchangeStatus(used, True, [], False)
        status = means[: len(self._complete)]
        present = (status[: self._tensors] != 0).tolist() if status[self._tensors] else None
        busy = status[self._tensors + 2 :].tolist()
        given_up = [rank for rank, number in enumerate(busy) if number < 0]
        self.busy = None if given_up else busy
        rates_differ = Rates.differ(means[len(self._complete) :])
        return ExchangeStatus(present, self.any_has_batches(means), given_up, rates_differ)

    def raise_if_dropped(self, outcome: ExchangeStatus, has_batches: bool) -> None:
        """Raise if all ranks drop the iteration. Collective then."""
        if outcome.given_up:
            ranks = ", ".join(map(str, outcome.given_up))
            raise AbandonedError(
                f"{'rank' if len(outcome.given_up) == 1 else 'ranks'} {ranks} gave up the iteration, after an error "
                "there: all ranks drop it, and no weight was changed; call zero_grad() and go on with the next one"
            )
        if outcome.rates_differ:
            raise MismatchError(
                f"{self.rates.difference(self._comm, has_batches)}: all ranks drop the iteration; give all the same, "
                "call zero_grad() and go on with the next one"
            )

    def any_has_batches(self, means: Numbers) -> bool:
        """Return True if any rank has batches, also after an exchange that has raised an error."""
        return not self.count or bool(means[self._tensors + 1])


def seconds_of(busy: Sequence[float]) -> Numbers:
    """Return the seconds for which each rank was busy, 0 if unknown, from the means that `Status` has read."""
    return np.array(busy) * (len(busy) / _PER_SECOND)


__all__ = ["ExchangeStatus", "Status", "seconds_of"]
