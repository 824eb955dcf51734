"""Survival where training ends, begins again from a state, or meets those that come at an odd moment.

The arguments are the situation, a function of this file, and its own. Ranks print what is in their weights at the end,
or the error.
"""

from __future__ import annotations

import gc
import os
import sys
import time
import weakref
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from fates import die, fail_in_exchange
from loops import make_step

import gradientflow as gf
from gradientflow.errors import CommunicationError, MismatchError, PeerError
from gradientflow.training.survival import Survival

RATE = 0.5
PLACE = int(os.environ["GRADIENTFLOW_RANK"])

Loop = gf.training.ArrayLoop


def loop_of(comm: gf.Communicator, strategy: str, count: int = 9) -> tuple[Loop, Any, Callable[[float], None]]:
    """Return a loop, its weights, and what makes a step with a gradient."""
    weights = [np.zeros(count, np.float32) for _ in range(3)]
    training = Loop(comm, weights, strategy, on_failure="continue", min_ranks=1)
    optimizer = gf.optimizers.SGD(training, weights, lr=RATE)
    return training, weights, partial(make_step, training, optimizer)


def say_weights(weights: Any) -> None:
    print("weights", *{float(each[-1]) for each in weights}, flush=True)


def not_heard(call: Callable[[], Any], seconds: float = 0.0) -> Callable[[], Any]:
    """Return a call that fails on this rank, though the others end it."""

    def failing() -> None:
        call()
        time.sleep(seconds)
        raise PeerError("not heard of others")

    return failing


def await_death(pid: int) -> None:
    """Wait until a process has ended."""
    while Path(f"/proc/{pid}").exists():
        time.sleep(0.005)


# ---- servers: what they have must not be old -------------------------------------------------------------------------


def undone(comm: gf.Communicator, *strategies: str) -> None:
    """A rank dies in the last step, with each of the strategies: it is undone, and made again."""
    for number, strategy in enumerate(strategies):
        training, weights, step = loop_of(comm, strategy, 300_000)  # copies of so many take a while
        for each in training.steps(12):
            step()
            if (PLACE, each) == (3 - number, 11):
                die()
        training.finish()
        say_weights(weights)
        comm = training.comm.recover(1)
        training.close()


def loaded(comm: gf.Communicator) -> None:
    """A rank dies once all have loaded a state."""
    training, _, step = loop_of(comm, "ssgd")
    beside = comm.split(0)
    assert beside is not None
    step()
    training.finish()
    saved = training.consolidated_state_dict()
    step()
    training.finish()
    training.load_state_dict(saved)
    beside.barrier()
    if PLACE == 2:
        time.sleep(0.3)  # the others come out of it, too
        die()
    step()
    training.finish()


def one_goes_ahead(comm: gf.Communicator, file: str) -> None:
    """A rank dies while another is ahead of the state that all have."""
    training, _, step = loop_of(comm, "asgd")
    victim = int(comm.allgather(np.array([os.getpid()]))[2, 0])
    step()
    training.finish()
    for _ in range(10 if PLACE == 0 else 0):
        step()
    if PLACE == 0:
        Path(file).touch()
    while PLACE == 2:
        if Path(file).exists():
            die()
        time.sleep(0.01)
    await_death(victim)
    step()
    training.finish()


# ---- the end ---------------------------------------------------------------------------------------------------------


def freed(comm: gf.Communicator) -> None:
    """What was bound to the ranks before is freed, though cycles are not collected."""
    training, _, step = loop_of(comm, "hpsgd")
    gc.disable()
    former = weakref.ref(training.synchronizer)
    for number in training.steps(12):
        if (PLACE, number) == (2, 5):
            die()
        step()
        time.sleep(0.02)  # so that the loss is noticed in a step
    print("freed", former() is None)


