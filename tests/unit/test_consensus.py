"""Ranks agree on who is left over a simulated network, in which anything may die, break or leave at any moment."""

from __future__ import annotations

import random
from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any

import pytest
from native import recovery

Talk = tuple[Any, ...]  # which consensus of which members: the one before it, and the ranks

# ---- the network -----------------------------------------------------------------------------------------------------


@dataclass
class Rank:
    """A rank as comm.recover() goes through its life; it recovers whenever it loses a member of its communicator."""

    members: tuple[int, ...]  # of its communicator
    base: Talk = ()  # the communicator itself
    talk: Talk | None = None  # while it recovers
    consensus: Any = None
    is_committing: bool = False
    error: str | None = None
    lost: dict[int, str] = field(default_factory=dict)  # what it knows for good
    words: set[int] = field(default_factory=set)  # to whom it has yet to say that they are taken for dead
    told_by: set[int] = field(default_factory=set)  # whose words of that kind lie at its host
    has_left: bool = False  # its communicator, in good order; it makes no other
    leavers: set[tuple[Talk, int]] = field(default_factory=set)  # who has left which communicator, as far as it knows
    early: dict[Talk, list[tuple[int, bytes]]] = field(default_factory=lambda: defaultdict(list))


class Network:
    """All messages, and all that has yet to be noticed; what happens next is drawn by lot."""

    def __init__(
        self,
        size: int,
        seed: int,
        kills: int,
        breaks: int,
        leaves: int,
        suspicions: int = 0,
        min_ranks: int | None = None,
    ) -> None:
        self.random = random.Random(seed)
        self.ranks = [Rank(tuple(range(size))) for _ in range(size)]
        self.living = set(range(size))
        self.kills, self.breaks, self.leaves, self.suspicions = kills, breaks, leaves, suspicions
        self.min_ranks = min_ranks
        self.cut: set[tuple[int, int]] = set()
        self.words: list[tuple[int, int]] = []  # (who tells, whom): they are under way
        self.messages: list[tuple[int, int, Talk, bytes]] = []
        self.signs: list[tuple[int, int, str]] = []  # (who will notice, of whom, what)
        self.calls: list[tuple[int, Talk]] = []  # (who will hear, which communicator is being recovered)
        self.notes: list[tuple[int, int, Talk]] = []  # (who will hear, who has left, which communicator)

    def run(self) -> None:
        for _ in range(20_000):
            events = ["message"] * len(self.messages) + ["sign"] * len(self.signs) + ["call"] * len(self.calls)
            events += ["note"] * len(self.notes) + ["word"] * len(self.words)
            events += ["suspect"] * (self.suspicions > 0)
            events += ["kill"] * (self.kills > 0) + ["break"] * (self.breaks > 0) + ["leave"] * (self.leaves > 0)
            if not events:
                return
            getattr(self, "_" + self.random.choice(events))()
        raise AssertionError("the ranks never come to an end")

    # ---- what happens

    def _message(self) -> None:
        source, to, talk, message = self.messages.pop(self.random.randrange(len(self.messages)))
        rank = self.ranks[to]
        if to not in self.living or source in rank.lost:
            return
        if rank.talk == talk:
            rank.consensus.hear(talk[-1].index(source), message)
            self._go_on(to)
        else:
            rank.early[talk].append((source, message))

    def _sign(self) -> None:
        self._notice(*self.signs.pop(self.random.randrange(len(self.signs))))

    def _call(self) -> None:
        to, base = self.calls.pop(self.random.randrange(len(self.calls)))
        if to in self.living and self.ranks[to].base == base:
            self._recover(to)
        elif to in self.living and self.ranks[to].talk is not None:
            self.calls.append((to, base))  # it may come to that communicator

    def _note(self) -> None:
        to, leaver, base = self.notes.pop(self.random.randrange(len(self.notes)))
        rank = self.ranks[to]
        rank.leavers.add((base, leaver))
        if to not in self.living or rank.base != base:
            return
        if rank.talk == (base, "first", rank.members):
            rank.consensus.note(rank.members.index(leaver), "left", "left")
            self._go_on(to)
        elif rank.talk is None:
            self._recover(to)

    def _word(self) -> None:
        own, other = self.words.pop(self.random.randrange(len(self.words)))
        if (own, other) not in self.cut:
            self.ranks[other].told_by.add(own)
        self.signs.append((other, own, "excluded_us"))
        self.ranks[own].words.discard(other)
        if own in self.living and self.ranks[own].talk is not None:
            self._go_on(own)

    def _suspect(self) -> None:
        """Let a rank take another one for silent, which lives."""
        self.suspicions -= 1
        own, other = self.random.sample(range(len(self.ranks)), 2)
        rank = self.ranks[own]
        if own in self.living and other in rank.members:
            self._recover(own)
            if rank.talk is not None and other in rank.talk[-1] and other not in rank.lost:
                rank.consensus.note(rank.talk[-1].index(other), "silent", "silent")
                self._go_on(own)

    def _leave(self) -> None:
        """Let a rank close its communicator, which others may still need."""
        self.leaves -= 1
        able = [r for r in sorted(self.living) if self.ranks[r].talk is None and self.ranks[r].members]
        if able:
            leaver = self.random.choice(able)
            rank = self.ranks[leaver]
            self.notes += [(r, leaver, rank.base) for r in rank.members if r != leaver]
            rank.has_left, rank.members = True, ()

    def _kill(self) -> None:
        self.kills -= 1
        if self.living:
            self._die(self.random.choice(sorted(self.living)))

    def _break(self) -> None:
        """Cut the network into two parts, or one link."""
        self.breaks -= 1
        size = len(self.ranks)
        pairs = [(a, b) for a in range(size) for b in range(a)]
        cut = {r for r in range(size) if self.random.random() < 0.5}
        chosen = [self.random.choice(pairs)] if self.random.random() < 0.5 else pairs
        for a, b in chosen:
            if len(chosen) == 1 or (a in cut) != (b in cut):
                self.cut |= {(a, b), (b, a)}
                self.messages = [m for m in self.messages if {m[0], m[1]} != {a, b} or self.random.random() < 0.2]
                self.signs += [(a, b, "silent"), (b, a, "silent")]

    # ---- what ranks do

    def _die(self, victim: int) -> None:
        self.living.discard(victim)
        self.messages = [m for m in self.messages if m[0] != victim or self.random.random() < 0.5]
        self.signs += [(r, victim, "dead") for r in self.living]

    def _notice(self, observer: int, other: int, what: str) -> None:
        rank = self.ranks[observer]
        if observer not in self.living or (other in rank.lost and what != "dead"):
            return
        if other not in rank.lost and other in self.living:  # the connection has ended: the other one will see it, too
            self.signs.append((other, observer, self.random.choice(["excluded_us", "silent"])))
        self._exclude(observer, other, what)
        if rank.talk is not None and other in rank.talk[-1]:
            rank.consensus.note(rank.talk[-1].index(other), what, what)
            self._go_on(observer)
        elif other in rank.members and rank.talk is None:
            self._recover(observer)

    def _exclude(self, own: int, other: int, what: str) -> None:
        rank = self.ranks[own]
        is_told = other in rank.lost or what == "dead" or other in rank.told_by
        rank.lost[other] = what
        if other in self.living and not is_told:
            rank.words.add(other)
            self.words.append((own, other))

    def _recover(self, own: int) -> None:
        rank = self.ranks[own]
        if rank.talk is None and rank.error is None and not rank.has_left:
            self.calls += [(r, rank.base) for r in rank.members if r != own]
            self._begin(own, (rank.base, "first", rank.members), committing=False)

    def _begin(self, own: int, talk: Talk, *, committing: bool) -> None:
        rank = self.ranks[own]
        members = talk[-1]
        rank.talk, rank.is_committing = talk, committing
        rank.consensus = recovery.Consensus(members.index(own), len(members), f"{own}")
        for other, what in rank.lost.items():
            if other in members:
                rank.consensus.note(members.index(other), what, what)
        for base, leaver in rank.leavers:
            if talk == (base, "first", members):
                rank.consensus.note(members.index(leaver), "left", "left")
        for source, message in rank.early.pop(talk, []):
            if source not in rank.lost:
                rank.consensus.hear(members.index(source), message)
        self._go_on(own)

    def _go_on(self, own: int) -> None:
        """Exclude, speak, and act on what has been decided."""
        rank = self.ranks[own]
        talk = rank.talk
        assert talk is not None
        members = talk[-1]
        for other, standing in zip(members, rank.consensus.standings, strict=True):
            if standing not in ("alive", "left") and other not in rank.lost:
                self._exclude(own, other, standing)
        if not rank.words:
            before = rank.consensus.standings
            for other in rank.told_by & rank.lost.keys() & set(members):
                rank.consensus.note(members.index(other), "excluded_us", "excluded_us")
            if rank.consensus.standings != before:
                self._go_on(own)
                return
            rank.consensus.propose()
        if (message := rank.consensus.take_message()) is not None:
            for other in members:
                if other != own and other not in rank.lost:
                    self.messages.append((own, other, talk, message))
                if self.kills and self.random.random() < 0.02:
                    self.kills -= 1
                    self._die(own)
                    return
        if (decision := rank.consensus.decision) is None:
            return
        standings, values = decision
        left = tuple(r for r, standing in zip(members, standings, strict=True) if standing == "alive")
        assert [v.decode() for v in values] == [str(r) if r in left else "" for r in members]
        if rank.is_committing and left == members:
            rank.members, rank.base, rank.talk = members, talk, None
            if any(r in rank.lost or (talk, r) in rank.leavers for r in members):
                self._recover(own)
            return
        rank.error = recovery.refusal(standings, self.min_ranks)
        if rank.error is None:
            self._begin(own, (talk, left), committing=True)
            return
        rank.talk = None
        rank.members = ()
        self.random.random() < 0.5 and self._die(own)


