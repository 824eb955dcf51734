"""Messages over TCP between ranks that all live in this process."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from contextlib import ExitStack
from threading import Event
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from native import tcp
from pace import scaled
from tcp_ranks import TOKEN, carry_on_until, connect, finish, greeting, in_threads, join, outcome

from gradientflow.errors import ClosedError, CommunicationTimeoutError, GradientFlowError, MismatchError, PeerError

WHOLE: int = tcp.largest_whole
SIZES = [0, 1, 1000, WHOLE, WHOLE + 1, 3 * WHOLE + 5]


def content(size: int, seed: int = 0) -> bytes:
    """Give bytes that differ with their place and with `seed`."""
    period = bytes((seed * 89 + i * 7 + i // 251) % 256 for i in range(1009))
    return (period * (size // len(period) + 1))[:size]


def next_message(ranks: list[Any], rank: int) -> Any:
    """Give the next message of a rank, once there is one."""
    found: list[Any] = []

    def is_there() -> bool:
        message = ranks[rank].next()
        found.extend([message] if message is not None else [])
        return bool(found)

    carry_on_until(is_there, ranks)
    return found[0]


# ---- one message -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("until_taken", [False, True])
@pytest.mark.parametrize("sender", [0, 1])
@pytest.mark.parametrize("posted", ["before", "after", "taken"])
def test_a_message(size: int, until_taken: bool, sender: int, posted: str) -> None:
    ranks = join(2)
    receiver = ranks[1]
    receives = [receiver.receive(sender, 5, size + 10)] if posted == "before" else []
    send = ranks[sender].send(1, 5, content(size), until_taken)
    if posted == "after":
        for endpoint in ranks:
            endpoint.make_progress(0.05)
        receives.append(receiver.receive(sender, 5, size))
    elif posted == "taken":
        message = next_message(ranks, 1)
        assert (message.source, message.tag, message.bytes) == (sender, 5, size)
        receives.append(message.receive())
    finish([send, *receives], ranks)
    assert receives[0].data == content(size)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("sender", [0, 1])
def test_until_taken_is_not_before(size: int, sender: int) -> None:
    ranks = join(2)
    send = ranks[sender].send(1, 0, content(size), until_taken=True)
    for endpoint in ranks * 3:
        endpoint.make_progress(0.02)
    assert not send.test()
    message = ranks[1].next()
    assert not send.test()
    message.discard()
    finish([send], ranks)


@pytest.mark.parametrize("size", SIZES[1:])
@pytest.mark.parametrize("sender", [0, 1])
@pytest.mark.parametrize("posted", ["before", "after"])
def test_a_message_that_is_too_long(size: int, sender: int, posted: str) -> None:
    ranks = join(2)
    if posted == "before":
        receive = ranks[1].receive(sender, 0, size - 1)
    send = ranks[sender].send(1, 0, content(size))
    if posted == "after":
        for endpoint in ranks * 2:
            endpoint.make_progress(0.02)
        receive = ranks[1].receive(sender, 0, size - 1)
    with pytest.raises(MismatchError, match=f"rank {sender} has sent a message of {size} bytes to a receive of"):
        finish([receive], ranks)
    finish([send], ranks)
    finish([ranks[sender].send(1, 0, b"next"), after := ranks[1].receive(sender, 0, 4)], ranks)
    assert after.data == b"next"


# ---- several ---------------------------------------------------------------------------------------------------------


def test_tags_are_received_in_any_order_and_each_in_its_own() -> None:
    ranks = join(2)
    sizes = [10, 0, WHOLE + 1, 5, WHOLE]
    sends = [ranks[0].send(1, i % 3, content(size, i)) for i, size in enumerate(sizes * 3)]
    receives = {tag: [i for i in range(len(sizes) * 3) if i % 3 == tag] for tag in (2, 0, 1)}
    pending = [(i, ranks[1].receive(0, tag, WHOLE + 1)) for tag, order in receives.items() for i in order]
    finish([*sends, *(each for _, each in pending)], ranks)
    assert all(each.data == content((sizes * 3)[i], i) for i, each in pending)


def test_more_than_credit_waits_with_its_sender() -> None:
    ranks = join(2)
    size, count = WHOLE, 40
    sends = [ranks[0].send(1, 0, content(size, i)) for i in range(count)]
    before = time.monotonic()
    while time.monotonic() < before + 1:
        for endpoint in ranks:
            endpoint.make_progress()
    ended = sum(each.test() for each in sends)
    assert 0 < ended * size <= tcp.credit
    receives = [ranks[1].receive(0, 0, size) for _ in range(count)]
    finish([*sends, *receives], ranks)
    assert all(each.data == content(size, i) for i, each in enumerate(receives))


def test_credit_comes_back_for_everything() -> None:
    """What is received, discarded, too long, or for a group that was closed costs nothing in the end."""
    ranks = join(2)
    closed = [endpoint.duplicate() for endpoint in ranks]
    closed[1].close()
    size = WHOLE
    for turn in range(40):
        send = ranks[0].send(1, 0, content(size))
        match turn % 4:
            case 0:
                finish([send, ranks[1].receive(0, 0, size)], ranks)
            case 1:
                next_message(ranks, 1).discard()
                finish([send], ranks)
            case 2:
                with pytest.raises(MismatchError):
                    finish([send, ranks[1].receive(0, 0, 3)], ranks)
                finish([send], ranks)
            case 3:
                finish([send, closed[0].send(1, 0, content(size)), ranks[1].receive(0, 0, size)], ranks)
    for sender, receiver in ((0, 1), (1, 0)):  # behind all that is under way
        finish([ranks[sender].send(receiver, 2, b"x"), ranks[receiver].receive(sender, 2, 1)], ranks)
    # Whole messages end without the receiver: so much credit is there again.
    for _ in range(10):
        send = ranks[0].send(1, 1, content(size))
        carry_on_until(send.test, ranks)


def test_a_request_ends_though_only_it_is_tested() -> None:
    ranks = join(2)
    sends = [ranks[1].send(0, 0, b"one"), ranks[1].send(0, 1, content(5 * WHOLE))]
    for receive in (ranks[0].receive(1, 0, 3), ranks[0].receive(1, 1, 5 * WHOLE)):
        deadline = time.monotonic() + 20
        while not receive.test():
            assert time.monotonic() < deadline
            for each in sends:
                each.test()
    finish(sends, ranks)


def test_who_waits_for_nothing_takes_no_core() -> None:
    ranks = join(2)
    finish([ranks[0].send(1, 0, b"x"), ranks[1].receive(0, 0, 1)], ranks)
    receives = [ranks[0].receive(1, 0, 1), ranks[1].receive(0, 0, 1)]
    before = time.process_time()
    in_threads([lambda: receives[0].wait(1.0), lambda: receives[1].wait(1.0)])
    assert time.process_time() - before < 0.5  # of 2 seconds


# ---- what is given up ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("sender", [0, 1])
@pytest.mark.parametrize("keep", [False, True])
@pytest.mark.parametrize("steps", [0, 1, 2, 3, 5, 8, 100])
def test_a_send_that_is_given_up(size: int, sender: int, keep: bool, steps: int) -> None:
    """It comes as it was, or, if its memory is not kept and nothing of it has left, not at all."""
    ranks = join(2)
    receive = ranks[1].receive(sender, 0, size) if steps % 2 else None
    send = ranks[sender].send(1, 0, content(size))
    for _ in range(steps):
        for endpoint in ranks:
            endpoint.make_progress()
    send.give_up(keep)
    receive = receive or ranks[1].receive(sender, 0, size)
    error = outcome(lambda: finish([receive], ranks))
    if error is None:
        assert receive.data == content(size)
    else:
        assert not keep
        assert "rank 0 has given up sending a message" in str(error)
    finish([ranks[sender].send(1, 0, b"next"), after := ranks[1].receive(sender, 0, 4)], ranks)
    assert after.data == b"next"


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("sender", [0, 1])
@pytest.mark.parametrize("steps", [0, 1, 2, 3, 5, 8, 100])
def test_a_receive_that_is_given_up_is_not_written_to(size: int, sender: int, steps: int) -> None:
    ranks = join(2)
    receive = ranks[1].receive(sender, 0, size)
    send = ranks[sender].send(1, 0, content(size), until_taken=bool(steps % 2))
    for _ in range(steps):
        for endpoint in ranks:
            endpoint.make_progress()
    has_ended = receive.test()
    receive.give_up()
    for endpoint in ranks * 3:
        endpoint.make_progress(0.01)
    assert has_ended or receive.is_untouched
    follows = ranks[sender].send(1, 1, b"next")
    finish([follows, after := ranks[1].receive(sender, 1, 4)], ranks)
    assert after.data == b"next"
    if (message := ranks[1].next()) is not None:  # nobody had begun to receive it
        finish([message.receive()], ranks)
    finish([send], ranks)


# ---- groups ----------------------------------------------------------------------------------------------------------


def test_a_group_that_opens_later_gets_what_was_sent() -> None:
    ranks = join(3)
    early = ranks[0].duplicate()
    sends = [early.send(1, 0, content(size)) for size in SIZES]
    for endpoint in ranks:
        endpoint.make_progress(0.05)
    late = ranks[1].duplicate()
    receives = [late.receive(0, 0, size) for size in SIZES]
    finish([*sends, *receives], ranks)
    assert [each.data for each in receives] == [content(size) for size in SIZES]


def test_messages_of_groups_do_not_meet() -> None:
    ranks = join(2)
    others = [endpoint.duplicate() for endpoint in ranks]
    again = [endpoint.duplicate() for endpoint in others]
    groups = [ranks, others, again]
    sends = [group[0].send(1, 0, bytes([i])) for i, group in enumerate(groups)]
    receives = [group[1].receive(0, 0, 1) for group in reversed(groups)]
    finish([*sends, *receives], ranks)
    assert [each.data for each in receives] == [b"\2", b"\1", b"\0"]


@pytest.mark.parametrize("size", SIZES)
def test_messages_to_a_closed_group_are_dropped(size: int) -> None:
    ranks = join(2)
    groups = [endpoint.duplicate() for endpoint in ranks]
    unread = groups[0].send(1, 0, content(size))
    for endpoint in ranks * 2:
        endpoint.make_progress(0.01)
    groups[1].close()
    finish([unread, groups[0].send(1, 0, content(size), until_taken=size > WHOLE)], ranks)


def test_split_has_the_order_of_the_keys() -> None:
    ranks = join(5)
    parts = in_threads([lambda r=r: ranks[r].split(-1 if r == 4 else r % 2, -r) for r in range(5)])
    assert [(each.rank, each.size) if each else None for each in parts] == [(1, 2), (1, 2), (0, 2), (0, 2), None]
    finish([parts[0].send(0, 0, b"x"), receive := parts[2].receive(1, 0, 1)], ranks)
    assert receive.data == b"x"


@pytest.mark.parametrize("size", [1, 24, 700_000])
def test_allgather(size: int) -> None:
    """Though it is the last thing that a rank does."""
    ranks = join(4)

    def gather(rank: int) -> list[bytes]:
        endpoint, ranks[rank] = ranks[rank], None
        everything: list[bytes] = endpoint.allgather(content(size, rank))
        return everything

    results = in_threads([lambda r=r: gather(r) for r in range(4)])
    assert results == [[content(size, r) for r in range(4)]] * 4


@pytest.mark.parametrize("missing", [0, 1, 3])
@pytest.mark.parametrize("call", [lambda endpoint: endpoint.allgather(b"x"), lambda endpoint: endpoint.split(0, 0)])
def test_setting_up_names_the_missing_rank(missing: int, call: Callable[[Any], Any]) -> None:
    ranks = join(4, timeout=0.5)
    errors = in_threads([lambda r=r: call(ranks[r]) for r in range(4) if r != missing])
    assert all(isinstance(each, CommunicationTimeoutError) for each in errors)
    assert all(f"no sign of rank {missing}" in str(each) for each in errors), errors


def test_setting_up_waits_for_rank_0_as_long_as_that_waits_for_others() -> None:
    """Who goes away before would be missing in what rank 0 does next."""
    ranks = join(3, timeout=scaled(0.6))

    def come_late() -> list[bytes]:
        time.sleep(scaled(1.0))
        everything: list[bytes] = ranks[0].allgather(b"0")
        return everything

    calls: list[Callable[[], Any]] = [come_late, *(lambda r=r: ranks[r].allgather(b"%d" % r) for r in (1, 2))]
    assert in_threads(calls) == [[b"0", b"1", b"2"]] * 3


def test_what_was_said_is_heard_before_its_rank_is_given_up() -> None:
    """Though the one that waits has stood still meanwhile, here while it looks at processes."""
    ranks = join(2)
    looks: list[int] = []
    stands_still = Event()

    def is_alive(_: int) -> bool:
        looks.append(1)
        if len(looks) == 3:  # in the second round: in the first it speaks
            stands_still.set()
            time.sleep(1.5)
        return True

    def come_late() -> Any:
        stands_still.wait()
        return ranks[1].agree(30.0)

    assert in_threads([lambda: ranks[0].agree(1.0, is_alive), come_late]) == [{}] * 2


@pytest.mark.parametrize("has_ended", [False, True])
@pytest.mark.parametrize("is_full", [False, True])
def test_who_was_taken_for_dead_finds_that_out(is_full: bool, has_ended: bool) -> None:
    """However short its timeout is, although nothing more goes through the connection, and after the other's end."""
    ranks = join(2, host_timeout=0.5)
    if is_full:
        for i in range(12):
            ranks[0].send(1, 0, content(WHOLE, i)).give_up()
    assert ranks[0].agree(0.2) == {1: "has not come to recover() within 0.2 s (GRADIENTFLOW_TIMEOUT)"}
    if has_ended:
        ranks[0] = None
    assert ranks[1].agree(0.2) == {0: "has taken others for dead"}


