"""Messages from any rank at any time: the core's mailbox, which takes memory by its address."""

from __future__ import annotations

import atexit
import weakref
from collections.abc import Callable
from typing import Protocol, cast

from ._location import core
from .communicator import Communicator

_open: weakref.WeakSet[Mailbox] = weakref.WeakSet()


class Tags(Protocol):
    """A range of a mailbox's tags reserved for one purpose."""

    @property
    def count(self) -> int:
        """Number of tags."""

    def at(self, number: int) -> int:
        """Return tag `number` of the range; raise `ArgumentError` if the range has no such tag."""


class MessageRequest(Protocol):
    """A send or receive, under way or ended. It continues and keeps its memory even if this object is dropped."""

    @property
    def done(self) -> bool:
        """True if the transfer has ended, with or without an error; polls."""

    @property
    def device_done(self) -> bool:
        """The same as `done`: messages are in memory of the host."""

    @property
    def source(self) -> int:
        """Rank that sent the message, once the receive is done; -1 before."""

    def wait(self, timeout: float | None = None) -> None:
        """Wait for the end of the transfer.

        Raises
        ------
        gradientflow.errors.CommunicationTimeoutError
            If the timeout passed first; the transfer continues and `wait` can be called again.
        gradientflow.errors.MismatchError
            If a message of another length came. It is lost.
        gradientflow.errors.PeerError
            If the peer has closed its mailbox, given up, or died.
        gradientflow.errors.ClosedError
            If the mailbox has been closed meanwhile.
        gradientflow.errors.MPIError
            If MPI failed.
        """

    def ended_by(self, timeout: float | None = None) -> bool:
        """Wait at most `timeout` seconds for the end, with or without an error; return True if it came."""

    def cancel(self) -> bool:
        """End a receive with a `ClosedError` if its message has not come; return True if this call has ended it."""

    def when_ended(self, callback: Callable[[], object]) -> None:
        """Call the callback, at most once, after the end: in the mailbox's thread, or in the thread that closes it."""


class Arrival(Protocol):
    """A message that has arrived and is not received yet."""

    @property
    def source(self) -> int:
        """Rank that sent the message."""

    @property
    def tag(self) -> int:
        """Tag of the message."""

    @property
    def nbytes(self) -> int:
        """Length of the message."""


class Mailbox(Protocol):
    """Asynchronous messages among the ranks of a communicator, over an endpoint of its own.

    A message makes progress from the call that starts it, independent of later calls by the ranks. Its memory is kept,
    with the owner, until the endpoint is done with it.
    """

    def draw(self, count: int) -> Tags:
        """Return `count` unused tags. All ranks draw the same numbers in the same order."""

    def draw_rest(self) -> Tags:
        """Return all remaining tags."""

    def send(self, address: int, nbytes: int, owner: object, dest: int, tag: int) -> MessageRequest:
        """Start to send memory, which must not change until the request has ended."""

    def receive(self, address: int, nbytes: int, owner: object, source: int | None, tag: int) -> MessageRequest:
        """Start to receive a message of exactly this length, from one rank, or from any rank if `source` is None."""

    def next(self, tags: Tags, source: int | None = None, timeout: float | None = None) -> Arrival | None:
        """Return the oldest message with any of the tags and no posted receive; None if none comes in time."""

    def take(self, arrival: Arrival, address: int, owner: object) -> MessageRequest:
        """Start to receive a message that has arrived."""

    def close(self, orderly: bool) -> None:
        """End all receives; if `orderly`, wait a moment for messages under way. Not collective; may be called twice."""


def make_mailbox(communicator: Communicator, name: str) -> Mailbox:
    """Make a mailbox. Collective.

    Parameters
    ----------
    communicator : Communicator
        Communicator of the same ranks. The mailbox's endpoint is split from this communicator, which knows the live
        processes of the node.
    name : str
        Name of the closed object in error messages.
    """
    native = communicator._native
    endpoint = native.split(0, None)
    assert endpoint is not None
    made = cast("Mailbox", core.Mailbox(native, endpoint, name))
    _open.add(made)
    return made


@atexit.register
def _close_all() -> None:
    """Close open mailboxes when the interpreter exits, without waiting for other ranks."""
    for mailbox in list(_open):
        mailbox.close(False)
