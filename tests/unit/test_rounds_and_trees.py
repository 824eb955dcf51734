"""Who speaks to whom: the rounds of recursive doubling and the trees, played through without any message."""

from __future__ import annotations

from collections import defaultdict, deque

import pytest
from hypothesis import given
from hypothesis import strategies as st
from native import collective as functions

SIZES = st.integers(1, 70)
ROOM_FOR_ALL = 2000


# ---- recursive doubling ----------------------------------------------------------------------------------------------


def play(size: int, order: st.DataObject | None = None) -> list[set[int]]:
    """Play the rounds as messages would: a member waits for what it receives, and nobody waits for a send.

    Returns what each member has heard of. Without `order` every member goes on as soon as it can; with it, hypothesis
    says who is next.
    """
    rounds = [functions.doubling_rounds(size, index) for index in range(size)]
    heard = [{index} for index in range(size)]
    position = [0] * size
    sent = [False] * size  # in the round that the member is in
    under_way: dict[tuple[int, int], deque[set[int]]] = defaultdict(deque)

    def step(index: int) -> bool:
        """Do what the member can do in its round; tell whether that was anything."""
        if position[index] == len(rounds[index]):
            return False
        peer, sends, receives = rounds[index][position[index]]
        moved = False
        if sends and not sent[index]:
            under_way[index, peer].append(set(heard[index]))
            sent[index] = moved = True
        if receives and not under_way[peer, index]:
            return moved
        if receives:
            heard[index] |= under_way[peer, index].popleft()
        position[index] += 1
        sent[index] = False
        return True

    while any(position[index] < len(rounds[index]) for index in range(size)):
        waiting = [index for index in range(size) if position[index] < len(rounds[index])]
        if order is not None:
            waiting = order.draw(st.permutations(waiting))
        moved = [step(index) for index in waiting]
        assert any(moved), f"nobody can go on: {position}"
    assert not any(under_way.values()), "something was sent that nobody received"
    return heard


@given(size=SIZES)
def test_everybody_hears_from_everybody(size: int) -> None:
    assert play(size) == [set(range(size))] * size


@given(size=st.integers(1, 17), order=st.data())
def test_in_whichever_order_the_members_get_on(size: int, order: st.DataObject) -> None:
    assert play(size, order) == [set(range(size))] * size


@given(size=st.integers(1, 1000))
def test_sends_and_receives_of_two_members_match(size: int) -> None:
    """Between any two, the k-th send of the one is the k-th receive of the other."""
    sends: dict[tuple[int, int], int] = defaultdict(int)
    receives: dict[tuple[int, int], int] = defaultdict(int)
    for index in range(size):
        for peer, sending, receiving in functions.doubling_rounds(size, index):
            assert 0 <= peer < size
            assert peer != index
            assert sending or receiving
            sends[index, peer] += sending
            receives[peer, index] += receiving
    assert {pair: number for pair, number in sends.items() if number} == {
        pair: number for pair, number in receives.items() if number
    }


@given(exponent=st.integers(0, 12), beyond=st.integers(0, 4095))
def test_there_are_as_few_rounds_as_can_be(exponent: int, beyond: int) -> None:
    core = 1 << exponent
    size = core + beyond % core
    longest = max(
        len(functions.doubling_rounds(size, index)) for index in {0, size - 1, core - 1, size - core, core // 2}
    )
    assert longest == (exponent if size == core else exponent + 2)


def test_two_partners_exchange() -> None:
    assert functions.doubling_rounds(1, 0) == []
    assert functions.doubling_rounds(2, 0) == [(1, True, True)]
    assert functions.doubling_rounds(2, 1) == [(0, True, True)]


def test_the_third_of_three_lets_another_work() -> None:
    assert functions.doubling_rounds(3, 0) == [(2, False, True), (1, True, True), (2, True, False)]
    assert functions.doubling_rounds(3, 1) == [(0, True, True)]
    assert functions.doubling_rounds(3, 2) == [(0, True, False), (0, False, True)]


# ---- trees -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", ["binomial", "chain"])
@given(ranks=st.integers(1, 300))
def test_a_tree_reaches_everybody_once(shape: str, ranks: int) -> None:
    branches = [functions.branch(shape, ranks, place) for place in range(ranks)]
    assert branches[0][0] is None
    reached: list[int] = []
    front = [0]
    while front:
        place = front.pop()
        reached.append(place)
        assert len(reached) <= ranks, "somebody is reached twice"
        for child in branches[place][1]:
            assert branches[child][0] == place, f"{place} has the child {child}, which has another parent"
            front.append(child)
    assert sorted(reached) == list(range(ranks))


@given(ranks=st.integers(1, ROOM_FOR_ALL), place=st.integers(0, ROOM_FOR_ALL - 1))
def test_a_binomial_tree_is_low_and_the_largest_child_comes_first(ranks: int, place: int) -> None:
    place %= ranks
    parent, children = functions.branch("binomial", ranks, place)
    steps = 0
    above = place
    while above != 0:
        above, _ = functions.branch("binomial", ranks, above)
        steps += 1
    assert steps <= (ranks - 1).bit_length()
    assert (parent is None) == (place == 0)
    assert len(children) <= (ranks - 1).bit_length()
    assert children == sorted(children, reverse=True)
    assert all(child > place for child in children)


@given(ranks=st.integers(1, ROOM_FOR_ALL), place=st.integers(0, ROOM_FOR_ALL - 1))
def test_a_chain_has_one_neighbor_on_each_side(ranks: int, place: int) -> None:
    place %= ranks
    assert functions.branch("chain", ranks, place) == (
        place - 1 if place > 0 else None,
        [place + 1] if place + 1 < ranks else [],
    )