# ---- what has to hold ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("breaks", [0, 1, 3])
@pytest.mark.parametrize("size", [3, 5, *(pytest.param(size, marks=pytest.mark.thorough) for size in (2, 4, 7))])
def test_one_group_at_most_goes_on_and_nobody_waits_for_ever(size: int, breaks: int) -> None:
    went_on = 0
    for seed in range(500):
        leaves = random.Random(f"leaves of {seed}").randrange(size)
        network = Network(size, seed, kills=random.Random(seed).randrange(size), breaks=breaks, leaves=leaves)
        network.kills = max(network.kills, 1 - breaks)
        network.run()
        living = {r: network.ranks[r] for r in network.living if not network.ranks[r].has_left}
        assert all(rank.talk is None for rank in living.values()), f"seed {seed}: some still recover"
        groups = {rank.base: rank.members for rank in living.values() if rank.error is None}
        assert len(groups) <= 1, f"seed {seed}: {groups}"
        for members in groups.values():
            assert set(members) == {r for r, rank in living.items() if rank.error is None}, f"seed {seed}"
        if breaks == 0:
            assert all(rank.error is None for rank in living.values()), f"seed {seed}"
        went_on += len(groups)
    assert went_on > 0


@pytest.mark.parametrize("min_ranks", [None, 1, 2])
@pytest.mark.parametrize("size", [3, *(pytest.param(size, marks=pytest.mark.thorough) for size in (2, 4, 5))])
def test_one_group_at_most_goes_on_whoever_is_suspected(size: int, min_ranks: int | None) -> None:
    """Ranks that live are taken for silent, as if they had been stopped; whoever is left may go on."""
    went_on = 0
    for seed in range(250):
        chance = random.Random(seed)
        kills, suspicions = chance.randrange(size), 1 + chance.randrange(4)
        network = Network(size, seed, kills, breaks=0, leaves=0, suspicions=suspicions, min_ranks=min_ranks)
        network.run()
        living = {r: network.ranks[r] for r in network.living}
        assert all(rank.talk is None for rank in living.values()), f"seed {seed}: some still recover"
        groups = {rank.base: rank.members for rank in living.values() if rank.error is None}
        assert len(groups) <= 1, f"seed {seed}: {groups}"
        for members in groups.values():
            assert set(members) == {r for r, rank in living.items() if rank.error is None}, f"seed {seed}"
        went_on += len(groups)
    assert (went_on > 0) == (min_ranks != size)