def test_a_rank_finds_out_that_another_one_has_taken_it_for_dead_at_the_same_time() -> None:
    """The word comes between the last look at what has come and the moment at which the other one is given up."""
    looks = 0
    with ExitStack() as closing:
        other = closing.enter_context(socket.create_server(("127.0.0.1", 0)))
        network = tcp.Network()
        rank = network.join(0, [network.address, ":".join(map(str, other.getsockname()))], TOKEN)

        def is_alive(of: int) -> bool:
            nonlocal looks
            looks += of == 1  # there are two in each round
            if of == 1 and looks == 3:
                time.sleep(0.5)
            elif of == 1 and looks == 5:
                closing.enter_context(connect(network.address)).sendall(greeting(1, 0, purpose=1))
            return True

        assert rank.agree(0.3, is_alive) == {1: "has taken others for dead"}


def test_an_interrupt_ends_setting_up() -> None:
    ranks = join(2)
    ranks[1].interrupt()
    with pytest.raises(ClosedError, match="an exchange between 2 ranks"):
        ranks[1].allgather(b"x")


def test_what_ranks_gather_is_no_message_for_others() -> None:
    ranks = join(2)
    waiting = in_threads([lambda: ranks[1].allgather(b"1"), lambda: _look_for_messages(ranks[0])])
    assert waiting == [[b"0", b"1"], None]


