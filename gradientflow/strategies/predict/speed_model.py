"""The speed model of SSD-SGD: the time of a step on a parameter server, from times that can be measured."""

from __future__ import annotations

from dataclasses import dataclass

from gradientflow.arguments import checked_int, checked_nonnegative


@dataclass(frozen=True)
class StepTimes:
    """The seconds of the parts of a step, and the equations of the SSD-SGD paper for the whole step.

    Attributes
    ----------
    forward, backward : float
        The two passes: T_f and T_b.
    push : float
        Sending all gradients: the sum of h_s.
    communication : float
        Sending, the step of the servers, and pulling, in sequence: T_c.
    first_backward : float
        The part of backpropagation in which there is nothing to send yet: h_b of the last layer, L.
    last_exchange : float
        The part of the communication that begins only when backpropagation has ended: h_c of the first layer, 1.
    local_update : float
        The update of a worker's own weights: h_loc.
    """

    forward: float
    backward: float
    push: float
    communication: float
    first_backward: float = 0.0
    last_exchange: float = 0.0
    local_update: float = 0.0

    def __post_init__(self) -> None:
        """Refuse times that are negative."""
        for name, seconds in vars(self).items():
            checked_nonnegative(name, seconds)

    @property
    def linear(self) -> float:
        """A step of one machine, without communication. With linear scaling, n machines take as long."""
        return self.forward + self.backward

    @property
    def ssgd(self) -> float:
        """A step of synchronous SGD: equation 2."""
        if self.backward - self.first_backward > self.communication - self.last_exchange:
            return self.forward + self.backward + self.last_exchange
        return self.forward + self.communication + self.first_backward

    def case(self) -> int:
        """Return 1 or 2, as in equation 4; or 3 if communication hides behind computation altogether."""
        if self.push >= self.linear + self.local_update:
            return 2
        return 1 if self._late > 0 else 3

    def ssd_sgd(self, k: int) -> float:
        """Return the mean of k steps of SSD-SGD: equation 4."""
        steps = checked_int("k", k, 1)
        if self.case() == 2:
            return self.push + max(0.0, self.communication + self.first_backward - self.backward - self.push) / steps
        return self.linear + self.local_update + max(0.0, self._late) / steps

    def saved(self, k: int) -> float:
        """Return the seconds that k steps of SSD-SGD save, compared with synchronous SGD: equation 7."""
        return k * (self.ssgd - self.ssd_sgd(k))

    @property
    def _late(self) -> float:
        """Seconds from the end of the next step's computation until the pulled weights come; negative if early."""
        return self.communication + self.first_backward - self.linear - self.backward - self.local_update


__all__ = ["StepTimes"]
