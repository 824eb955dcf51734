"""What comes from outside a job, or from a rank that talks nonsense, over TCP."""

from __future__ import annotations

import gc
import random
import resource
import socket
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from native import tcp
from tcp_ranks import (
    ANNOUNCED,
    BYE,
    CREDIT,
    DROPPED,
    EXCLUDED,
    FETCH,
    MESSAGE,
    PATIENCE,
    PIECE,
    TOKEN,
    WITHDRAWN,
    carry_on_until,
    connect,
    finish,
    greeting,
    header,
    is_closed,
    job_group,
    outcome,
)

from gradientflow.errors import PeerError

GROUP = job_group()


def resident_bytes() -> int:
    """Give the memory of this process."""
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def sockets() -> int:
    """Give the number of descriptors of this process."""
    return len(list(Path("/proc/self/fd").iterdir()))


@pytest.fixture
def job() -> Iterator[tuple[list[Any], str]]:
    """Give ranks 0 and 1 of 3, and the address of rank 0; who rank 2 is, the test decides."""
    networks = [tcp.Network(timeout=2.0) for _ in range(2)]
    with socket.create_server(("127.0.0.1", 0)) as last:
        addresses = [*(network.address for network in networks), f"127.0.0.1:{last.getsockname()[1]}"]
        yield [network.join(rank, addresses, TOKEN) for rank, network in enumerate(networks)], addresses[0]


def check_job(ranks: list[Any]) -> None:
    """Check that ranks 0 and 1 can talk."""
    receives = [ranks[0].receive(1, 3, 10), ranks[1].receive(0, 3, 2_000_000)]
    finish([ranks[0].send(1, 3, bytes(2_000_000)), ranks[1].send(0, 3, b"0123456789"), *receives], ranks)
    assert receives[0].data == b"0123456789"
    assert ranks[0].dead() == []


# ---- the codec -------------------------------------------------------------------------------------------------------

WHOLE: int = tcp.largest_whole
PART: int = tcp.largest_piece


@pytest.mark.parametrize(
    ("fields", "is_valid"),
    [
        ({"kind": MESSAGE, "size": WHOLE, "tag": 2**31 - 1}, True),
        ({"kind": MESSAGE, "size": WHOLE + 1}, False),
        ({"kind": MESSAGE, "tag": -1}, False),
        ({"kind": MESSAGE, "magic": 0xF0}, False),
        ({"kind": ANNOUNCED, "size": 2**60, "number": 1}, True),
        ({"kind": ANNOUNCED, "size": 2**60 + 1, "number": 1}, False),
        ({"kind": ANNOUNCED, "tag": -1, "number": 1}, False),
        ({"kind": FETCH, "number": 1}, True),
        ({"kind": FETCH, "number": 1, "size": 1}, False),
        ({"kind": DROPPED, "number": 1}, True),
        ({"kind": DROPPED, "size": 1}, False),
        ({"kind": PIECE, "size": PART}, True),
        ({"kind": PIECE, "size": PART + 1}, False),
        ({"kind": PIECE, "size": 0}, False),
        ({"kind": WITHDRAWN}, True),
        ({"kind": WITHDRAWN, "size": 1}, False),
        ({"kind": CREDIT, "size": 1}, True),
        ({"kind": CREDIT, "size": 2**64 - 1}, False),
        ({"kind": BYE}, True),
        ({"kind": BYE, "size": 1}, False),
        ({"kind": EXCLUDED}, True),
        ({"kind": EXCLUDED, "size": 1}, False),
        ({"kind": EXCLUDED + 1}, False),
        ({"kind": 255}, False),
    ],
)
def test_headers(fields: dict[str, int], is_valid: bool) -> None:
    assert tcp.is_header(header(**fields)) == is_valid


@given(st.binary(min_size=32, max_size=32))
def test_random_bytes_are_no_header(data: bytes) -> None:
    kind, magic, unused, _, _, size, _ = struct.unpack("<BBHiQQQ", data)
    if magic != 0xF1 or unused != 0 or kind > BYE or size > 2**60:
        assert not tcp.is_header(data)
    if tcp.is_header(data) and kind in (MESSAGE, PIECE):
        assert size <= WHOLE


def test_greetings() -> None:
    assert tcp.is_greeting(greeting(1, 0), 0, 2, TOKEN)
    assert tcp.is_greeting(greeting(1, 0, purpose=1), 0, 2, TOKEN)
    others = [greeting(0, 0), greeting(2, 0), greeting(1, 1), greeting(1, 0, version=1), greeting(1, 0, bytes(32))]
    others.append(greeting(1, 0, purpose=2))
    assert not any(tcp.is_greeting(each, 0, 2, TOKEN) for each in others)
    for place in range(48):
        if not 8 <= place < 12:  # who says it
            changed = bytearray(greeting(1, 0))
            changed[place] ^= 0x40
            assert not tcp.is_greeting(bytes(changed), 0, 2, TOKEN)