def _look_for_messages(endpoint: Any) -> None:
    deadline = time.monotonic() + 0.3
    while time.monotonic() < deadline:
        assert endpoint.next() is None
    assert endpoint.allgather(b"0") == [b"0", b"1"]


# ---- ends ------------------------------------------------------------------------------------------------------------


def test_who_leaves_in_good_order_is_not_dead() -> None:
    ranks = join(2)
    receive = ranks[1].receive(0, 1, 1)
    finish([ranks[0].send(1, 0, b"x"), ranks[1].receive(0, 0, 1)], ranks)
    announced = ranks[1].send(0, 0, content(3 * WHOLE))
    ranks[0] = None
    for transfer in (receive, announced):
        with pytest.raises(PeerError, match="rank 0 has ended"):
            finish([transfer], ranks[1:])
    with pytest.raises(PeerError, match="rank 0 has ended"):
        finish([ranks[1].receive(0, 0, 1)], ranks[1:])
    assert ranks[1].dead() == []


@pytest.mark.parametrize("crossing", [False, True])
def test_what_was_sent_before_leaving_arrives(crossing: bool) -> None:
    """Also what the system still holds when a send to the one that has left fails, or when another connection ends."""
    ranks = join(2)
    first = [ranks[0].send(1, 0, b"x"), *([ranks[1].send(0, 0, b"y")] if crossing else [])]
    finish([*first, ranks[1].receive(0, 0, 1), *([ranks[0].receive(1, 0, 1)] if crossing else [])], ranks)
    size = 8 * WHOLE  # so that the system has learnt to hold much
    finish([ranks[0].send(1, 0, bytes(size)), ranks[1].receive(0, 0, size)], ranks)
    count = 250
    assert all(ranks[0].send(1, 7, content(900, i)).test() for i in range(count))
    del first
    ranks[0] = None
    if not crossing:
        errors = [outcome(lambda: ranks[1].send(0, 1, content(1000)).test()) for _ in range(100)]
        assert isinstance(errors[-1], PeerError)
    for i in range(count):
        receive = ranks[1].receive(0, 7, 900)
        finish([receive], ranks[1:])
        assert receive.data == content(900, i)
    assert ranks[1].dead() == []