def one_is_past_it(comm: gf.Communicator, file: str) -> None:
    """Rank 1 loses rank 2 at the end, which rank 0 is past: that has closed its communicator, and lives on."""
    beside = comm.split(PLACE)  # it keeps the connections of this process open
    training, _, step = loop_of(comm, "dense")
    if PLACE == 1:
        comm.barrier = not_heard(comm.barrier)  # type: ignore[method-assign]
    with training:
        for _ in training.steps(2):
            step()
    if PLACE == 2:
        die()
    comm.close()
    if PLACE == 1:
        print(f"{training.comm.recovered_from} without {training.comm.lost}")
        Path(file).touch()
    while not Path(file).exists():
        time.sleep(0.01)
    beside.close()  # type: ignore[union-attr]


# ---- weights of each rank's own --------------------------------------------------------------------------------------


def lose_one(comm: gf.Communicator) -> gf.Communicator:
    """Die on rank 1; go on on the others once it waits for admission."""
    if comm.rank == 1:
        die()
    try:
        while True:
            comm.barrier()
    except PeerError:
        comm = comm.recover(1)
    admission = comm._admission
    while comm.rank == 0 and admission is not None and not admission._unanswered():
        time.sleep(0.02)
    return comm


def own_weights(comm: gf.Communicator, what: str, strategy: str, file: str = "") -> None:
    """Train, and print the bits of all weights.

    - "loaded": a rank that has died comes back at the first step, and the others have loaded weights since their loop
      was made;
    - "meanwhile": such a rank makes its loop only when the others, which have let it in, have gone on;
    - "apart": what comes of an exchange is missed by a rank, while the others are some steps ahead;
    - "past the end": all ranks but the first fail in the barrier at the end.
    """
    begins = comm.recovered_from is None
    if what in ("loaded", "meanwhile") and begins:
        comm = lose_one(comm)
    elif what == "apart":
        comm = comm.split(0)  # type: ignore[assignment]  # nobody comes to it: only exchanges hold ranks together
    while what == "meanwhile" and not begins and not Path(file).exists():
        time.sleep(0.02)
    weights = [np.linspace(0, 1, 50, dtype=np.float32)]
    training = Loop(comm, weights, strategy, on_failure="continue", min_ranks=1)
    if what == "loaded" and begins:
        weights[0][...] += 30
    if what == "past the end" and comm.rank > 0:
        finished = Survival.finished

        def failing(_: Any) -> None:
            Survival.finished = finished  # type: ignore[method-assign]
            not_heard(lambda: None, 0.3)()  # the first rank has closed

        Survival.finished = failing  # type: ignore[method-assign]
    optimizer = gf.optimizers.SGD(training, weights, lr=0.05, momentum=0.5)
    for step in training.steps(20):
        if what == "apart" and comm.rank == 1 and step == 9:
            fail_in_exchange(not_heard(lambda: None, 0.3))
        if what == "meanwhile" and step == 1:
            Path(file).touch()
        random = np.random.default_rng((step, training.membership.rank))
        training.gradients[0][...] = 0.1 * weights[0] + random.standard_normal(50)
        training.ready(0)
        training.wait()
        optimizer.step()
    sys.stdout.write(f"{weights[0].tobytes().hex()} {weights[0].mean() > 20}\n")
    training.close()


# ---- a newcomer with other settings ----------------------------------------------------------------------------------


def sent_away(comm: gf.Communicator, file: str) -> None:
    """Train until the rank that has died comes back with another strategy, and is sent away."""
    is_new = comm.recovered_from is not None
    training, weights, step = loop_of(comm, "csc" if is_new else "dense")
    try:
        for _ in training.steps(10**9):
            if training.comm.rank == 1 and training.comm.size == 3:
                die()
            step(float(Path(file).exists()))
            if weights[0].any():
                break
        training.finish()
    except MismatchError as error:
        Path(file).write_text(str(error))
        sys.exit()
    print(f"{training.comm.size} ranks go on")


if __name__ == "__main__":
    try:
        globals()[sys.argv[1]](gf.join(), *sys.argv[2:])
    except CommunicationError as error:
        print(f"{type(error).__name__}: {error}")
