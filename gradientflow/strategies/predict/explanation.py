"""Predictions from the measured link: what a strategy sends, and its gain over dense float32."""

from __future__ import annotations

from dataclasses import dataclass

from gradientflow.arguments import checked_instance, checked_int, checked_nonnegative
from gradientflow.communicator import Communicator
from gradientflow.machine_load import LoadMeter

from .link import Link
from .sparsity import Sparsity, allreduce_bytes, bookkeeping_seconds

_BACKWARD_SHARE = 2 / 3  # of the computation of a step
_WORTH_IT = 1.02  # a smaller gain is within the variation of a step
_FLOAT = 4  # bytes


@dataclass(frozen=True)
class Explanation:
    """What a strategy sends in a step, and its predicted gain over dense float32. Its `str` says it in words.

    Attributes
    ----------
    strategy : str
        Its name.
    ranks, nodes, parameters : int
        Of the job and the model.
    elements_sent : int
        Gradients that are averaged in a step.
    wire : str
        The dtype in which they travel between nodes.
    bytes_sent, dense_bytes_sent : float
        Bytes that a rank sends to other nodes in a step: with the strategy, and with dense float32.
    latency_seconds, seconds_per_byte : float
        Of an allreduce of float32 in a gradient pool, as measured: the part that does not depend on the size, and the
        time for each byte of gradients.
    communication_seconds, dense_communication_seconds : float
        Seconds of averaging in a step, as predicted: with the strategy, and with dense float32.
    bookkeeping_seconds : float
        Seconds of a rank for gathering, updating residuals and scattering, as measured on this machine.
    compute_seconds, backward_seconds : float
        As given, or 0.
    overlaps : bool
        Whether what the strategy sends travels during backpropagation.
    remark : str
        A note if other processes kept the processors busy, so that the times are too long; otherwise empty.
    """

    strategy: str
    ranks: int
    nodes: int
    parameters: int
    elements_sent: int
    wire: str
    bytes_sent: float
    dense_bytes_sent: float
    latency_seconds: float
    seconds_per_byte: float
    communication_seconds: float
    dense_communication_seconds: float
    bookkeeping_seconds: float
    compute_seconds: float
    backward_seconds: float
    overlaps: bool = True
    remark: str = ""

    @property
    def step_seconds(self) -> float:
        """Seconds of a step, as predicted."""
        hidden = self.backward_seconds if self.overlaps else 0.0
        exposed = max(0.0, self.communication_seconds - hidden)
        return self.compute_seconds + self.bookkeeping_seconds + exposed

    @property
    def dense_step_seconds(self) -> float:
        """Seconds of a step with dense float32, as predicted."""
        return self.compute_seconds + max(0.0, self.dense_communication_seconds - self.backward_seconds)

    @property
    def gain(self) -> float:
        """Predicted steps a second, as a multiple of those with dense float32."""
        return self.dense_step_seconds / self.step_seconds if self.step_seconds > 0 else 1.0

    @property
    def is_worth_it(self) -> bool:
        """Whether the gain is above the variation of a step."""
        return self.gain > _WORTH_IT

    def __str__(self) -> str:
        """Say it in a few lines."""
        lines = [
            f"{self.strategy} on {_number(self.ranks, 'rank')} on {_number(self.nodes, 'node')}, "
            f"{self.parameters:,} parameters:",
            f"  sent in a step:  {self._sent()} as {self.wire}; to other nodes "
            f"{_megabytes(self.bytes_sent)} a rank, dense float32 {_megabytes(self.dense_bytes_sent)}",
            f"  link:            {self.latency_seconds * 1e6:.0f} us, and {self._rate()} of float32 gradients",
            f"  averaging takes: {_milliseconds(self.communication_seconds)} and "
            f"{_milliseconds(self.bookkeeping_seconds)} of bookkeeping, dense float32 "
            f"{_milliseconds(self.dense_communication_seconds)}",
            *self._extra_lines(),
        ]
        if self.compute_seconds:
            compute = f"of which {_milliseconds(self.compute_seconds)} is computation"
            lines.append(
                f"  a step takes:    {_milliseconds(self.step_seconds)}, dense float32 "
                f"{_milliseconds(self.dense_step_seconds)}, {compute}"
            )
        return "\n".join([*lines, f"  gain to expect:  {self._verdict()}", *self._remarks()])

    def _remarks(self) -> list[str]:
        return [f"  remark:          {self.remark}"] if self.remark else []

    def _sent(self) -> str:
        share = self.elements_sent / self.parameters if self.parameters else 1.0
        return f"{self.elements_sent:,} gradients ({share:.1%})"

    def _extra_lines(self) -> list[str]:
        """Return lines that only this kind of explanation has."""
        return []

    def _rate(self) -> str:
        return (
            f"{1e-6 / self.seconds_per_byte:,.0f} MB/s" if self.seconds_per_byte > 0 else "more MB/s than can be told"
        )

    def _verdict(self) -> str:
        if self.is_worth_it:
            of_what = "steps a second" if self.compute_seconds else "averaging alone; less for a step with computation"
            return f"{self.gain:.2f} times ({of_what})"
        if self.ranks == 1:
            return "none: one rank has nobody to send to"
        if self.compute_seconds and self.dense_communication_seconds <= self.backward_seconds:
            return "none: dense communication hides behind backpropagation already"
        if (
            self.bookkeeping_seconds
            and self.bookkeeping_seconds > self.dense_communication_seconds - self.communication_seconds
        ):
            return "none: the bookkeeping takes longer than the communication that it saves"
        return "none: the same is sent" if self.bytes_sent == self.dense_bytes_sent else "none to speak of"