@pytest.mark.thorough
def test_a_rank_that_is_silent_for_long_is_alive() -> None:
    """Even if it has taken nothing of what was sent for longer than a host may be silent."""
    ranks = join(2, host_timeout=1.0)
    sends = [ranks[0].send(1, 0, content(WHOLE, i)) for i in range(12)]
    assert not sends[-1].wait(7.0)
    receives = [ranks[1].receive(0, 0, WHOLE) for _ in sends]
    finish([*sends, *receives], ranks)
    assert all(each.data == content(WHOLE, i) for i, each in enumerate(receives))


@pytest.mark.thorough
def test_a_host_that_is_silent_is_not_tried_for_long_again() -> None:
    """Nobody answers at two addresses of a host, as if its link were cut."""
    with ExitStack() as closing:
        addresses = [full_listener(closing) for _ in range(2)]
        network = tcp.Network(host_timeout=1.0)
        ranks = [network.join(0, [network.address, *addresses], bytes(32))]
        for rank, seconds in ((1, "5"), (2, "0.5")):
            ranks[0].send(rank, 0, b"").give_up()
            carry_on_until(lambda rank=rank: rank in dict(ranks[0].dead()), ranks)
            assert f"no answer within {seconds} s" in dict(ranks[0].dead())[rank]


def full_listener(closing: ExitStack) -> str:
    """Give an address at which the system drops whoever comes: nobody accepts, and the queue is full."""
    listener = closing.enter_context(socket.socket())
    listener.bind(("127.0.0.1", 0))
    listener.listen(0)
    for _ in range(2):
        each = closing.enter_context(socket.socket())
        each.setblocking(False)
        each.connect_ex(listener.getsockname())
    return ":".join(map(str, listener.getsockname()))