@pytest.mark.parametrize(
    ("standings", "min_ranks", "refused"),
    [
        ("alive alive silent", None, ""),
        ("alive alive silent silent", None, "not more than half"),
        ("alive alive silent dead", None, "not more than half"),
        ("alive dead dead dead", None, ""),
        ("alive left dead left", None, ""),
        ("alive left silent", None, "not more than half"),
        ("alive silent silent silent", 1, ""),
        ("alive alive dead silent", 3, "fewer than min_ranks=3: rank 2 is dead; rank 3 is silent"),
        ("alive alive excluded_us", None, ""),
        ("alive alive excluded_us", 2, ""),
        ("alive alive excluded_us", 1, "the others have taken ranks 0, 1 for dead"),
        ("alive alive alive excluded_us silent", 2, "the others have taken ranks 0, 1, 2 for dead"),
        ("alive alive alive excluded_us dead", 2, ""),
        ("alive excluded_us excluded_us", None, "the others have taken rank 0 for dead"),
        ("alive excluded_us excluded_us", 1, "the others have taken rank 0 for dead"),
        ("alive alive", 3, "only 2 ranks of 2 can go on"),
    ],
)
def test_who_may_go_on(standings: str, min_ranks: int | None, refused: str) -> None:
    text = recovery.refusal(standings.split(), min_ranks)
    assert refused in text if refused else text is None
