"""The recorder: the last calls of this process, always kept, and their report after an error.

Every call leaves an entry in a ring in the core (``kernels/engine/calls/call_log.hpp``): kind, communicator, dtype,
count, and the line of the user's program, but never a value. If a call fails because of another rank, each rank writes
its entries to a folder (`dumps`), from which ``gradientflow why`` concludes which rank did something else
(`diagnosis`).
"""

from __future__ import annotations

from .dumps import dump, start
from .entries import calls, pending

__all__ = ["calls", "dump", "pending", "start"]
