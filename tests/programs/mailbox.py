"""Messages through mailboxes: any source, many tags, unknown sizes, threads, closing, ranks that die."""

from __future__ import annotations

import gc
import os
import random
import resource
import signal
import sys
import threading
import time
import weakref
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
from marks import on_ranks
from support import RANK, SIZE, WORLD, raises, run, run_checks, scaled

import gradientflow as gf
from gradientflow.errors import (
    ArgumentError,
    ArgumentTypeError,
    ClosedError,
    CommunicationTimeoutError,
    MismatchError,
    PeerError,
    SystemCallError,
)
from gradientflow.mailbox import Mailbox, MessageRequest, Tags, make_mailbox

RIGHT, LEFT = (RANK + 1) % SIZE, (RANK - 1) % SIZE
SIZES = [0, 1, 7, 4096, 70_000, 1_000_003]
LATE = scaled(30.0)  # seconds after which something hangs


class Box:
    """A mailbox for arrays of bytes."""

    def __init__(self, comm: gf.Communicator) -> None:
        self.native: Mailbox = make_mailbox(comm, "the mailbox")
        self.inner: Tags = self.native.draw(5)
        self.tags: Tags = self.native.draw_rest()

    def send(self, x: np.ndarray, dest: int, tag: int) -> MessageRequest:
        return self.native.send(x.ctypes.data, x.nbytes, x, dest, self.tags.at(tag))

    def receive(self, x: np.ndarray, source: int | None, tag: int) -> MessageRequest:
        return self.native.receive(x.ctypes.data, x.nbytes, x, source, self.tags.at(tag))


@contextmanager
def box(comm: gf.Communicator) -> Iterator[Box]:
    made = Box(comm)
    yield made
    made.native.close(True)


def pattern(size: int, *key: int) -> np.ndarray:
    return np.random.default_rng(key).integers(0, 256, size, np.uint8)


def empty(size: int) -> np.ndarray:
    return np.full(size, 77, np.uint8)


# ---- what arrives ----------------------------------------------------------------------------------------------------


@on_ranks(1, 2, 3)
def check_any_order(comm: gf.Communicator) -> None:
    """Many messages at once; odd tags are received from the rank that sends, even ones from any."""
    for seed in range(4):
        plan = random.Random(seed)
        size_of = {tag: plan.choice(SIZES) for tag in range(40)}
        messages = [(plan.randrange(SIZE), plan.randrange(SIZE), plan.randrange(40)) for _ in range(60 * SIZE)]
        own = random.Random(seed * 100 + RANK)
        with box(comm) as mail:
            sends = [m for m in messages if m[0] == RANK]  # in this order, which counts for one tag
            receives = [m for m in messages if m[1] == RANK]
            own.shuffle(receives)
            actions: list[tuple[str, Any]] = [("send", m) for m in sends] + [("receive", m) for m in receives]
            slots = [kind for kind, _ in actions]
            own.shuffle(slots)
            queues = {"send": iter(sends), "receive": iter(receives)}
            sent: Counter[Any] = Counter()
            expected: list[tuple[MessageRequest, np.ndarray, int]] = []
            sending = []
            for kind in slots:
                source, dest, tag = message = next(queues[kind])
                if kind == "send":
                    data = pattern(size_of[tag], *message, sent[message])
                    sending.append(mail.send(data, dest, tag))
                    sent[message] += 1
                else:
                    x = empty(size_of[tag])
                    expected.append((mail.receive(x, source if tag % 2 else None, tag), x, tag))
            got: Counter[Any] = Counter()
            for request, x, tag in expected:
                request.wait(LATE)
                message = (request.source, RANK, tag)
                assert (x == pattern(size_of[tag], *message, got[message])).all(), (seed, message)
                got[message] += 1
            assert got == Counter(receives)
            for request in sending:
                request.wait(LATE)
                assert request.done
            WORLD.Barrier()