# ---- other ways ------------------------------------------------------------------------------------------------------


def _has_ipv6() -> bool:
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError:
        return False
    return True


@pytest.mark.skipif(not _has_ipv6(), reason="no IPv6 here")
def test_ipv6() -> None:
    networks = [tcp.Network(address="::1") for _ in range(2)]
    assert networks[0].address.startswith("[::1]:")
    ranks = [n.join(r, [each.address for each in networks], bytes(32)) for r, n in enumerate(networks)]
    finish([ranks[0].send(1, 0, b"six"), receive := ranks[1].receive(0, 0, 3)], ranks)
    assert receive.data == b"six"


@pytest.mark.parametrize("address", ["", "localhost", "10.0.0.1:3", "1.2.3.4.5", "fe80::1%nothing0", "no\nhost"])
def test_addresses_that_are_none(address: str) -> None:
    with pytest.raises(GradientFlowError):
        tcp.Network(address=address)


def test_threads_that_wait_on_endpoints_of_one_process() -> None:
    ranks = join(3)
    groups = [ranks, *([endpoint.duplicate() for endpoint in ranks] for _ in range(3))]

    def ring(group: list[Any], rank: int) -> bool:
        right, left = (rank + 1) % 3, (rank - 1) % 3
        for turn in range(60):
            size = (turn * 7919) % 3000 if turn % 6 else 2 * WHOLE
            receive = group[rank].receive(left, turn, size)
            send = group[rank].send(right, turn, content(size, left + turn))
            assert receive.wait(30)
            assert send.wait(30)
            assert receive.data == content(size, (left - 1) % 3 + turn)
        return True

    assert all(each is True for each in in_threads([lambda g=g, r=r: ring(g, r) for g in groups for r in range(3)]))