@dataclass(frozen=True)
class Subject:
    """A strategy and a model, as the subject of an explanation.

    Attributes
    ----------
    strategy : str
        Its name.
    parameters : int
        Number of parameters of the model.
    dtype : str
        Of the gradients.
    wire : str or None
        What gradients of float32 are rounded to between nodes.
    algorithm : str
        Of the allreduce.
    sparsity : Sparsity or None
        The part of the gradients that is sent, if not everything.
    device : str or int
        Where the gradients are.
    overlaps : bool
        Whether they travel during backpropagation.
    """

    strategy: str
    parameters: int
    dtype: str
    wire: str | None
    algorithm: str
    sparsity: Sparsity | None = None
    device: str | int = "cpu"
    overlaps: bool = True


def measure(
    comm: Communicator, subject: Subject, compute_seconds: float | None, backward_seconds: float | None
) -> Explanation:
    """Measure allreduces of two sizes, and bookkeeping of one size, and predict a step. Collective.

    Raises
    ------
    gradientflow.errors.ArgumentError
        If a number is negative.
    """
    checked_instance("comm", comm, Communicator)
    parameters, dtype, wire, algorithm, sparsity = (
        checked_int("parameters", subject.parameters),
        subject.dtype,
        subject.wire,
        subject.algorithm,
        subject.sparsity,
    )
    for what, number in (("compute_seconds", compute_seconds), ("backward_seconds", backward_seconds)):
        if number is not None:
            checked_nonnegative(what, number)
    device = subject.device
    meter = LoadMeter(comm)
    dense = Link.of_allreduce(comm, "float32", None, algorithm, device)
    travels = wire if dtype == "float32" and wire is not None and comm.nodes > 1 else dtype

    def own() -> Link:
        return dense if travels == "float32" else Link.of_allreduce(comm, dtype, wire, algorithm, device)

    seconds = own().seconds(parameters) if sparsity is None else sparsity.seconds(comm, parameters, own, dense)
    bookkeeping = bookkeeping_seconds(comm, sparsity, parameters, device) if sparsity else 0.0
    width = _FLOAT if travels == "float32" else _FLOAT // 2
    compute = compute_seconds or 0.0
    return Explanation(
        strategy=subject.strategy,
        ranks=comm.size,
        nodes=comm.nodes,
        parameters=parameters,
        elements_sent=sparsity.sent(parameters) if sparsity else parameters,
        wire=travels,
        bytes_sent=sparsity.traffic(comm, parameters, width) if sparsity else allreduce_bytes(comm, parameters * width),
        dense_bytes_sent=allreduce_bytes(comm, parameters * _FLOAT),
        latency_seconds=dense.latency,
        seconds_per_byte=dense.seconds_per_element / _FLOAT,
        communication_seconds=seconds,
        dense_communication_seconds=dense.seconds(parameters),
        bookkeeping_seconds=bookkeeping,
        compute_seconds=compute,
        backward_seconds=_BACKWARD_SHARE * compute if backward_seconds is None else backward_seconds,
        overlaps=subject.overlaps,
        remark=meter.remark(),
    )


def _number(count: int, thing: str) -> str:
    return f"{count} {thing}" if count == 1 else f"{count} {thing}s"


def _megabytes(nbytes: float) -> str:
    return f"{nbytes / 1e6:,.2f} MB"


def _milliseconds(seconds: float) -> str:
    return f"{seconds * 1e3:,.2f} ms"


__all__ = ["Explanation", "Subject", "measure"]
