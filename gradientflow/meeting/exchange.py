"""How ranks that have no messages yet tell each other something: all ranks' bytes, to all ranks."""

from __future__ import annotations

import struct
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, Protocol

from gradientflow.errors import ArgumentTypeError, CommunicationTimeoutError, MismatchError

from .variables import Place

Exchange = Callable[[bytes, float], list[bytes]]
"""Gives the bytes of all ranks, in the order of the ranks, for those of this one and a limit in seconds. Collective."""


class Store(Protocol):
    """Values by name that all processes of a job share, such as a store of PyTorch.

    One that has them is also asked by ``wait(keys, timeout)``, with a ``datetime.timedelta``, and ``check(keys)``.
    """

    def set(self, key: str, value: bytes, /) -> object:
        """Set a value."""

    def get(self, key: str, /) -> bytes:
        """Wait for a value, and return it."""

    def add(self, key: str, amount: int, /) -> int:
        """Add to a number, which is 0 at first, and return the sum."""


class StoreExchange:
    """An `Exchange` through a store that is given.

    Ranks may meet there any number of times: each counts its own meetings in the store, so that what is left of an
    earlier meeting, also of processes that have been started again, is not taken for this one's.

    Parameters
    ----------
    store : Store
        The store.
    place : Place
        This process, and how many there are.
    prefix : str
        Begins the names of all values.
    """

    def __init__(self, store: Store, place: Place, prefix: str) -> None:
        if missing := [name for name in ("set", "get", "add") if not callable(getattr(store, name, None))]:
            message = f"a store has set, get and add; this {type(store).__name__} has no {' and no '.join(missing)}"
            raise ArgumentTypeError(message)
        self._store, self._place = store, place
        self._prefix = f"{prefix}/{store.add(f'{prefix}/meetings of {place.rank}', 1)}"
        self._calls = 0

    def __call__(self, mine: bytes, timeout: float) -> list[bytes]:
        """Exchange with the other ranks.

        Raises
        ------
        gradientflow.errors.CommunicationTimeoutError
            If ranks are missing: it names them, if the store can tell.
        gradientflow.errors.MismatchError
            If the ranks differ about their number.
        """
        deadline = time.monotonic() + timeout
        self._calls += 1
        values, reads = ([self._key(what, rank) for rank in range(self._place.size)] for what in ("value", "read"))
        self._store.set(values[self._place.rank], struct.pack("<q", self._place.size) + mine)
        self._wait(values, deadline, timeout)
        found = [bytes(self._store.get(key)) for key in values]
        for rank, each in enumerate(found):
            (size,) = struct.unpack_from("<q", each)
            if size != self._place.size:
                message = (
                    f"rank {rank} has come as one of {size} ranks, but rank {self._place.rank} as one of "
                    f"{self._place.size}"
                )
                raise MismatchError(message)
        # Rank 0 may serve the store, and end with it: it is the last to go.
        self._store.set(reads[self._place.rank], b"1")
        if self._place.rank == 0:
            self._wait(reads, deadline, timeout)
        return [each[struct.calcsize("<q") :] for each in found]

    def _key(self, what: str, rank: int) -> str:
        return f"{self._prefix}/{self._calls}/{what} of {rank}"

    def _wait(self, keys: Sequence[str], deadline: float, timeout: float) -> None:
        wait: Any = getattr(self._store, "wait", None)
        if wait is None:
            for key in keys:
                self._store.get(key)  # which waits
            return
        try:
            wait(list(keys), timedelta(seconds=max(0.001, deadline - time.monotonic())))
        except (RuntimeError, TimeoutError) as error:  # torch.distributed.DistStoreError among them
            if time.monotonic() < deadline - 0.1:
                raise
            message = f"timed out after {timeout:g} s: {self._missing(keys)} not come to the store"
            raise CommunicationTimeoutError(message) from error

    def _missing(self, keys: Sequence[str]) -> str:
        check: Any = getattr(self._store, "check", None)
        missing = [] if check is None else [str(rank) for rank, key in enumerate(keys) if not check([key])]
        if not missing:
            return "some ranks have"
        return f"rank {missing[0]} has" if len(missing) == 1 else f"ranks {', '.join(missing)} have"


def exchange_by_mpi(mpi: Any) -> Exchange:
    """Return an exchange through an mpi4py communicator; how long MPI waits is MPI's."""

    def exchange(mine: bytes, timeout: float) -> list[bytes]:
        del timeout
        return [bytes(each) for each in mpi.allgather(mine)]

    return exchange