# ---- random traffic against a model ----------------------------------------------------------------------------------

sizes = st.one_of(st.integers(0, 300), st.integers(0, 100_000), st.sampled_from([WHOLE, WHOLE + 1, 2 * WHOLE + 3]))
messages = st.tuples(st.integers(0, 4), st.integers(0, 4), st.integers(0, 2), sizes, st.booleans())


@settings(max_examples=30, suppress_health_check=list(HealthCheck))
@given(size=st.integers(1, 5), traffic=st.lists(messages, max_size=30), data=st.data())
def test_any_traffic(size: int, traffic: list[tuple[int, int, int, int, bool]], data: st.DataObject) -> None:
    """The model: a queue for each pair and tag. Sends, receives and progress come in any order."""
    ranks = join(size)
    queues: dict[tuple[int, int, int], list[int]] = {}
    steps: list[tuple[str, int]] = []
    for i, (sender, receiver, tag, _, _) in enumerate(traffic):
        queues.setdefault((sender % size, receiver % size, tag), []).append(i)
        steps += [("send", i), ("receive", i), ("carry on", i)]
    sends: list[Any] = []
    receives: list[tuple[Any, int]] = []
    sent = {key: iter(queue) for key, queue in queues.items()}
    awaited = {key: iter(queue) for key, queue in queues.items()}
    for step, i in data.draw(st.permutations(steps)):
        sender, receiver, tag = traffic[i][0] % size, traffic[i][1] % size, traffic[i][2]
        if step == "carry on":
            ranks[sender].make_progress()
        elif step == "send":
            j = next(sent[sender, receiver, tag])
            sends.append(ranks[sender].send(receiver, tag, content(traffic[j][3], j), traffic[j][4]))
        else:
            j = next(awaited[sender, receiver, tag])
            receives.append((ranks[receiver].receive(sender, tag, traffic[j][3]), j))
    finish([*sends, *(each for each, _ in receives)], ranks)
    assert all(each.data == content(traffic[j][3], j) for each, j in receives)
    assert all(endpoint.next() is None and endpoint.dead() == [] for endpoint in ranks)