@on_ranks(1, 3)
def check_unknown_sizes(comm: gf.Communicator) -> None:
    """Rank 0 serves whoever sends, without a receive posted before, as a server does."""
    plan = random.Random(5)
    messages = [(plan.randrange(SIZE), plan.randrange(3), plan.choice(SIZES)) for _ in range(30 * SIZE)]
    with box(comm) as mail:
        sending = [
            mail.native.send(data.ctypes.data, data.nbytes, data, 0, mail.inner.at(tag))
            for i, (source, tag, size) in enumerate(messages)
            if source == RANK
            for data in [pattern(size, i)]
        ]
        if RANK == 0:
            mail.send(empty(3), 0, 1)  # with another tag
            left = list(enumerate(messages))
            while left:
                arrival = mail.native.next(mail.inner, timeout=LATE)
                assert arrival is not None
                i, (source, tag, size) = next(
                    entry
                    for entry in left
                    if (entry[1][0], mail.inner.at(entry[1][1])) == (arrival.source, arrival.tag)
                )
                assert arrival.nbytes == size
                x = empty(size)
                request = mail.native.take(arrival, x.ctypes.data, x)
                request.wait(LATE)
                assert request.source == source
                assert (x == pattern(size, i)).all()
                left.remove((i, (source, tag, size)))
                with raises(ArgumentError, "has been received already"):
                    mail.native.take(arrival, x.ctypes.data, x)
            begin = time.monotonic()
            assert mail.native.next(mail.inner, source=SIZE - 1, timeout=0.05) is None
            assert 0.05 <= time.monotonic() - begin < LATE
            other = mail.native.next(mail.tags, timeout=LATE)
            assert other is not None
            assert other.nbytes == 3
        for request in sending:
            request.wait(LATE)
        WORLD.Barrier()


def check_wrong_length(comm: gf.Communicator) -> None:
    """Shorter and longer ones; both are gone, and what comes after them arrives."""
    with box(comm) as mail:
        x = empty(12)
        for size in (8, 16, 3_000_000):
            mail.send(empty(size), RIGHT, 4)
            request = mail.receive(x, LEFT, 4)
            wanted = f"the receive from rank {LEFT} with tag 4 of 12 bytes on rank {RANK}", f"{size} from rank {LEFT}"
            with raises(MismatchError, *wanted):
                request.wait(LATE)
            assert (x == 77).all()
        sending = mail.send(pattern(12, RANK), RIGHT, 4)
        mail.receive(x, None, 4).wait(LATE)
        assert (x == pattern(12, LEFT)).all()
        sending.wait(LATE)
        WORLD.Barrier()


def check_timeouts(comm: gf.Communicator) -> None:
    with box(comm) as mail:
        x = empty(100)
        request = mail.receive(x, LEFT, 0)
        wanted = f"the receive from rank {LEFT} with tag 0 was not done within 0.05 s on rank {RANK}; it goes on"
        for _ in range(2):
            with raises(CommunicationTimeoutError, wanted):
                request.wait(0.05)
        with raises(CommunicationTimeoutError, "was not done within 0 s"):
            request.wait(0)
        assert not request.ended_by(0.01)
        assert not request.done
        with raises(ArgumentError, "timeout is not a number"):
            request.wait(float("nan"))
        WORLD.Barrier()
        mail.send(empty(3), RIGHT, 9)
        time.sleep(0.1)
        WORLD.Barrier()
        with raises(CommunicationTimeoutError, f"Nobody has asked for 3 bytes from rank {LEFT} with tag 9"):
            request.wait(0.05)
        WORLD.Barrier()
        mail.send(pattern(100, RANK), RIGHT, 0)
        request.wait(LATE)
        request.wait(0)
        assert (x == pattern(100, LEFT)).all()
        WORLD.Barrier()


@on_ranks(1, 3)
def check_cancel(comm: gf.Communicator) -> None:
    """A receive that is given up takes nothing from those after it."""
    with box(comm) as mail:
        x, y = empty(3), empty(3)
        first, second = mail.receive(x, LEFT, 0), mail.receive(y, None, 0)
        assert first.cancel()
        assert first.done
        with raises(ClosedError, f"the receive from rank {LEFT} with tag 0 was given up: it has been canceled"):
            first.wait()
        WORLD.Barrier()
        mail.send(pattern(3, RANK), RIGHT, 0)
        second.wait(LATE)
        assert (y == pattern(3, LEFT)).all()
        assert (x == 77).all()
        assert not first.cancel()
        assert not second.cancel()
        WORLD.Barrier()


