"""Prepared calls: results, order, what else may be under way, errors, and who keeps what alive."""

from __future__ import annotations

import contextlib
import gc
import inspect
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from marks import on_ranks
from support import RANK, SIZE, WORLD, mine, raises, run_checks, scaled

import gradientflow as gf
from gradientflow import recorder
from gradientflow.errors import (
    ArgumentError,
    ArgumentTypeError,
    ClosedError,
    CommunicationTimeoutError,
    MismatchError,
    PeerError,
)

TOTAL = SIZE * (SIZE + 1) // 2
SIZES = [1, 7, 100, 5000, 40_000]  # inside the announcement's line, behind it, and too large for it
LAST = SIZE - 1


@on_ranks(1, 2, 3)
def check_every_collective(comm: gf.Communicator) -> None:
    """Twice, with other values the second time, and the result of the ordinary call both times."""
    for count in (3, 40_000):
        shapes: dict[str, Callable[..., Any]] = {
            "allreduce": lambda call, x: call(x, "mean"),
            "broadcast": lambda call, x: call(x, root=LAST),
            "reduce": lambda call, x: call(x, LAST, "max"),
            "allgather": lambda call, x: call(x),
            "allgatherv": lambda call, x: call(x[: 1 + RANK]),
            "reduce_scatter": lambda call, x: call(x),
            "alltoall": lambda call, x: call(x[: len(x) // SIZE * SIZE]),
            "gather": lambda call, x: call(x, LAST),
            "scatter": lambda call, x: call(x[: 2 * SIZE] if RANK == LAST else None, LAST, out=np.zeros(2)),
        }
        for name, make in shapes.items():
            x = np.zeros(max(count, 2 * SIZE))
            request = make(getattr(comm, f"{name}_init"), x)
            assert type(request) is gf.Request
            for factor in (1, 5):
                values = np.arange(len(x), dtype=np.float64) * factor + RANK
                x[...] = values
                request.start()
                got = request.wait()
                wanted = make(getattr(comm, name), values.copy())
                assert (got is None) == (wanted is None), name
                assert wanted is None or (got == wanted).all(), (name, count, factor)
    request = comm.barrier_init()
    for _ in range(3):
        request.start()
        assert request.wait() is None
    out = np.empty(10)
    request = comm.allreduce_init(mine(10), out=out)
    request.start()
    assert request.wait() is out
    assert (out == TOTAL).all()
    assert request.nonfinite is None


def check_to_others_it_is_a_call_like_any_other(comm: gf.Communicator) -> None:
    for count in SIZES:
        x = mine(count)
        if RANK == 0:
            request = comm.allreduce_init(x)
            request.start()
            request.wait()
        elif RANK == 1:
            comm.allreduce_async(x).wait()
        else:
            comm.allreduce(x)
        assert (x == TOTAL).all()


def check_several_under_way(comm: gf.Communicator) -> None:
    """Waited for in any order; ordinary calls and asynchronous ones among them, on every rank in the same order."""
    tensors = [np.empty(count) for count in SIZES * 4]
    requests = [comm.allreduce_init(x) for x in tensors]
    for turn in range(5):
        for x in tensors:
            x[...] = mine(len(x))
        for k, request in enumerate(requests):
            request.start()
            if k % 5 == turn:
                y = comm.allreduce(mine(3))
                z = comm.allreduce_async(mine(300)).wait()
                assert (y == TOTAL).all()
                assert (z == TOTAL).all()
        order = np.random.default_rng(turn + RANK).permutation(len(requests))
        for k in order:
            assert requests[k].wait() is tensors[k]
            assert requests[k].done
        assert all((x == TOTAL).all() for x in tensors)


def check_starting_waits_for_nobody(comm: gf.Communicator) -> None:
    """The other ranks make their calls only when they have heard from rank 0, which has started its own."""
    x, y = mine(3), mine(5)
    first, second = comm.allreduce_init(x), comm.allreduce_init(y)
    if RANK == 0:
        first.start()
        second.start()
        for rank in range(1, SIZE):
            WORLD.send(None, rank)
    else:
        WORLD.recv(source=0)
        first.start()
        second.start()
    second.wait(timeout=50)
    first.wait(timeout=50)
    assert (x == TOTAL).all()
    assert (y == TOTAL).all()


def check_the_others_need_nothing_more_of_a_small_call(comm: gf.Communicator) -> None:
    x = mine(3)
    request = comm.allreduce_init(x)
    request.start()
    if RANK > 0:
        request.wait(timeout=50)
    WORLD.Barrier()  # the others are through, and rank 0 has not waited
    if RANK == 0:
        request.wait()
    assert (x == TOTAL).all()


def check_a_thread_takes_over(comm: gf.Communicator) -> None:
    """A call of another thread, behind one that is under way, does not wait for the thread that has started it."""
    x, y = mine(3), mine(4)
    request = comm.allreduce_init(x)
    request.start()
    thread = threading.Thread(target=comm.allreduce, args=(y,))
    thread.start()
    thread.join(50)
    assert not thread.is_alive()
    assert (y == TOTAL).all()
    assert request.done
    assert request.wait() is x
    assert (x == TOTAL).all()


def check_timeouts(comm: gf.Communicator) -> None:
    for count in (3, 40_000):
        x = mine(count)
        request = comm.allreduce_init(x)
        for _ in range(2):
            x[...] = RANK + 1
            WORLD.Barrier()
            if RANK < LAST:
                request.start()
                assert not request.done
                for timeout in (0, 0.01):
                    with raises(CommunicationTimeoutError, f"the call was not done within {timeout} s; it goes on"):
                        request.wait(timeout)
                assert recorder.calls(1)[0]["state"] == "under way"
                with raises(ArgumentError, "has been started already"):
                    request.start()
            WORLD.Barrier()
            if RANK == LAST:
                request.start()
            deadline = time.monotonic() + scaled(50)
            while not request.done:
                assert time.monotonic() < deadline
            assert request.wait(timeout=0) is x
            assert (x == TOTAL).all()
            assert recorder.calls(1)[0]["state"] == "ended"


def check_calls_that_end_as_the_time_does(comm: gf.Communicator) -> None:
    """Whether a wait sees the end or not, the next one does."""
    x = mine(3)
    request = comm.allreduce_init(x)
    for _ in range(1000):
        x[...] = RANK + 1
        request.start()
        for _ in range(1_000_000):
            with contextlib.suppress(CommunicationTimeoutError):
                request.wait(0)
                break
        assert (x == TOTAL).all()


@on_ranks(1, 3)
def check_errors(comm: gf.Communicator) -> None:
    with raises(ArgumentTypeError):
        comm.allreduce_init([1, 2])
    with raises(ArgumentError):
        comm.broadcast_init(mine(3), root=SIZE)
    with raises(ArgumentTypeError, "it is not made of int"):
        gf.Request(3)
    request = comm.allreduce_init(mine(3))
    assert request.done
    for _ in range(2):
        with raises(ArgumentError, "has not been started"):
            request.wait()
    request.start()
    with raises(ArgumentError, "has been started already"):
        request.start()
    with raises(ArgumentTypeError, "timeout is a number of seconds, or None"):
        request.wait("soon")
    with raises(ArgumentError, "timeout is not a number"):
        request.wait(float("nan"))
    request.wait()


@on_ranks(2)
def check_the_interpreter_runs_on_while_labels_are_told(comm: gf.Communicator) -> None:
    """Rank 0 waits for the label of a rank that has started another call, and does not wait for it yet."""
    if SIZE != 2 or comm.nodes != 1:
        return
    x = mine(3 + RANK)
    late = threading.Timer(0.1, WORLD.Barrier)
    with raises(MismatchError, "'a'", "'b'"):
        if RANK == 0:
            WORLD.Barrier()  # the other call is announced
            late.start()
            comm.allreduce(x, label="a")
        else:
            request = comm.allreduce_init(x, label="b")
            request.start()
            WORLD.Barrier()
            WORLD.Barrier()  # of the other thread
            request.wait()
    if RANK == 0:
        late.join()


def check_ranks_that_prepare_different_calls(comm: gf.Communicator) -> None:
    if SIZE == 1:
        return
    for label in (None, f"of rank {RANK}"):
        x = mine(3)
        for request in (comm.allreduce_init(mine(3 + RANK), label=label), comm.allreduce_init(mine(30_000 + RANK))):
            for _ in range(2):
                request.start()
                with raises(MismatchError, "rank 0: allreduce of ", "rank 1: allreduce of "):
                    request.wait()
            assert (comm.allreduce(x.copy()) == TOTAL).all()


@on_ranks(1, 3)
def check_a_forgotten_request(comm: gf.Communicator) -> None:
    x = mine(3)
    comm.allreduce_init(x).start()
    gc.collect()
    y = comm.allreduce(mine(4))  # behind it
    assert (y == TOTAL).all()
    assert (x == TOTAL).all()


@on_ranks(1, 3)
def check_closing(_: gf.Communicator) -> None:
    with gf.init() as comm:
        tensors = [mine(count) for count in SIZES]
        requests = [comm.allreduce_init(x) for x in tensors]
        for request in requests:
            request.start()
    for request, x in zip(requests, tensors, strict=True):
        assert request.wait() is x
        assert (x == TOTAL).all()
        with raises(ClosedError, "the communicator is closed"):
            request.start()


def check_a_rank_that_leaves(_: gf.Communicator) -> None:
    if SIZE == 1:
        return
    comm = gf.init()
    request = comm.allreduce_init(mine(3))
    if RANK == LAST:
        comm.close()
    else:
        request.start()
        with raises(PeerError, f"rank {LAST} has closed its communicator"):
            request.wait()
        with raises(PeerError, "the communicator cannot be used any more"):
            request.start()
        comm.close()


def check_leaving_after_an_exception(_: gf.Communicator) -> None:
    """What is under way then is not waited for."""
    if SIZE == 1:
        return
    WORLD.Barrier()
    comm = gf.init()
    request = comm.allreduce_init(mine(3))
    if RANK == 0:
        with raises(KeyError), comm:
            request.start()
            raise KeyError
        with raises(ClosedError):
            request.wait()
    WORLD.Barrier()
    comm.close()


@on_ranks(1, 3)
def check_fast_paths(comm: gf.Communicator) -> None:
    """They stand before the methods, and look like them; methods of classes of one's own come first."""
    pairs = {
        gf.Communicator: ("allreduce", "broadcast", "barrier"),
        gf.GradientPool: ("ready", "wait"),
        gf.Request: ("start", "wait"),
    }
    with gf.GradientPool(comm, [3]):
        comm.barrier_init()
    for cls, names in pairs.items():
        for name in names:
            way = inspect.getattr_static(cls, name)
            method = way.__wrapped__
            assert inspect.isfunction(method), (cls, name)
            assert inspect.signature(getattr(cls, name)) == inspect.signature(method)
            assert (getattr(cls, name).__doc__, getattr(cls, name).__name__) == (method.__doc__, name)
    x = mine(3)
    for call in (
        lambda: comm.allreduce(x, "sum", op="sum"),
        lambda: comm.allreduce(x, "sum", "auto", None, None, None),
        lambda: comm.allreduce(y=x),
        lambda: comm.allreduce(),
    ):
        with raises(TypeError, "Communicator.allreduce() "):
            call()
    with raises(TypeError):
        gf.Communicator.barrier()
    with raises(AttributeError, "_native"):
        gf.Communicator.barrier(3)
    assert comm.allreduce(x, algorithm="auto", op="max", label=None) is x
    assert (x == SIZE).all()

    class Own(gf.Communicator):
        def allreduce(self, x: Any, *_: Any, **__: Any) -> Any:
            return super().allreduce(x, "min")

    with Own(WORLD) as own:
        assert (own.allreduce(mine(3)) == 1).all()


if __name__ == "__main__":
    run_checks([{}, {"inline_bytes": 0}], once=[check_fast_paths, check_errors])
