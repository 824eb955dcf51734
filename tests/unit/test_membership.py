"""Which rank gives its state to which, over a simulated network in which ranks die and join at any moment."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gradientflow.errors import CommunicationError, RecoverableError
from gradientflow.training.membership import Plan, Role, Standing, plan

# ---- the network -----------------------------------------------------------------------------------------------------


@dataclass
class Rank:
    """A rank that sends one gradient, its name and the number of the exchange, in each exchange."""

    name: int
    role: Role
    exchanges: int = 0
    weights: frozenset[tuple[int, int]] | None = frozenset()  # the gradients in them; None: it has none
    has_state: bool = True

    @property
    def standing(self) -> Standing:
        """Return what the rank says of itself."""
        return Standing(self.role, self.exchanges, 0, 0, self.exchanges, self.has_state)


class Network:
    """The ranks of a job, in their order."""

    def __init__(self, size: int, role: Role) -> None:
        self.ranks = [Rank(name, role) for name in range(size)]
        self.names = size
        self.lost: set[int] = set()  # ranks, since all had agreed

    def exchange(self, hears: list[bool]) -> None:
        """Let all members exchange gradients; some do not hear the end of it."""
        gradients = [(each.name, each.exchanges) for each in self.ranks]
        for each, ends in zip(self.ranks, hears, strict=True):
            assert each.weights is not None
            if ends:
                each.weights |= frozenset(gradients)
                each.exchanges += 1

    def join(self, *, beforehand: bool) -> None:
        """Let a rank in, which may have been sent state beforehand."""
        self.ranks.append(Rank(self.names, Role.JOINING, weights=None, has_state=beforehand))
        self.names += 1

    def die(self, rank: int) -> None:
        """Let a rank die."""
        self.lost.add(rank)
        del self.ranks[rank]

    def agree(self, dies: list[int]) -> Plan:
        """Go on with the ranks that are left; each number of `dies` is a rank that dies while state travels."""
        for victim in dies:
            plan([each.standing for each in self.ranks], self.lost)  # nothing has been taken
            if len(self.ranks) > 1:
                self.die(victim % len(self.ranks))
        found = plan([each.standing for each in self.ranks], self.lost)
        giver = self.ranks[found.giver]
        for number, each in enumerate(self.ranks):
            if number in found.takers:
                each.weights = giver.weights
            each.role, each.exchanges, each.has_state = Role.MEMBER, giver.exchanges, True
        self.lost.clear()
        return found


# ---- what has to hold ------------------------------------------------------------------------------------------------


@given(st.data())
@settings(max_examples=300, deadline=None)
def test_all_go_on_from_the_last_exchange_that_a_living_rank_has_ended(data: st.DataObject) -> None:
    size = data.draw(st.integers(1, 5))
    network = Network(size, Role.MEMBER)
    for _ in range(data.draw(st.integers(1, 6))):
        hears = [data.draw(st.booleans()) for _ in network.ranks]
        before = [(each.weights, each.exchanges) for each in network.ranks]
        network.exchange(hears)
        for _ in range(data.draw(st.integers(0, 2))):
            network.join(beforehand=data.draw(st.booleans()))
        members = [each for each in network.ranks if each.role is Role.MEMBER]
        dies = data.draw(st.lists(st.integers(0, 9), max_size=len(members) - 1))
        living = list(network.ranks)
        try:
            found = network.agree(dies)
        except CommunicationError:
            assert all(each.role is Role.JOINING for each in network.ranks)
            return
        left = network.ranks
        ended = [heard for each, heard in zip(living, hears, strict=False) if each in left]
        wanted = before[0][1] + any(ended)
        assert {each.exchanges for each in left} == {wanted}
        assert {each.weights for each in left} == {left[found.giver].weights}
        weights = left[0].weights
        assert weights is not None
        for each in members:  # each gradient of a living rank is in all weights, or in none
            if each in left and any(ended):
                assert (each.name, wanted - 1) in weights
        assert any(ended) or weights == before[0][0]


@given(st.lists(st.tuples(st.sampled_from(Role), st.integers(0, 3), st.integers(0, 3), st.booleans()), min_size=1))
def test_a_plan_is_what_it_promises(given_: list[tuple[Role, int, int, bool]]) -> None:
    standings = [
        Standing(role, exchanges * (role is Role.MEMBER), own, False, 0, has)
        for role, exchanges, own, has in given_  # only members have ended exchanges
    ]
    if all(each.role is Role.JOINING for each in standings):
        with pytest.raises(
            CommunicationError, match="all ranks that had weights to give to newcomers have died"
        ) as raised:
            plan(standings)
        assert not isinstance(raised.value, RecoverableError)
        return
    found = plan(standings)
    first = standings[found.giver]
    assert all(each.place <= first.place for each in standings)
    assert all(each.place < first.place for each in standings[: found.giver])
    stay = {rank for rank in range(len(standings)) if rank not in found.takers}
    assert found.giver in stay
    assert all(standings[rank].place == first.place for rank in stay)
    assert all(standings[rank].role is Role.MEMBER for rank in stay - {found.giver})
    begin = [standings[rank] for rank in found.takers if standings[rank].role is not Role.MEMBER]
    assert found.gives_replica == any(not each.has_state or not first.has_state for each in begin)
    only_prefetched = len(begin) == len(found.takers) and not found.gives_replica
    assert found.gives_arrays == (not only_prefetched)


def test_weights_that_all_begin_with_are_those_of_rank_0() -> None:
    standings = [Standing(Role.SEPARATED, 0, 0, False, 0, False)] * 2
    assert plan(standings, {1}) == Plan(0, (1,), True, True)
    with pytest.raises(CommunicationError, match="rank 0 has died before its weights, with which all begin"):
        plan(standings, {0, 2})
    founding = [each._replace(role=Role.FOUNDING) for each in standings]  # where all have those of the job before
    assert plan(founding, {0}) == Plan(0, (1,), True, True)
    member = standings[0]._replace(role=Role.MEMBER)
    assert plan([*standings, member], {0}).giver == 2
