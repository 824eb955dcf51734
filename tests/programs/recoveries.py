"""comm.recover(), and loops that go on, where nobody dies: what ends with the old communicator, what may not differ.

The argument: over what, ``mpi`` or ``tcp``, which is also what it is without.
"""

from __future__ import annotations

import sys
import threading
import time
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from unittest import SkipTest

import numpy as np
from marks import on_ranks
from support import RANK, SIZE, WORLD, communicator, over, raises, run_checks
from world import HAS_MPI

import gradientflow as gf
from gradientflow.errors import (
    AbandonedError,
    ArgumentError,
    ArgumentTypeError,
    ClosedError,
    CommunicationTimeoutError,
    GradientFlowError,
    MismatchError,
    PeerError,
)
from gradientflow.mailbox import make_mailbox
from gradientflow.training.handover import hand_over

EVERYBODY = tuple(range(SIZE))
TRANSPORT = sys.argv[1] if sys.argv[1:] else "tcp"


def works(comm: gf.Communicator) -> None:
    for count in (3, 30_000):
        assert (comm.allreduce(np.full(count, comm.rank + 1.0)) == comm.size * (comm.size + 1) // 2).all()
    WORLD.Barrier()


@contextmanager
def fails() -> Iterator[None]:
    """Expect some error: which one depends on who is first."""
    try:
        yield
    except (ClosedError, CommunicationTimeoutError, PeerError):
        return
    raise AssertionError("no error")


@on_ranks(2, 3)
def check_all_come_along(comm: gf.Communicator) -> None:
    array = comm.empty(1000)
    array[:] = RANK
    WORLD.Barrier()  # recover() ends what others have under way
    for _ in range(3):
        new = comm.recover()
        assert comm.closed
        assert (new.rank, new.size, new.recovered_from, new.lost) == (RANK, SIZE, EVERYBODY, ())
        assert new.describe()["nodes"] == comm.describe()["nodes"]
        works(new)
        assert (array == RANK).all()
        with raises(ClosedError):
            comm.allreduce(np.ones(3))
        with raises(ClosedError):
            comm.recover()
        comm = new
    comm.close()


def check_first_has_no_origin(comm: gf.Communicator) -> None:
    assert comm.recovered_from is None
    assert comm.lost == ()


def check_settings_stay(_: gf.Communicator) -> None:
    with gf.init(config=gf.Config(timeout=77, transport=TRANSPORT)).recover() as comm:
        assert comm.describe()["settings"]["timeout"] == "77"


def check_parts_stay(comm: gf.Communicator) -> None:
    part = comm.split(RANK % 2)
    assert part is not None
    WORLD.Barrier()
    with comm.recover() as whole, part:
        works(part)
        with part.recover() as again:
            works(again)
            works(whole)


def check_parts_of_a_recovered_one(comm: gf.Communicator) -> None:
    with comm.recover() as whole:
        half, turned = whole.split(RANK % 2), whole.split(0, SIZE - RANK)
        assert half is not None
        assert turned is not None
        assert whole.split(None) is None
        assert (turned.rank, half.rank) == (SIZE - 1 - RANK, RANK // 2)
        with half, turned, turned.recover() as again, again.split(0) as inner:
            for each in (inner, half, whole, again):
                works(each)


@on_ranks(2, 3)
def check_mailboxes(comm: gf.Communicator) -> None:
    """Messages from anybody, in two mailboxes, between those of calls."""
    with comm.recover() as new:
        boxes = [make_mailbox(new, name) for name in ("one", "the other")]
        tags = [each.draw_rest() for each in boxes]
        others = [rank for rank in EVERYBODY if rank != RANK]
        for step in range(10):
            pending = []
            received = []
            for number, box in enumerate(boxes):
                out = np.full(5000, RANK + number, np.int64)
                tag = tags[number].at(step)
                pending += [box.send(out.ctypes.data, out.nbytes, out, rank, tag) for rank in others]
            works(new)
            for number, box in enumerate(boxes):
                for _ in others:
                    x = np.zeros(5000, np.int64)
                    pending.append(box.receive(x.ctypes.data, x.nbytes, x, None, tags[number].at(step)))
                    received.append((number, x))
            for request in pending:
                request.wait()
            for number in range(2):
                found = sorted(x[0] - number for of, x in received if of == number)
                assert found == others
                assert all((x == x[0]).all() for _, x in received)
        for box in boxes:
            box.close(True)


def check_calls_under_way_end(comm: gf.Communicator) -> None:
    seen: list[BaseException] = []

    def wait() -> None:
        try:
            comm.barrier()
        except GradientFlowError as error:
            seen.append(error)

    # Rank 0 makes no call: those of the others do not end by themselves.
    handles = [comm.allreduce_async(np.ones(1000)) for _ in range(3)] if RANK != 0 else []
    waiting = threading.Thread(target=wait)
    if RANK != 0:
        waiting.start()
    time.sleep(0.05)
    with comm.recover() as new:
        for handle in handles:
            with fails():
                handle.wait()
        if RANK != 0:
            waiting.join()
            assert isinstance(seen[0], (ClosedError, PeerError))
        works(new)


def check_the_others_hear_of_it(comm: gf.Communicator) -> None:
    if RANK == 0:
        new = comm.recover()
    else:
        with raises(PeerError, "recovers the communicator"):
            comm.allreduce(np.ones(1000))
        new = comm.recover()
    with new:
        works(new)


def check_after_a_timeout(_: gf.Communicator) -> None:
    with gf.init(config=gf.Config(timeout=1, transport=TRANSPORT)) as comm:
        if RANK != 0:
            with fails():
                comm.allreduce(np.ones(1000))
        WORLD.Barrier()
        with comm.recover() as new:
            works(new)


def check_one_thread_of_two_gets_it(comm: gf.Communicator) -> None:
    found: list[gf.Communicator] = []
    errors: list[BaseException] = []

    def recover() -> None:
        try:
            found.append(comm.recover())
        except ClosedError as error:
            errors.append(error)

    threads = [threading.Thread(target=recover) for _ in range(2)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert (len(found), len(errors)) == (1, 1)
    with found[0] as new:
        works(new)


def check_several_communicators(first: gf.Communicator) -> None:
    with gf.init(transport=TRANSPORT) as second, second.recover() as new_second, first.recover() as new_first:
        works(new_first)
        works(new_second)


@on_ranks(2, 3)
def check_min_ranks(comm: gf.Communicator) -> None:
    with comm.recover(min_ranks=SIZE) as new:
        works(new)
        with raises(PeerError, f"only {SIZE} ranks of {SIZE} can go on, fewer than min_ranks={SIZE + 1}"):
            new.recover(SIZE + 1)
        assert new.closed


def check_min_ranks_that_differ(comm: gf.Communicator) -> None:
    with raises(MismatchError, "min_ranks of recover() differs between ranks: 1 on rank 0, None on rank 1"):
        comm.recover(min_ranks=None if RANK == 1 else 1)
    assert comm.closed


def check_arguments(comm: gf.Communicator) -> None:
    with raises(ArgumentError, "min_ranks is a number of 1 or more, not 0"):
        comm.recover(0)
    with raises(ArgumentTypeError, "min_ranks is a whole number, not '2'"):
        comm.recover("2")  # type: ignore[arg-type]
    works(comm)


def check_over_mpi(comm: gf.Communicator) -> None:
    if not HAS_MPI:
        raise SkipTest("needs MPI")
    if TRANSPORT == "mpi":
        with comm.recover() as new:
            assert new.describe()["transport"] == "mpi"
            with raises(ArgumentError, "none of ranks that recover() has left"):
                new.mpi  # noqa: B018
            with raises(ArgumentError, "none of ranks that recover() has left"):
                new.allreduce(np.ones(3), algorithm="mpi")
            works(new)
        return
    with over("mpi"), communicator({}) as (comm,):
        with raises(ArgumentError, "a job of MPI cannot be recovered", "mpirun --with-ft ulfm", "run --transport tcp"):
            comm.recover()
        works(comm)


# ---- loops -----------------------------------------------------------------------------------------------------------


def check_a_step_that_a_rank_gives_up_comes_again(comm: gf.Communicator) -> None:
    """The other ranks then make a new communicator."""
    weights, dropped, has_given_up = [np.zeros(3, np.float32)], [], False
    with gf.training.ArrayLoop(comm, weights, "powersgd", on_failure="continue", min_ranks=SIZE) as training:
        optimizer = gf.optimizers.SGD(training, weights, lr=1.0)
        for step in training.steps(4):
            training.gradients[0][:] = step + 1
            training.ready(0)
            if step == 1 and RANK == 0 and not has_given_up:
                has_given_up = True
                continue
            training.wait()
            optimizer.step()
            if training.membership.dropped:
                dropped.append((step, training.membership.left))
    assert weights[0].tolist() == [-10] * 3
    assert dropped == ([] if RANK == 0 else [(1, ())])


def check_who_loses_another_at_the_end_waits_for_none_that_is_past_it(comm: gf.Communicator) -> None:
    """Rank 1 does so at the end of the first training of two, in which rank 0 gives up two of its steps."""
    weights, barrier = [np.zeros(3, np.float32)], comm.barrier

    def failing() -> None:
        barrier()
        raise PeerError("not heard of others")

    with gf.training.ArrayLoop(comm, weights, on_failure="continue", min_ranks=SIZE) as training:
        optimizer = gf.optimizers.SGD(training, weights, lr=1.0)
        if RANK == 1:
            comm.barrier = failing  # type: ignore[method-assign]
        for number in range(2):
            for step in training.steps(4):
                training.gradients[0][:] = step + 1
                training.ready(0)
                gives_up = number == 0 and step in (1, 3)
                if gives_up and RANK == 0:
                    continue
                try:
                    training.wait()
                except AbandonedError:
                    assert gives_up
                    continue
                assert not gives_up
                optimizer.step()
            assert weights[0].tolist() == [-(4, 14)[number]] * 3
        assert training.comm is not comm  # has recovered


def check_arrays_are_handed_over_as_they_are(comm: gf.Communicator) -> None:
    """Arrays of all kinds; and large ones are copied nowhere."""
    fixed, strided = np.arange(5), np.arange(12.0).reshape(3, 4)
    fixed.flags.writeable = False
    views = strided[:, ::2], np.asfortranarray(strided)
    objects = [np.zeros((0, 3), np.float32), np.array(2.5), fixed, *views, b"text"]
    is_first = RANK == 0
    for mine, theirs in zip(objects, hand_over(comm, objects if is_first else None), strict=True):
        np.testing.assert_array_equal(mine, theirs, strict=True)
    assert hand_over(comm, "nothing but text" if is_first else None) == "nothing but text"
    count = 1 << 21
    large = np.arange(count) if is_first else None
    tracemalloc.start()
    array = hand_over(comm, {"large": large} if is_first else None)["large"]
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert (array == np.arange(count)).all()
    array += 1  # it can be written to
    assert round(most / array.nbytes, 1) == (0 if is_first else 1), most


run_checks(
    [{"transport": TRANSPORT}, {"transport": TRANSPORT, "node_size": 1}],
    once=[check_after_a_timeout, check_arrays_are_handed_over_as_they_are],
)