# ---- strangers -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "says",
    [
        b"GET / HTTP/1.1\r\nHost: somewhere\r\n\r\n".ljust(48),
        bytes(48),
        bytes(100_000),
        greeting(1, 0, bytes(32)),
        greeting(1, 0, TOKEN[:31] + b"?"),
        greeting(0, 0),
        greeting(7, 0),
        greeting(2**32 - 1, 0),
        greeting(1, 1),
        greeting(1, 0, version=9),
    ],
)
def test_who_does_not_show_the_token_is_sent_away(job: tuple[list[Any], str], says: bytes) -> None:
    ranks, address = job
    stranger = connect(address)
    stranger.sendall(says)
    carry_on_until(lambda: is_closed(stranger), ranks)
    check_job(ranks)


def test_a_greeting_may_come_byte_by_byte(job: tuple[list[Any], str]) -> None:
    ranks, address = job
    stranger = connect(address)
    receive = ranks[0].receive(2, 0, 3)
    for byte in greeting(2, 0) + header(MESSAGE, 0, GROUP, 3) + b"abc":
        stranger.sendall(bytes([byte]))
        ranks[0].make_progress(0.001)
    finish([receive], ranks)
    assert receive.data == b"abc"


def test_scanners_and_slow_ones_do_not_disturb(job: tuple[list[Any], str]) -> None:
    """Also not ranks that connect at the same time; and few descriptors are kept."""
    ranks, address = job
    before = sockets()
    slow = [connect(address) for _ in range(30)]
    for turn in range(1500):
        scanner = connect(address)
        if turn % 3 == 0:
            scanner.sendall(greeting(1, 0)[: turn % 48])
        if turn % 100 == 0:
            for each in slow:
                if not is_closed(each):
                    each.send(b"G")
        if turn == 700:
            check_job(ranks)
        scanner.close()
        for endpoint in ranks:
            endpoint.make_progress()
    held = [connect(address) for _ in range(300)]
    for _ in range(20):
        for endpoint in ranks:
            endpoint.make_progress()
    assert sockets() < before + len(slow) + len(held) + 100
    check_job(ranks)


@pytest.mark.thorough
def test_a_rank_is_let_in_however_late_it_shows_the_token(job: tuple[list[Any], str]) -> None:
    """It may have been stopped between its connection and its greeting."""
    ranks, address = job
    late = connect(address)
    ranks[0].make_progress(6.0)
    late.sendall(greeting(2, 0) + header(MESSAGE, 0, GROUP, 3) + b"abc")
    receive = ranks[0].receive(2, 0, 3)
    finish([receive], ranks)
    assert receive.data == b"abc"


def test_a_process_without_descriptors_goes_on(job: tuple[list[Any], str]) -> None:
    """Nobody new comes in meanwhile, no core is burned, and afterwards all is as it was."""
    ranks, address = job
    check_job(ranks)
    stranger = connect(address)
    stranger.sendall(greeting(2, 0) + header(MESSAGE, 0, GROUP, 3) + b"abc")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    lowest = socket.socket()
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest.fileno(), hard))
    lowest.close()
    filler = []
    try:
        while True:
            filler.append(socket.socket())
    except OSError:
        pass
    try:
        before = time.process_time()
        ranks[0].make_progress(1.0)
        assert time.process_time() - before < 0.5
        check_job(ranks)
        with pytest.raises(Exception, match="cannot make a socket for a connection to"):
            ranks[1].send(2, 0, b"x")
    finally:
        for each in filler:
            each.close()
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    receive = ranks[0].receive(2, 0, 3)
    finish([receive], ranks[:1])
    assert receive.data == b"abc"


# ---- ranks that talk nonsense ----------------------------------------------------------------------------------------

MIB = bytes(WHOLE)
NONSENSE = {
    "no header": [bytes(32)],
    "a wrong kind": [header(99)],
    "a message that is too long": [header(MESSAGE, 0, GROUP, WHOLE + 1)],
    "lengths beyond all memory": [header(ANNOUNCED, 0, GROUP, 2**63, 1)],
    "an announcement without a number": [header(ANNOUNCED, 0, GROUP, 100, 0)],
    "an announcement twice": [header(ANNOUNCED, 0, GROUP, 100, 1), header(ANNOUNCED, 0, GROUP, 100, 1)],
    "a piece of nothing": [header(PIECE, size=10, number=1), bytes(10)],
    "a fetch of nothing": [header(FETCH, number=5)],
    "more credit than there is": [header(CREDIT, size=2**40)],
    "more messages than credit": [header(MESSAGE, 1, GROUP, WHOLE) + MIB] * 17,
    "more empty messages than credit": [header(MESSAGE, 1, GROUP) * 140_000],
    "more groups than credit": [b"".join(header(MESSAGE, 1, 10 + i) for i in range(140_000))],
    "a bye and something else": [header(BYE), header(MESSAGE, 0, GROUP, 3), b"abc"],
}


