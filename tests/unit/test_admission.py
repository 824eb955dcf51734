"""When a job counts as one that nobody is left in, whose ranks then meet as at the beginning."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from gradientflow.admission import Admission
from gradientflow.errors import PeerError
from gradientflow.meeting.variables import RankAndSize


class Store(dict[str, bytes]):
    """Values of one process; `meanwhile` is called once a key has been looked at."""

    def __init__(self, values: dict[str, bytes]) -> None:
        super().__init__(values)
        self.meanwhile: dict[str, Callable[[], object]] = {}

    def compare_set(self, key: str, expected: bytes, wanted: bytes, _: float) -> bytes:
        """Return the value, or that which is wanted; nothing is set here."""
        found = self.get(key, wanted)
        self.meanwhile.pop(key, lambda: None)()
        return found

    def set(self, key: str, value: bytes, _: float) -> None:
        """Set a value."""
        self[key] = value

    def remove(self, key: str, *_: float) -> None:
        """Remove a value."""
        self.pop(key, None)


@pytest.fixture
def store() -> Iterator[Store]:
    """Give one where two ranks wait, and one has ended for good."""
    values = {"outside/0": b"4", "outside/1": b"gone 0", "outside/2": b"7", "join/stands": b"1"}
    return Store({f"job/{name}": value for name, value in values.items()})


def begins_anew(store: Store) -> bool:
    """Have rank 2 look."""
    Admission(store, "job", "", RankAndSize(2, 3), outlives_ranks=True)._restart_if_no_rank_is_active()
    assert ("job/join/stands" in store) != all(b"anew" in store.get(f"job/join/{n}/answer", b"") for n in (4, 7))
    return "job/join/stands" not in store


def test_where_all_are_outside(store: Store) -> None:
    assert begins_anew(store)


@pytest.mark.parametrize("rank", range(3))
def test_where_a_rank_is_inside(store: Store, rank: int) -> None:
    del store[f"job/outside/{rank}"]
    assert not begins_anew(store)


@pytest.mark.parametrize("number", [4, 7])
def test_where_one_has_an_invitation(store: Store, number: int) -> None:
    store[f"job/join/{number}/answer"] = b"1 invitation"
    assert not begins_anew(store)


def test_where_somebody_is_inside_whom_nobody_counts(store: Store) -> None:
    store["job/join/others"] = b"1"
    assert not begins_anew(store)


def test_where_the_ranks_go_in_and_out_between_the_looks(store: Store) -> None:
    """Rank 0 goes in once it has been looked at; the last one inside, which let it in, has come out before it is."""
    del store["job/outside/2"]
    store.meanwhile["job/outside/0"] = lambda: (store.pop("job/outside/0"), store.update({"job/outside/2": b"7"}))
    assert not begins_anew(store)


def test_where_a_rank_has_been_inside_between_the_looks(store: Store) -> None:
    store.meanwhile["job/outside/2"] = lambda: store.update({"job/outside/0": b"8"})
    assert not begins_anew(store)


def test_where_a_rank_will_not_come(store: Store) -> None:
    store["job/lacks"] = b"rank 1 has died"
    with pytest.raises(PeerError, match="rank 1 has died"):
        begins_anew(store)
