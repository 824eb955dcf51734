"""The speed model of SSD-SGD: the time of a step on a parameter server, from times that can be measured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import numpy.typing as npt

from gradientflow.arguments import checked_int, checked_nonnegative
from gradientflow.communicator import Communicator
from gradientflow.server.parameter_server import ParameterServer
from gradientflow.strategies.update import Settings

from .explanation import Explanation
from .link import median_seconds

_SMALL, _LARGE = 1 << 10, 1 << 20  # elements; with both, latency and bandwidth can be told apart
_PUSHES = 8  # in a row, so that waiting for a slot counts
_RANGE = 4 << 20  # bytes that travel together


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
        T_c: sending, the step of the servers, and pulling, one after the other.
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
        """A step of one machine, without communication: n machines that scale linearly take as long."""
        return self.forward + self.backward

    @property
    def ssgd(self) -> float:
        """A step of synchronous SGD: equation 2."""
        if self.backward - self.first_backward > self.communication - self.last_exchange:
            return self.forward + self.backward + self.last_exchange
        return self.forward + self.communication + self.first_backward

    def case(self) -> int:
        """Return 1 or 2, as in equation 4; or 3 where communication hides behind computation altogether."""
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
        """Return what k steps of SSD-SGD save, compared with synchronous SGD: equation 7."""
        return k * (self.ssgd - self.ssd_sgd(k))

    @property
    def _late(self) -> float:
        """Seconds from the end of the next step's computation until the pulled weights come; below 0 if earlier."""
        return self.communication + self.first_backward - self.linear - self.backward - self.local_update


@dataclass(frozen=True)
class ServedExplanation(Explanation):
    """What a strategy on a parameter server sends in a step, and how long steps take. Its `str` says it in words.

    Attributes
    ----------
    times : StepTimes
        The parts of a step, as measured. What begins with ``dense_`` is for an allreduce of all gradients, for
        comparison.
    k : int
        Steps from one pull to the next.
    waits : bool
        Whether a worker waits for the servers in every step.
    servers : int
        Number of servers.
    """

    times: StepTimes = StepTimes(0, 0, 0, 0)
    k: int = 1
    waits: bool = True
    servers: int = 1

    @property
    def step_seconds(self) -> float:
        """The mean seconds of a step, as predicted."""
        return self.times.ssgd if self.waits else self.times.ssd_sgd(self.k)

    @property
    def gain_over_ssgd(self) -> float:
        """Predicted steps a second, as a multiple of those with `ssgd`."""
        return self.times.ssgd / self.step_seconds if self.step_seconds > 0 else 1.0

    def __str__(self) -> str:
        """Say it in a few lines."""
        times = self.times

        def ms(seconds: float) -> str:
            return f"{seconds * 1e3:,.2f} ms"

        lines = [
            f"{self.strategy} on {self.ranks} workers on {self.nodes} nodes, {self.servers} servers, "
            f"{self.parameters:,} parameters:",
            f"  sent in a step:  {self.bytes_sent / 1e6:,.2f} MB a rank to other nodes as {self.wire}; an allreduce of "
            f"float32 sends {self.dense_bytes_sent / 1e6:,.2f} MB",
            f"  pushing takes:   {ms(times.push)}; pushing, the servers' step and pulling {ms(times.communication)}, "
            f"an allreduce {ms(self.dense_communication_seconds)}",
        ]
        if not self.waits:
            why = {
                1: "the weights come after the next step's computation, once in k steps",
                2: "pushing takes longer than computing",
                3: "communication hides behind computation, whatever k",
            }[times.case()]
            lines.append(f"  local update:    {ms(times.local_update)}; case {times.case()}: {why}")
        if self.compute_seconds:
            lines.append(
                f"  a step takes:    {ms(self.step_seconds)}, ssgd {ms(times.ssgd)}, dense allreduce "
                f"{ms(self.dense_step_seconds)}, without communication {ms(times.linear)}"
            )
        lines.append(f"  gain to expect:  {self.gain_over_ssgd:.2f} times over ssgd, {self.gain:.2f} over dense")
        return "\n".join([*lines, *self._remarks()])


def measure_servers(
    comm: Communicator, servers: int | None, wire: str, optimizer: str, parameters: int
) -> tuple[float, float, float, int]:
    """Measure pushes and pulls of two sizes on a parameter server. Collective.

    Returns
    -------
    tuple
        For so many parameters, in seconds: one push of many in a row; a push until its round is applied; a pull. And
        the number of servers.
    """
    found = []
    number = 1
    for count in (_SMALL, _LARGE):
        with ParameterServer(comm, [np.zeros(count, np.float32)], "bsp", optimizer, servers, wire) as server:
            gradients, weights = [np.zeros(count, np.float32)], [np.zeros(count, np.float32)]
            number = server.servers

            one = median_seconds(comm, partial(_push, server, gradients, 1))
            many = median_seconds(comm, partial(_push, server, gradients, _PUSHES))
            pull = median_seconds(comm, partial(server.pull_into, weights))
            found.append((max(0.0, many - one) / (_PUSHES - 1), one, pull))
            server.finish()
    seconds = []
    for small, large in zip(*found, strict=True):
        slope = max(0.0, (large - small) / (_LARGE - _SMALL))
        seconds.append(max(0.0, small - slope * _SMALL) + slope * parameters)
    return seconds[0], max(seconds[:2]), seconds[2], number


def _push(server: ParameterServer, gradients: Sequence[npt.NDArray[np.float32]], times: int) -> None:
    for _ in range(times):
        push = server.push(Settings(0.0), gradients=gradients)
    push.wait()


def ranges_of(parameters: int, width: int) -> int:
    """Return the number of parts in which so many gradients are pushed."""
    return max(1, parameters * width // _RANGE)


__all__ = ["ServedExplanation", "StepTimes", "measure_servers", "ranges_of"]
