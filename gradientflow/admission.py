"""Admission of new processes to a running job.

A joiner files a request in the store where the ranks met. Rank 0 polls for requests in `Communicator.admit`, and all
ranks answer them with invitations.
"""

from __future__ import annotations

import contextlib
import json
import socket
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from . import waits
from ._location import core
from .agreement import gather
from .communicator import Communicator
from .errors import CommunicationError, CommunicationTimeoutError, MismatchError, PeerError, RecoverableError
from .meeting.plan import LACKS, OUTSIDE
from .meeting.variables import RankAndSize, split_address

_ANSWER_SECONDS = 1.0  # time in which a live joiner accepts a connection
_JOB_RESTARTS = "nobody is left in it, and it begins anew"
_NOTHING = b"?"  # placeholder for a missing value; no key here ever has this value
_NONCE = 64  # length of the random token before each card; it makes the cards of two processes differ


@dataclass(frozen=True)
class _JoinRequest:
    """A request to join: its number, and the joiner's card, which has its address and version."""

    number: int
    card: bytes


class Admission:
    """Both sides of admission: a process that joins, and the ranks that admit it.

    Parameters
    ----------
    store : Store
        Store where the ranks met.
    prefix : str
        Prefix of the job's keys in the store.
    near : str
        Address of the store, which helps to choose this host's own address; empty if there is none.
    place : RankAndSize or None
        This process's rank and size, if a launcher restarts failed ranks; None for a process started by other means.
    outlives_ranks : bool
        True if a process other than the ranks serves the store.
    """

    def __init__(
        self, store: core.Store, prefix: str, near: str, place: RankAndSize | None, *, outlives_ranks: bool
    ) -> None:
        self._store = store
        self._prefix = f"{prefix}/join"
        self._missing_key = f"{prefix}/{LACKS}"
        self._outside = f"{prefix}/{OUTSIDE}"
        self._near = near
        self._place = place
        self._outlives_ranks = outlives_ranks
        self._first = 1  # number of the first request that may be unanswered
        self._next_look = 0.0
        self._is_new = True

    # ---- joining: calls of the new process -----------------------------------------------------------------------

    def join(self, config: Mapping[str, str]) -> core.Communicator:
        """Request admission and wait for it; return the core's communicator, in which joiners are the last ranks."""
        seconds = float(config["timeout"])
        joiner = core.Joiner(self._near, dict(config))
        number = self._file_request(core.random_token().encode() + joiner.card)
        try:
            answer = self._wait_for_answer(number, seconds)
        finally:
            self._clear_outside_note()  # otherwise a restart could count this member as outside and continue without it
        min_ranks, _, invitation = answer.partition(b" ")
        endpoint, former = joiner.enter(invitation)
        if self._place is None:  # from now on the job has a rank unknown to its launcher
            self._store.set(f"{self._prefix}/others", b"1", waits.STORE.seconds)
        return core.Communicator.enter(endpoint, former, int(min_ranks) or None, dict(config))

    def _wait_for_answer(self, number: int, seconds: float) -> bytes:
        """Wait for the answer to this request. If all ranks wait for admission, restart the job: no rank can admit."""
        end = time.monotonic() + seconds
        while True:
            if self._look(f"{self._prefix}/ended", seconds) is not None:
                raise MismatchError(_refused("it has ended"))
            if self._outlives_ranks and not self.is_running(seconds):
                raise MismatchError(_refused(_JOB_RESTARTS))
            if self._place is not None:
                self._store.set(self._outside_key(self._place.rank), b"%d" % number, seconds)
            try:
                answer: bytes = self._store.get(self._answer_key(number), min(waits.ABANDONED_JOB.seconds, seconds))
                return answer
            except CommunicationTimeoutError as error:
                if time.monotonic() > end:
                    raise CommunicationTimeoutError(
                        f"no rank of the job has let this process in within {seconds:g} s (GRADIENTFLOW_TIMEOUT): its "
                        "ranks do so between two steps, in admit()"
                    ) from error
            with contextlib.suppress(CommunicationTimeoutError):  # the store may be slow
                self._restart_if_no_rank_is_active()

    def _outside_key(self, rank: int) -> str:
        return f"{self._outside}/{rank}"

    def _clear_outside_note(self) -> None:
        """Withdraw the note that this rank is outside."""
        if self._place is not None:
            self._store.remove(self._outside_key(self._place.rank))

    def _restart_if_no_rank_is_active(self) -> None:
        """Let all ranks meet again from the start if, at one moment, each waits for admission or has ended for good.

        Each waiting rank notes the number of its request, and no number is used twice. If two looks find the same
        notes, all ranks were outside between them: no rank has an invitation, and no rank is left to send one.
        """
        if self._place is None or self._look(f"{self._prefix}/others") is not None:
            return
        before = self._outside_notes()
        numbers = [int(each) for each in before if each.isdigit()]
        if not before or any(self._look(self._answer_key(number)) is not None for number in numbers):
            return
        if self._outside_notes() != before:
            return
        if why := self.missing_reason():
            raise PeerError(why)
        self._store.remove(f"{self._prefix}/stands", waits.STORE.seconds)
        for number in numbers:
            self._answer(number, None, core.refusal(_JOB_RESTARTS))

    def _outside_notes(self) -> list[bytes]:
        """Return the notes of all ranks if all are outside; else an empty list."""
        assert self._place is not None
        found = []
        for rank in range(self._place.size):
            if (said := self._look(self._outside_key(rank))) is None:
                return []
            found.append(said)
        return found

    def is_running(self, seconds: float | None = None) -> bool:
        """Return True if the job is running: its ranks have made their first communicator."""
        return self._look(f"{self._prefix}/stands", seconds) is not None

    def missing_reason(self, seconds: float | None = None) -> str:
        """Return the reason why a rank has ended for good; empty if no rank has."""
        return (self._look(self._missing_key, seconds) or b"").decode()

    def _file_request(self, card: bytes) -> int:
        number = 1
        while self._store.compare_set(f"{self._prefix}/{number}", None, card) != card:
            number += 1
        return number

    # ---- admission: calls of the ranks of the job ----------------------------------------------------------------

    def note_running(self) -> None:
        """Note that the job is running: later processes must request admission."""
        if self._outlives_ranks:
            self._clear_outside_note()  # a dead predecessor of this process may have left the note
            self._store.set(f"{self._prefix}/stands", b"1")

    def has_pending(self) -> bool:
        """Return True, on rank 0, if `admit_pending` would find a request."""
        found = bool(self._admissible_requests())
        if found:
            self._next_look = 0.0
        return found

    def admit_pending(
        self, comm: Communicator, min_ranks: int | None, before: Callable[[], object]
    ) -> core.Communicator | None:
        """Admit all waiting joiners; return the core's communicator with them, or None if there are none. Collective.

        `before` is called before the old communicator is closed.
        """
        requests = self._admissible_requests() if comm.rank == 0 else []
        if comm.broadcast(np.array([len(requests)]), 0)[0] == 0:
            return None
        native = comm._native
        requests = _shared(comm, requests)
        all_ranks = comm.allgather(np.array([native.job_size(), min_ranks or 0]))
        if (all_ranks[:, 1] != all_ranks[0, 1]).any():
            message = f"min_ranks of admit() differs between ranks: {all_ranks[:, 1].tolist()}, by rank; 0 is None"
            raise MismatchError(message)
        addresses = [core.address_on(request.card) for request in requests]
        widened = native.widen(addresses, int(all_ranks[:, 0].max()))
        invitations = [core.invitation_for(widened, len(requests), place) for place in range(len(requests))]

        def invite() -> None:
            for request, invitation in zip(requests, invitations, strict=True):  # all ranks answer: any may die now
                self._answer(request.number, min_ranks, invitation)

        comm.barrier()  # after this barrier every rank knows the joiners
        with contextlib.suppress(RecoverableError):  # a faster rank may close already, an error for slower ranks
            comm.barrier()
        before()
        return native.welcome(widened, min_ranks, invite)

    def close(self) -> None:
        """Tell waiting joiners that the job has ended, if the store outlives the ranks."""
        if self._outlives_ranks:
            with contextlib.suppress(CommunicationError):
                self._store.set(f"{self._prefix}/ended", b"1", waits.STORE.seconds)
                for request in self._unanswered():
                    self._answer(request.number, None, core.refusal("it has ended"))

    def _admissible_requests(self) -> list[_JoinRequest]:
        """Return the requests of joiners that can be admitted, and refuse all others."""
        found = []
        if time.monotonic() < self._next_look:
            return []
        self._next_look = time.monotonic() + waits.LOOK.seconds
        try:
            if self._is_new:  # an earlier rank 0 may have noted, when it closed, that the job ended
                self._store.remove(f"{self._prefix}/ended", waits.STORE.seconds)
                self._is_new = False
            for request in self._unanswered():
                objection = core.objection_to(request.card) or _reason_unreachable(core.address_on(request.card))
                if objection:
                    self._answer(request.number, None, core.refusal(objection))
                else:
                    found.append(request)
        except CommunicationError:  # the store has ended or cannot be reached: no process can join
            self._next_look = time.monotonic() + waits.BLIND.seconds
        return found

    def _unanswered(self) -> list[_JoinRequest]:
        found, number = [], self._first
        while (card := self._look(f"{self._prefix}/{number}")) is not None:
            if self._look(self._answer_key(number)) is None:
                found.append(_JoinRequest(number, card[_NONCE:]))
            elif not found:
                self._first = number + 1
            number += 1
        return found

    def _answer(self, number: int, min_ranks: int | None, answer: bytes) -> None:
        with contextlib.suppress(CommunicationError):  # another rank may reach the store
            self._store.set(self._answer_key(number), b"%d " % (min_ranks or 0) + answer, waits.STORE.seconds)

    def _answer_key(self, number: int) -> str:
        return f"{self._prefix}/{number}/answer"

    def _look(self, key: str, seconds: float | None = None) -> bytes | None:
        """Return the current value of a key; None if it has none."""
        limit = waits.STORE.seconds if seconds is None else seconds
        value: bytes | None = self._store.compare_set(key, _NOTHING, _NOTHING, limit)
        return None if value == _NOTHING else value


def _refused(why: str) -> str:
    return f"this process cannot join the job: {why}"


def _shared(comm: Communicator, requests: list[_JoinRequest]) -> list[_JoinRequest]:
    """Return, on all ranks, the requests that rank 0 has found. Collective."""
    packed = gather(comm, json.dumps([(request.number, request.card.hex()) for request in requests]).encode())[0]
    return [_JoinRequest(number, bytes.fromhex(card)) for number, card in json.loads(packed)]


def _reason_unreachable(address: str) -> str:
    """Return the reason why no process answers at an address; empty if one does."""
    try:
        socket.create_connection(split_address(address, "the address"), _ANSWER_SECONDS).close()
    except OSError as error:
        return f"nobody answers at {address}: {error.strerror or error}"
    return ""
