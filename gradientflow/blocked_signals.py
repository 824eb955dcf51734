"""Signals blocked, as in threads to which no signal of the program is to be delivered."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager

_FAULTS = {signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGABRT}


@contextmanager
def signals_blocked() -> Iterator[None]:
    """Block signals: a thread started here never gets one, which a program may wait for in a thread of its own."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals() - _FAULTS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


__all__ = ["signals_blocked"]
