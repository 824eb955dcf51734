"""Messages from any rank at any time: the mailbox of the core, which takes memory by its address."""

from __future__ import annotations

import atexit
import weakref
from collections.abc import Callable
from typing import Protocol

from ._location import load_core
from .communicator import Communicator

_open: weakref.WeakSet[Mailbox] = weakref.WeakSet()


class Tags(Protocol):
    """A range of a mailbox's tags, for one purpose."""

    @property
    def count(self) -> int:
        """How many tags it has."""

    def at(self, number: int) -> int:
        """Return the tag with this number of the range; raise `ArgumentError` if it has none."""


class MessageRequest(Protocol):
    """A send or receive, under way or ended. It continues, and keeps its memory, even if nobody holds this object."""

    @property
    def done(self) -> bool:
        """Whether it has ended, well or badly; polls."""

    @property
    def device_done(self) -> bool:
        """The same as `done`: messages are in memory of the host."""

    @property
    def source(self) -> int:
        """The rank that a message came from, once its receive is done; -1 before."""

    def wait(self, timeout: float | None = None) -> None:
        """Wait for the end.

        Raises
        ------
        gradientflow.errors.CommunicationTimeoutError
            If the timeout passed first; the message goes on and can be waited for again.
        gradientflow.errors.MismatchError
            If a message of another length came. It is lost.
        gradientflow.errors.PeerError
            If the other rank has closed its mailbox, given up, or died.
        gradientflow.errors.ClosedError
            If the mailbox has been closed meanwhile.
        gradientflow.errors.MPIError
            If MPI failed.
        """

    def ended_by(self, timeout: float | None = None) -> bool:
        """Wait for the end, well or badly, at most `timeout` seconds; tell whether it came."""

    def cancel(self) -> bool:
        """End a receive with a `ClosedError` if its message has not come; tell whether that was so."""

    def when_ended(self, callback: Callable[[], object]) -> None:
        """Call the callback once it has ended, in the mailbox's thread, or in the one that closes it. At most once."""


class Arrival(Protocol):
    """A message that has arrived and is not received yet."""

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
    """Asynchronous messages among the ranks of a communicator, over an endpoint of its own.

    Every message is under way from the moment it is made, whatever the ranks do meanwhile. Memory is kept, with its
    owner, until the endpoint is done with it.
    """

    def draw(self, count: int) -> Tags:
        """Return `count` tags that nobody else uses. All ranks draw the same numbers in the same order."""

    def draw_rest(self) -> Tags:
        """Return all tags that are left."""

    def send(self, address: int, nbytes: int, owner: object, dest: int, tag: int) -> MessageRequest:
        """Start to send memory, which must stay as it is until the request has ended."""

    def receive(self, address: int, nbytes: int, owner: object, source: int | None, tag: int) -> MessageRequest:
        """Start to receive a message of exactly this length, from one rank or from any."""

    def next(self, tags: Tags, source: int | None = None, timeout: float | None = None) -> Arrival | None:
        """Return the oldest message with one of the tags that no receive was posted for; None if none comes in time."""

    def take(self, arrival: Arrival, address: int, owner: object) -> MessageRequest:
        """Start to receive a message that has arrived."""

    def close(self, orderly: bool) -> None:
        """Give up receives; if `orderly`, wait a moment for messages under way. Not collective; twice is harmless."""


def make_mailbox(communicator: Communicator, name: str) -> Mailbox:
    """Make a mailbox. Collective.

    Parameters
    ----------
    communicator : Communicator
        Of the same ranks. The endpoint of the mailbox is split from it, and it knows which processes of the node are
        alive.
    name : str
        What has been closed, in error messages.
    """
    native = communicator._native
    made: Mailbox = load_core().Mailbox(native, native.split(0, None), name)
    _open.add(made)
    return made


@atexit.register
def _close_all() -> None:
    """Close open mailboxes when the interpreter exits, without waiting for other ranks."""
    for mailbox in list(_open):
        mailbox.close(False)