@pytest.mark.parametrize(
    "says",
    [
        pytest.param(says, id=name, marks=pytest.mark.thorough if sum(map(len, says)) > 1 << 20 else ())
        for name, says in NONSENSE.items()
    ],
)
def test_nonsense_with_a_token_loses_that_rank(job: tuple[list[Any], str], says: list[bytes]) -> None:
    ranks, address = job
    stranger = connect(address)
    before = resident_bytes()
    awaited = [ranks[0].receive(2, 0, 100), ranks[0].receive(2, 0, 100)]
    stranger.sendall(greeting(2, 0))
    for each in says:
        stranger.settimeout(0)
        rest = each
        deadline = time.monotonic() + PATIENCE
        while rest and time.monotonic() < deadline:
            try:
                rest = rest[stranger.send(rest[: 1 << 18]) :]
            except BlockingIOError:
                pass
            except ConnectionError:
                break
            ranks[0].make_progress()
    for each in awaited:
        with pytest.raises(PeerError, match=r"rank 2 has (died: the connection to .* has ended: |ended)"):
            finish([each], ranks)
    assert [rank for rank, _ in ranks[0].dead()] == ([] if header(BYE) in says else [2])
    check_nonsense_is_over(ranks, before)


def check_nonsense_is_over(ranks: list[Any], before: int) -> None:
    """Check that only rank 2 is lost, and memory is that of its credit at most."""
    assert {rank for rank, _ in ranks[0].dead()} <= {2}
    assert resident_bytes() < before + 120 * WHOLE
    receives = [ranks[0].receive(1, 3, 10), ranks[1].receive(0, 3, 10)]
    finish([ranks[0].send(1, 3, b"0123456789"), ranks[1].send(0, 3, b"0123456789"), *receives], ranks)


def test_a_withdrawal_through_another_connection_is_nonsense(job: tuple[list[Any], str]) -> None:
    """Memory of a receive that has ended is not written to by a piece that was under way."""
    ranks, address = job
    one, two = connect(address), connect(address)
    one.sendall(greeting(2, 0) + header(ANNOUNCED, 0, GROUP, 1000, 1))
    two.sendall(greeting(2, 0))
    receive = ranks[0].receive(2, 0, 1000)
    ranks[0].make_progress(0.1)
    one.sendall(header(PIECE, size=1000, number=1) + bytes(10))
    ranks[0].make_progress(0.1)
    two.sendall(header(WITHDRAWN, number=1))
    with pytest.raises(PeerError, match="messages came through two connections"):
        finish([receive], ranks)


@pytest.mark.parametrize(
    "seed",
    [
        *range(5),
        *(pytest.param(seed, marks=pytest.mark.thorough if seed < 20 else pytest.mark.slow) for seed in range(5, 60)),
    ],
)
def test_random_talk(job: tuple[list[Any], str], seed: int) -> None:
    """Whatever a rank says, valid headers included: the others go on, and every call ends."""
    chance = random.Random(seed)
    ranks, address = job
    before = resident_bytes()
    stranger = connect(address)
    stranger.settimeout(0)
    transfers = [ranks[0].receive(2, tag, 3000) for tag in (0, 1, 1)]
    transfers += [ranks[0].send(2, 0, bytes(size), bool(size % 2)) for size in (5, 70_000, 2_000_001)]
    stream = bytearray(greeting(2, 0))
    announced = 0
    for _ in range(chance.randrange(1, 60)):
        kind = chance.choice([MESSAGE] * 4 + [ANNOUNCED] * 3 + [FETCH, DROPPED, PIECE, PIECE, WITHDRAWN, CREDIT])
        size = 0
        if kind in (MESSAGE, ANNOUNCED, PIECE):
            size = chance.choice([0, 1, 40, 3000, 3001, 60_000]) or int(kind == PIECE)
        announced += kind == ANNOUNCED
        number = announced if kind == ANNOUNCED else chance.randrange(1, 4)
        group = GROUP if chance.random() < 0.9 else chance.randrange(2**64)
        stream += header(kind, chance.randrange(3), group, size, number)
        if kind in (MESSAGE, PIECE):
            stream += chance.randbytes(size)
    for _ in range(chance.randrange(3)):
        stream[chance.randrange(48, len(stream))] ^= 1 << chance.randrange(8)
    rest = bytes(stream)
    while rest:
        try:
            rest = rest[stream_step(stranger, rest, chance) :]
        except ConnectionError:
            break
        ranks[0].make_progress()
        if chance.random() < 0.3 and transfers:
            transfers.pop(chance.randrange(len(transfers))).give_up(keep=chance.random() < 0.5)
        elif chance.random() < 0.3 and (message := ranks[0].next()) is not None and chance.random() < 0.7:
            transfers.append(message.receive())
    stranger.close()
    for each in transfers:
        error = outcome(lambda each=each: finish([each], ranks))
        assert error is None or "rank 2 has" in str(error)
    check_nonsense_is_over(ranks, before)


def stream_step(stranger: socket.socket, rest: bytes, chance: random.Random) -> int:
    """Send some of it."""
    try:
        return stranger.send(rest[: chance.choice([1, 31, 33, 1000, 100_000])])
    except BlockingIOError:
        return 0
