"""Questions to ranks of any host, through the store where the ranks have met.

A question is the value of one key, at which ranks look from time to time. Each writes its answer under a key of its
own.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable

from gradientflow._location import core
from gradientflow.errors import CommunicationError, PeerError

from .client import Rank
from .folder import SocketName

_RARELY = 2.0  # seconds between two looks of a rank
_OFTEN = 0.25  # the same after a question
_ATTENTIVE = 10.0  # seconds after a question
_BLIND = 30.0  # seconds until the next look after one that failed
_CALL = 0.5  # limit of a call of the store in a rank
_NOTHING = b"?"  # placeholder for a missing value
_ANY = "any"  # under this key each rank writes its answer, too: rank 0 may be silent
_QUESTIONS = ("status", "stacks")  # a rank writes no files for processes of other hosts


class AnswersAtStore:
    """The side of a rank: the store where the ranks have met, and the prefix of the job's keys."""

    def __init__(self, store: core.Store, prefix: str) -> None:
        self._store = store
        self._prefix = f"{prefix}/watch"
        self._asked: bytes | None = None
        self._asked_at = -_ATTENTIVE

    def look(self, rank: int, answer: Callable[[str], bytes]) -> float | None:
        """Answer a new question. Return the seconds until the next look; None after the end of the store."""
        try:
            asked = _value(self._store, f"{self._prefix}/question", _CALL)
            if asked != self._asked:
                self._asked, self._asked_at = asked, time.monotonic()
                question = (asked or b"").decode(errors="replace").partition(" ")[2]
                if question in _QUESTIONS:
                    said = answer(question)
                    for key in (rank, _ANY):
                        self._store.set(f"{self._prefix}/answer/{key}", said, _CALL)
        except PeerError:
            return None
        except CommunicationError:
            return _BLIND
        return _OFTEN if time.monotonic() < self._asked_at + _ATTENTIVE else _RARELY


class Asker:
    """The side that asks: the store at ``host:port``, the token of the job, and the prefix of its keys."""

    def __init__(self, address: str, token: str, prefix: str) -> None:
        self._store = core.TcpStore(address, False, 2 * _RARELY, token)
        self._prefix = f"{prefix}/watch"
        self._number = int(time.time() * 1000)

    def ask(self, question: str, *, seconds: float = 2 * _RARELY) -> list[Rank]:
        """Return the answers of all ranks that answer in time; an empty list if none does.

        Ranks that have answered before, and do not now, are listed without an answer.
        """
        answers: dict[int, Rank] = {}
        last, end = self._answer(_ANY), time.monotonic() + seconds
        size = _size(last)
        before = {rank: self._answer(rank) for rank in range(size)}
        self._number += 1
        self._store.set(f"{self._prefix}/question", b"%d %s" % (self._number, question.encode()))
        while (len(answers) < size or not answers) and time.monotonic() < end:
            time.sleep(0.05)
            if (said := self._answer(_ANY)) != last:
                size, last = max(size, _size(said)), said
            for rank in set(range(size)) - set(answers):
                said = self._answer(rank)
                if said is not None and said != before.get(rank):
                    answers[rank] = _rank(rank, said)
        if answers:
            for rank, said in before.items():
                if said is not None and rank not in answers:
                    answers[rank] = Rank(_rank(rank, said).name, None, "has not answered lately")
        return [answers[rank] for rank in sorted(answers)]

    def _answer(self, key: int | str) -> bytes | None:
        return _value(self._store, f"{self._prefix}/answer/{key}", 2 * _RARELY)


def _size(said: bytes | None) -> int:
    return 0 if said is None else int(json.loads(said)["size"])


def _rank(rank: int, answer: bytes) -> Rank:
    said = json.loads(answer)
    return Rank(SocketName(said["job"], rank, said["size"], said["pid"]), said)


def _value(store: core.Store, key: str, seconds: float) -> bytes | None:
    value = store.compare_set(key, _NOTHING, _NOTHING, seconds)
    return None if value == _NOTHING else value


__all__ = ["AnswersAtStore", "Asker"]
