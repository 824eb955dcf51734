"""Exceptions of GradientFlow: wrong use, failure outside the library, broken invariants.

All are `GradientFlowError`. Wrong use is also a ValueError or TypeError, and is raised before anything is sent.
"""

from __future__ import annotations


class GradientFlowError(Exception):
    """Base of all exceptions of this library."""


class GradientFlowWarning(UserWarning):
    """The program continues, but most likely not as intended."""


# ---- wrong use -------------------------------------------------------------------------------------------------------


class ArgumentError(GradientFlowError, ValueError):
    """An argument has a value that cannot be served."""


class ArgumentTypeError(GradientFlowError, TypeError):
    """An argument has a type, dtype or device that cannot be served."""


class MismatchError(ArgumentError):
    """The ranks made different calls; raised on every rank, before any data moved.

    The communicator stays usable.
    """


class ClosedError(ArgumentError):
    """The communicator or the pool has been closed."""


class NonFiniteError(ArgumentError, ArithmeticError):
    """A gradient is infinite or NaN; raised on every rank, and nothing has changed."""


# ---- failure outside the library -------------------------------------------------------------------------------------


class CommunicationError(GradientFlowError, RuntimeError):
    """Something outside the library failed; the communicator cannot be used any more."""


class RecoverableError(CommunicationError):
    """A rank is lost or silent: the remaining ranks can continue with `Communicator.recover`."""


class PeerError(RecoverableError):
    """Another rank died, gave up or closed its communicator."""


class CommunicationTimeoutError(RecoverableError, TimeoutError):
    """A wait timed out.

    Raised by a collective, it names the missing ranks. Raised by `Handle.wait`: the call continues, and `wait` can be
    called again.
    """


class AbandonedError(CommunicationError):
    """Another rank gave up the iteration after an error: all ranks drop it and can continue with the next one."""


class MPIError(CommunicationError):
    """The MPI library returned an error."""


class MPILibraryError(CommunicationError, ImportError):
    """The MPI library is missing, or mpi4py and the core use two different libraries."""


class SystemCallError(CommunicationError, OSError):
    """The operating system returned an error."""


class NodeMemoryError(CommunicationError, MemoryError):
    """There is not enough memory; the communicator stays usable."""


# ---- broken invariants -----------------------------------------------------------------------------------------------


class InternalError(GradientFlowError, AssertionError):
    """An invariant of the library is broken: a bug, please report it."""
