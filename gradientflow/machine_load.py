"""Load of other programs on the machine during a measurement.

A library that waits by spinning suffers far more from a shared processor than a library that yields. On a busy machine
even ratios between libraries therefore mean little, and a remark beside the figures says so.
"""

from __future__ import annotations

import os
import socket
import time
import zlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from .communicator import Communicator

_NOISE = 0.15  # processors that small tasks always keep busy
_IDLE_FIELDS = (3, 4)  # fields of the "cpu" line of /proc/stat: idle, waiting for a disk
_INTERRUPT_FIELDS = (5, 6)  # hardware interrupts, and softirqs, such as the kernel's work for the network
_STOLEN_FIELD = 7
_FIELDS = 8  # fields to read; user and nice already include the two fields after these, guest times


@dataclass(frozen=True)
class Load:
    """Load of one machine, as average numbers of busy processors.

    Attributes
    ----------
    others : float
        Processors kept busy by other programs.
    stolen : float
        Processors used by the hypervisor for other virtual machines.
    processors : int
        Number of processors.
    """

    others: float
    stolen: float
    processors: int

    def remark(self, ranks: int) -> str:
        """Return a warning if the machine was too busy for its ranks; empty if each rank had a processor.

        Parameters
        ----------
        ranks : int
            Number of ranks on the machine.
        """
        taken = self.others + self.stolen
        if taken < _NOISE or taken + min(ranks, self.processors) <= self.processors + _NOISE:
            return ""
        return (
            f"Others kept {taken:.1f} of {self.processors} processors busy meanwhile: these figures are too slow, and "
            "most so for whoever waits by spinning, so the ratios are off as well. Measure again on a quiet machine."
        )


class LoadMeter:
    """Compares the processor time of the machine with that of the ranks, from its creation to `stop`.

    Parameters
    ----------
    comm : Communicator
        Ranks to measure; all create their meters together, and stop them together.
    """

    def __init__(self, comm: Communicator) -> None:
        self._comm = comm
        self._start = time.monotonic()
        self._own = time.process_time()
        self._busy, _, self._stolen = _processor_seconds()

    def stop(self) -> Load:
        """Return the load of this rank's machine since the start."""
        return self._loads()[self._comm.rank][0]

    def remark(self) -> str:
        """Stop; return the first remark on a machine of the job, the same on all ranks, or an empty text."""
        return next(filter(None, (load.remark(ranks) for load, ranks in self._loads())), "")

    def _loads(self) -> list[tuple[Load, int]]:
        """Return, for each rank, the load of its machine and the number of ranks there."""
        elapsed = max(time.monotonic() - self._start, 1e-6)
        own = time.process_time() - self._own
        busy, _, stolen = _processor_seconds()
        processors = os.cpu_count() or 1
        # The kernel counts whole ticks: each processor may seem busy for one tick too many.
        of_others = busy - self._busy - processors / os.sysconf("SC_CLK_TCK")
        machine = zlib.crc32(this_machine().encode())
        mine = np.array([machine, own, of_others, stolen - self._stolen, processors, elapsed])
        rows = np.stack(self._comm.allgather(mine))
        loads = []
        for there, _, taken, stolen_there, count, seconds in rows.tolist():
            peers = rows[rows[:, 0] == there]
            others = max(taken - float(peers[:, 1].sum()), 0.0)
            loads.append((Load(round(others / seconds, 2), round(stolen_there / seconds, 2), int(count)), len(peers)))
        return loads


def this_machine() -> str:
    """Return a name of this machine, the same in all its network and process namespaces."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return socket.gethostname()


def interrupt_seconds() -> float:
    """Return the seconds that all processors together have spent on interrupts: the kernel's work for the network."""
    return _processor_seconds()[1]


def _processor_seconds() -> tuple[float, float, float]:
    """Return the seconds of all processors together spent on programs, spent on interrupts, and stolen."""
    try:
        line = Path("/proc/stat").read_text(encoding="ascii").splitlines()[0]
    except (OSError, IndexError):
        return 0.0, 0.0, 0.0
    seconds = [int(field) / os.sysconf("SC_CLK_TCK") for field in line.split()[1 : 1 + _FIELDS]]
    seconds += [0.0] * (_FIELDS - len(seconds))
    interrupts, stolen = sum(seconds[field] for field in _INTERRUPT_FIELDS), seconds[_STOLEN_FIELD]
    return sum(seconds) - sum(seconds[field] for field in _IDLE_FIELDS) - interrupts - stolen, interrupts, stolen


__all__ = ["Load", "LoadMeter", "interrupt_seconds", "this_machine"]