def check_nobody_waits(comm: gf.Communicator) -> None:
    """Large messages arrive although no rank asks, and nobody keeps their memory or requests."""
    with box(comm) as mail:
        x = empty(5_000_000)
        done = threading.Event()
        request = mail.receive(x, LEFT, 1)
        request.when_ended(done.set)
        data = pattern(5_000_000, RANK)
        kept = weakref.ref(data)
        mail.send(data, RIGHT, 1)
        del data
        assert done.wait(LATE)
        assert request.done
        assert (x == pattern(5_000_000, LEFT)).all()
        begin = time.monotonic()
        while kept() is not None:
            assert time.monotonic() - begin < LATE, "the memory of a message that has been sent is kept"
            time.sleep(0.01)
        later = threading.Event()
        request.when_ended(later.set)  # which it has
        assert later.wait(LATE)
        WORLD.Barrier()


def check_threads(comm: gf.Communicator) -> None:
    """Several threads wait in one mailbox, others in mailboxes of their own."""
    with box(comm) as shared, box(comm) as first, box(comm) as second:
        failures: list[BaseException] = []

        def exchange(mail: Box, tag: int) -> None:
            try:
                for turn in range(30):
                    size = SIZES[turn % 5]
                    x = empty(size)
                    request = mail.receive(x, LEFT, tag)
                    sending = mail.send(pattern(size, RANK, tag, turn), RIGHT, tag)
                    request.wait(LATE)
                    sending.wait(LATE)
                    assert (x == pattern(size, LEFT, tag, turn)).all()
            except BaseException as error:
                failures.append(error)

        boxes = [shared, shared, shared, first, second]
        threads = [threading.Thread(target=exchange, args=[mail, i], daemon=True) for i, mail in enumerate(boxes)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(LATE)
            assert not thread.is_alive(), "a thread hangs"
        assert not failures, failures
        WORLD.Barrier()


def check_dropped_messages(comm: gf.Communicator) -> None:
    """What is taken out of a mailbox and dropped is gone, and its sender need not wait; another one has no say."""
    with box(comm) as mail, box(comm) as other:
        sending = mail.send(empty(9_000_000), RIGHT, 1)
        arrival = mail.native.next(mail.tags, timeout=LATE)
        assert arrival is not None
        x = empty(9_000_000)
        with raises(ArgumentError, "the message has come to another mailbox than the mailbox"):
            other.native.take(arrival, x.ctypes.data, x)
        del arrival
        sending.wait(LATE)
        WORLD.Barrier()


def check_forks(comm: gf.Communicator) -> None:
    """A forked process is told so at once, whatever the threads of this one were doing."""
    with box(comm) as mail:
        request = mail.receive(empty(1), LEFT, 0)
        assert request.source == -1
        is_over = threading.Event()

        def ask() -> None:
            while not is_over.is_set():
                assert not request.done

        threads = [threading.Thread(target=ask, daemon=True) for _ in range(2)]
        for thread in threads:
            thread.start()
        for _ in range(10):
            time.sleep(0.01)
            if (child := os.fork()) == 0:
                signal.signal(signal.SIGALRM, signal.SIG_DFL)
                signal.alarm(int(LATE))
                with raises(ClosedError, "belongs to the process that this one was forked from"):
                    mail.send(empty(1), RIGHT, 1)
                os._exit(0)
            assert os.waitpid(child, 0)[1] == 0, "a forked process has not been told"
        is_over.set()
        for thread in threads:
            thread.join(LATE)
        WORLD.Barrier()


@on_ranks(1, 3)
def check_tags(comm: gf.Communicator) -> None:
    with box(comm) as mail:
        assert mail.inner.count == 5
        assert mail.tags.count >= 32767 - 5
        places = {mail.inner.at(i) for i in range(5)}
        assert len(places) == 5
        assert not places & {mail.tags.at(0), mail.tags.at(mail.tags.count - 1)}
        highest = mail.tags.count - 1
        for wrong in (-1, highest + 1, 1 << 40, 1 << 80):
            with raises(ArgumentError, "tag"):
                mail.tags.at(wrong)
            with raises(ArgumentError, "tag"):
                mail.native.send(0, 0, None, RIGHT, wrong if wrong != highest + 1 else wrong + 10)
        with raises(ArgumentError, "1 tags cannot be drawn: there are 0 left"):
            mail.native.draw(1)
        with raises(ArgumentError, f"rank {SIZE} does not exist", f"0 to {SIZE - 1}"):
            mail.send(empty(1), SIZE, 0)
        x, y = empty(1), empty(1)
        for ask in (lambda rank: mail.receive(x, rank, 0), lambda rank: mail.native.next(mail.tags, rank, 0)):
            with raises(ArgumentError, f"rank {SIZE} does not exist"):
                ask(SIZE)
            with raises(ArgumentError, "source is the number of a rank, or None, not -1"):
                ask(-1)
            with raises(ArgumentTypeError, "source is the number of a rank, or None, not 'a' (str)"):
                ask("a")
        requests = [mail.receive(x, LEFT, 0), mail.receive(y, LEFT, highest)]
        mail.send(np.full(1, 2, np.uint8), RIGHT, highest)
        mail.send(np.full(1, 1, np.uint8), RIGHT, 0)
        for request in requests:
            request.wait(LATE)
        assert (x[0], y[0]) == (1, 2)
        WORLD.Barrier()


# ---- the end ---------------------------------------------------------------------------------------------------------


def check_arguments_that_do_not_convert(comm: gf.Communicator) -> None:
    """Every call refuses them in Python, and the mailbox and its requests go on."""
    with box(comm) as mail:
        native: Any = mail.native
        x, tag = empty(3), mail.tags.at(0)
        for wrong in (-1, "3", None, 1 << 80):
            for call in (
                lambda wrong: native.draw([wrong]),
                lambda wrong: native.send(0, wrong, None, RIGHT, tag),
                lambda wrong: native.send(wrong, 0, None, RIGHT, tag),
                lambda wrong: native.receive(0, wrong, None, LEFT, tag),
                lambda wrong: native.receive(wrong, 0, None, LEFT, tag),
                lambda wrong: native.take(wrong, 0, None),
                lambda wrong: native.next(wrong),
                lambda wrong: native.close([wrong]),
            ):
                with raises(TypeError, "incompatible function arguments"):
                    call(wrong)
        request = mail.receive(x, LEFT, 0)
        mail.send(pattern(3, RANK), RIGHT, 0)
        request.wait(LATE)
        assert (x == pattern(3, LEFT)).all()
        WORLD.Barrier()


@on_ranks(1, 3)
def check_letters_keep_their_mailbox(comm: gf.Communicator) -> None:
    """It is closed when the interpreter exits, so it stays for as long as a request does."""
    mail = Box(comm)
    x = empty(3)
    request = mail.receive(x, LEFT, 0)
    mail.send(pattern(3, RANK), RIGHT, 0)
    kept = weakref.ref(mail.native)
    del mail
    gc.collect()
    assert kept() is not None
    request.wait(LATE)
    WORLD.Barrier()
    del request
    gc.collect()
    assert kept() is None


@on_ranks(1, 2, 3)
def check_closing(comm: gf.Communicator) -> None:
    """One rank after the other closes; those that wait for it hear of it, what it has sent before arrives."""
    for orderly in (True, False):
        mail = Box(comm)
        x, y = empty(10), empty(10)
        before, after = mail.receive(x, LEFT, 1), mail.receive(y, LEFT, 1)
        own = mail.receive(empty(1), RANK, 2)
        heard = threading.Event()
        after.when_ended(heard.set)
        mail.send(pattern(10, RANK), RIGHT, 1)
        before.wait(LATE)
        assert (x == pattern(10, LEFT)).all()
        WORLD.Barrier()
        if RANK == 0:
            if SIZE > 1:
                time.sleep(0.05)
            mail.native.close(orderly)
        elif RANK == 1:
            how = "rank 0 has closed the mailbox" if orderly else "rank 0 has given up"
            with raises(PeerError, f"{how} while rank 1 waited in the receive from rank 0 with tag 1"):
                after.wait(LATE)
            with raises(PeerError, how):
                mail.receive(x, 0, 3).wait(LATE)
            with raises(PeerError, how, "the send to rank 0 with tag 3"):
                mail.send(x, 0, 3).wait(LATE)
            if SIZE == 2:
                with raises(PeerError, "all other ranks have closed the mailbox"):
                    mail.receive(x, None, 3).wait(LATE)
            else:
                assert not mail.receive(x, None, 3).ended_by(0.1)
        WORLD.Barrier()
        mail.native.close(orderly)
        mail.native.close(orderly)
        assert after.done  # for rank LEFT, or this one, has closed
        with suppress(ClosedError, PeerError):
            after.wait(0)
            raise AssertionError("no error")
        with raises(ClosedError, f"the receive from rank {RANK} with tag 2 was given up: the mailbox has been closed"):
            own.wait()
        assert heard.wait(LATE)
        with raises(ClosedError, "the mailbox has been closed"):
            mail.send(x, RIGHT, 1)
        with raises(ClosedError, "the mailbox has been closed"):
            mail.native.next(mail.tags, timeout=0)
        WORLD.Barrier()


@on_ranks(1, 3)
def check_untaken(comm: gf.Communicator) -> None:
    """Nobody takes a large message: its sender hears of it, and mailboxes that come next are not disturbed."""
    for turn in range(3):
        orderly = turn == 0  # which waits a second for whoever might take it
        mail = Box(comm)
        small, large = mail.send(empty(5), RIGHT, 0), mail.send(empty(9_000_000), RIGHT, 0)
        small.wait(LATE)
        WORLD.Barrier()
        if RANK == 0 and SIZE > 1:
            mail.native.close(orderly)
        elif RANK == SIZE - 1 and SIZE > 1:
            with raises(PeerError, "rank 0 has closed the mailbox" if orderly else "rank 0 has given up"):
                large.wait(LATE)
        WORLD.Barrier()
        if turn < 2:
            mail.native.close(orderly)
            assert large.done
        del mail, small, large
        gc.collect()
    with box(comm) as mail:
        x = empty(1000)
        request = mail.receive(x, None, 0)
        sending = mail.send(pattern(1000, RANK), RIGHT, 0)
        request.wait(LATE)
        sending.wait(LATE)
        assert (x == pattern(1000, LEFT)).all()
        WORLD.Barrier()


def check_closing_twice_at_once(comm: gf.Communicator) -> None:
    """The second is not done before the first, which still waits for what nobody takes."""
    mail = Box(comm)
    sending = mail.send(empty(9_000_000), RIGHT, 0)
    first = threading.Thread(target=mail.native.close, args=[True], daemon=True)
    first.start()
    with suppress(ClosedError):
        while True:
            mail.receive(empty(1), LEFT, 1)
            time.sleep(0.001)
    mail.native.close(False)
    assert sending.done
    first.join(LATE)
    WORLD.Barrier()


def check_callbacks_that_close(comm: gf.Communicator) -> None:
    mail = Box(comm)
    closed = threading.Event()

    def close() -> None:
        mail.native.close(True)
        closed.set()

    request = mail.receive(empty(3), LEFT, 0)
    mail.send(empty(3), RIGHT, 0)
    request.when_ended(close)
    assert closed.wait(LATE)
    with raises(ClosedError, "has been closed"):
        mail.send(empty(3), RIGHT, 0)
    WORLD.Barrier()


def large() -> None:
    """Too long for a number of 32 bits, of known and of unknown length."""
    size = (1 << 31) + 5
    with gf.init() as comm, box(comm) as mail:
        x = np.empty(size if RANK < 2 else 0, np.uint8)
        for turn in (0, 1):
            if turn == RANK:
                x[:] = 3 + turn
                x[-1] = 9
                mail.send(x, 1 - turn, 0).wait(LATE)
            elif 1 - turn == RANK:
                x[:] = 0
                if turn == 0:
                    mail.receive(x, None, 0).wait(LATE)
                else:
                    arrival = mail.native.next(mail.tags, timeout=LATE)
                    assert arrival is not None
                    assert arrival.nbytes == size
                    mail.native.take(arrival, x.ctypes.data, x).wait(LATE)
                assert (x[:-1] == 3 + turn).all()
                assert x[-1] == 9
            WORLD.Barrier()


def death(how: str) -> None:
    """The last rank dies; the others wait for it, with all that is under way."""
    with gf.init() as comm:
        mail = Box(comm)
        x = empty(9_000_000)
        kept = mail.send(x, SIZE - 1, 5)
        z = empty(4)
        request = mail.receive(z, None, 7)
        WORLD.Barrier()
        if RANK == SIZE - 1:
            mail.send(empty(4), 0, 6)
            time.sleep(0.1)
            os._exit(1) if how == "exit" else os.kill(os.getpid(), 9)
        y = empty(4)
        if RANK == 0:
            mail.receive(y, SIZE - 1, 6).wait(LATE)  # what it has sent before
        with raises(PeerError, f"rank {SIZE - 1} has died"):
            mail.receive(y, SIZE - 1, 6).wait(LATE)
        with raises(PeerError, f"rank {SIZE - 1} has died"):
            kept.wait(LATE)
        # The others go on, also with what was posted before: whether MPI tells of the death first or last.
        mail.send(pattern(4, RANK), 1 - RANK, 7)
        request.wait(LATE)
        assert (z == pattern(4, 1 - RANK)).all()
        mail.native.close(False)
        print(f"rank {RANK} has heard", flush=True)
        time.sleep(1)
        os._exit(0)


def no_thread() -> None:
    """The operating system has no thread left; where it has, messages go on as if nothing had been."""
    with gf.init() as comm, box(comm) as mail:
        x, y = empty(3), pattern(3, RANK)
        status = Path("/proc/self/status").read_text()
        used = next(int(line.split()[1]) << 10 for line in status.splitlines() if line.startswith("VmSize"))
        before = resource.getrlimit(resource.RLIMIT_AS)
        resource.setrlimit(resource.RLIMIT_AS, (used + (1 << 20), before[1]))  # less than the stack of a thread
        is_over = threading.Event()
        try:
            with suppress(RuntimeError):  # once they have the stacks that were left over
                while True:
                    threading.Thread(target=is_over.wait, daemon=True).start()
            for start in (lambda: mail.receive(x, LEFT, 0), lambda: mail.send(y, RIGHT, 0)):
                with raises(SystemCallError, "cannot start the thread of a mailbox: "):
                    start()
            with raises(SystemCallError, "cannot start the progress thread of a communicator: "):
                comm.allreduce_async(y)
        finally:
            resource.setrlimit(resource.RLIMIT_AS, before)
            is_over.set()
        sending, request = mail.send(y, RIGHT, 0), mail.receive(x, LEFT, 0)
        sending.wait(LATE)
        request.wait(LATE)
        assert (x == pattern(3, LEFT)).all()
        comm.allreduce_async(y).wait()
        WORLD.Barrier()


def leave_open() -> None:
    """End with everything under way, in another order on every rank."""
    comm = gf.init()
    boxes = [Box(comm) for _ in range(3)]
    kept = [mail.receive(empty(5), source, 1) for mail in boxes for source in (None, LEFT)]
    for request in kept:
        request.when_ended(lambda: None)
    for request in kept:  # threads that nobody ends, and some that keep a mailbox which nobody else has
        threading.Thread(target=request.ended_by, daemon=True).start()
    kept += [mail.send(empty(3_000_000), RIGHT, 2) for mail in boxes]
    time.sleep(0.1 * (RANK % 3))
    if RANK % 2:
        comm.close()
    del boxes[RANK % 3 :]
    sys.modules["kept"] = kept  # type: ignore[assignment]


def main() -> None:
    what = sys.argv[1] if len(sys.argv) > 1 else "checks"
    if what == "checks":
        run_checks(sends=True)
    elif what == "large":
        large()
    elif what == "no-thread":
        no_thread()
    elif what == "leave":
        leave_open()
    else:
        death(what)


run(main)
