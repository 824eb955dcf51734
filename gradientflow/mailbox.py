"""Messages that may come from anybody at any time: the mailbox of the core, by the address of memory."""

from __future__ import annotations

import atexit
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from ._location import load_core

if TYPE_CHECKING:
    from mpi4py import MPI

    from .communicator import Communicator

_open: weakref.WeakSet[Mailbox] = weakref.WeakSet()


class Tags(Protocol):
    """A range of a mailbox's tags, for one purpose."""

    @property
    def count(self) -> int:
        """How many tags it has."""

    def at(self, number: int) -> int:
        """Return the tag with this number of the range; raise `ArgumentError` if it has none."""


class Letter(Protocol):
    """A send or receive, under way or ended. It goes on, and keeps its memory, whether it is kept or not."""

    @property
    def done(self) -> bool:
        """Whether it has ended, well or badly; MPI is asked."""

    @property
    def device_done(self) -> bool:
        """Whether it has ended: what is sent and received is on the host."""

    @property
    def source(self) -> int:
        """The rank that a message came from, once its receive is done; -1 before."""

    def wait(self, timeout: float | None = None) -> None:
        """Wait for the end.

        Raises
        ------
        gradientflow.errors.CommunicationTimeoutError
            If the timeout passed first; the letter goes on and can be waited for again.
        gradientflow.errors.MismatchError
            If a message of another length came. It is gone.
        gradientflow.errors.PeerError
            If the other rank has closed its mailbox, given up, or died.
        gradientflow.errors.ClosedError
            If the mailbox has been closed meanwhile.
        gradientflow.errors.MPIError
            If MPI failed.
        """

    def ended_by(self, timeout: float | None = None) -> bool:
        """Wait for the end, well or badly, for so many seconds; tell whether it came."""

    def cancel(self) -> bool:
        """End a receive whose message has not come, with a `ClosedError`; tell whether that was so."""

    def when_ended(self, callback: Callable[[], object]) -> None:
        """Call the callback once it has ended, in the mailbox's thread, or in the one that closes it. At most once."""


class Arrival(Protocol):
    """A message that has come and is not received yet."""

    @property
    def source(self) -> int:
        """The rank that has sent it."""

    @property
    def tag(self) -> int:
        """Its tag."""

    @property
    def nbytes(self) -> int:
        """Its length."""


class Mailbox(Protocol):
    """Asynchronous messages among the ranks of an MPI communicator of its own.

    Every message is under way from the moment it is made, whatever the ranks do meanwhile. Memory is kept, with its
    owner, until MPI is done with it.
    """

    def draw(self, count: int) -> Tags:
        """Return tags that nobody else has. All ranks draw alike."""

    def draw_rest(self) -> Tags:
        """Return all tags that are left."""

    def send(self, address: int, nbytes: int, owner: object, dest: int, tag: int) -> Letter:
        """Start to send memory, which must stay as it is until the letter has ended."""

    def receive(self, address: int, nbytes: int, owner: object, source: int | None, tag: int) -> Letter:
        """Start to receive a message of just this length, from a rank or from any."""

    def next(self, tags: Tags, source: int | None = None, timeout: float | None = None) -> Arrival | None:
        """Return the oldest message with one of the tags that no receive was posted for; None if none comes in time."""

    def take(self, arrival: Arrival, address: int, owner: object) -> Letter:
        """Start to receive what has come."""

    def close(self, orderly: bool) -> None:
        """Give up receives; if `orderly`, wait a moment for what is on its way. Not collective; twice is harmless."""


def make_mailbox(communicator: Communicator, mpi: MPI.Intracomm, name: str) -> Mailbox:
    """Make a mailbox. Not collective.

    Parameters
    ----------
    communicator : Communicator
        Of the same ranks: it knows which processes of the node live.
    mpi : mpi4py.MPI.Intracomm
        The ranks, for the mailbox alone, to which it belongs from now on.
    name : str
        What has been closed, in errors.
    """
    from mpi4py import MPI

    made: Mailbox = load_core().Mailbox(communicator._native, MPI._addressof(mpi), name)
    _open.add(made)
    return made


@atexit.register
def _close_all() -> None:
    """Close what is still open when the interpreter exits, without waiting for anybody."""
    for mailbox in list(_open):
        mailbox.close(False)
