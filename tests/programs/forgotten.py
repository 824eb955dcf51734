"""Asynchronous calls that fail while nobody waits for them: who is told, and when."""

from __future__ import annotations

import gc
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
from support import RANK, WORLD, raises, run, run_checks, scaled

import gradientflow as gf
from gradientflow.errors import ClosedError, CommunicationTimeoutError, GradientFlowWarning, MismatchError


def failing(comm: gf.Communicator, extra: int = 0) -> gf.Handle:
    """Start a call that fails on all ranks."""
    return comm.allreduce_async(np.ones(3 + RANK + extra))


def done(handle: gf.Handle) -> gf.Handle:
    deadline = time.monotonic() + scaled(20)
    while not handle.done:
        assert time.monotonic() < deadline
        time.sleep(0.001)
    return handle


def warned(task: Callable[[], object]) -> list[str]:
    """Return what a task warns of."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        task()
        gc.collect()
    assert all(each.category is GradientFlowWarning for each in caught)
    return [str(each.message) for each in caught]


@contextmanager
def timed_out() -> Iterator[list[str]]:
    """Expect a timeout, and give its message."""
    said: list[str] = []
    try:
        yield said
    except CommunicationTimeoutError as error:
        said.append(str(error))
    assert said


SENTENCE = "an asynchronous call has failed, and nobody has waited for its handle: the ranks made different calls"


def check_a_handle_that_goes_after_its_call(comm: gf.Communicator) -> None:
    handles = [done(failing(comm))]
    comm.barrier_async().wait()  # from here on nothing but the list has the handle
    (sentence,) = warned(handles.clear)
    assert sentence.startswith(SENTENCE), sentence


def check_a_handle_that_goes_before_its_call_has_ended(comm: gf.Communicator) -> None:
    def drop() -> None:
        failing(comm)  # which warns at once where it has ended already
        comm.barrier()

    (sentence,) = warned(lambda: (drop(), comm.barrier_async().wait()))
    assert sentence.startswith(SENTENCE), sentence
    assert len(warned(lambda: (drop(), comm.close()))) == 1


def check_who_waits_is_told_once(comm: gf.Communicator) -> None:
    def wait() -> None:
        handle = failing(comm)
        with raises(MismatchError, "different calls"):
            handle.wait()
        with raises(MismatchError, "different calls"):
            handle.wait()

    assert warned(wait) == []
    assert warned(lambda: comm.allreduce_async(np.ones(3)).wait()) == []


def check_calls_that_close_ends_are_not_told(comm: gf.Communicator) -> None:
    WORLD.Barrier()
    if RANK == 0:
        comm.allreduce_async(np.ones(3))
        assert warned(lambda: comm.__exit__(ClosedError, None, None)) == []
    WORLD.Barrier()


def check_a_later_timeout_tells(comm: gf.Communicator) -> None:
    """Of the handle that rank 0 keeps and does not wait for; rank 1 is told, and does something else."""
    with gf.init(config=gf.Config(timeout=1)) as short:
        handle = failing(short)
        if RANK == 0:
            earlier = "; before that, an asynchronous call of rank 0 had failed, and nobody has waited for its handle: "
            with raises(CommunicationTimeoutError, "timed out after 1 s", "no sign of rank 1", earlier, "of 3 float64"):
                short.barrier()
        with raises(MismatchError):
            handle.wait()
        WORLD.Barrier()
    comm.barrier()


def check_a_later_timeout_does_not_tell_what_is_known(comm: gf.Communicator) -> None:
    with gf.init(config=gf.Config(timeout=1)) as short:
        with raises(MismatchError):
            failing(short).wait()
        if RANK == 0:
            with timed_out() as said:
                short.barrier()
            assert "before that" not in said[0], said
        WORLD.Barrier()
    comm.barrier()


def at_exit() -> None:
    """Leave a handle of a call that has failed, and one that nobody keeps."""
    comm = gf.init()
    globals()["kept"] = failing(comm)
    failing(comm, 10)
    comm.barrier()


if __name__ == "__main__":
    if sys.argv[1:] == ["exit"]:
        run(at_exit)
    else:
        run_checks()
