"""HPSGD in the NumPy loop: against the algorithm in straight lines, nothing lost, ends, states, bad use."""

from __future__ import annotations

import math
import time
from functools import partial
from typing import Any
from unittest import mock

import numpy as np
from loops import array_loop, make_step, whole_numbers
from marks import on_ranks
from support import LAYOUTS, RANK, SIZE, flat, quick_link, raises, run_checks, same_everywhere

import gradientflow as gf
from gradientflow.errors import ArgumentError, NonFiniteError
from gradientflow.optimizers import SGD
from gradientflow.training import ArrayLoop

SHAPES = [(40,), (0,), (3, 7), (1,), (300,)]
ELEMENTS = sum(int(np.prod(shape)) for shape in SHAPES)
RATE = 0.25

gradients_of = partial(whole_numbers, SHAPES, factor=SIZE)
trained = partial(array_loop, strategy="hpsgd", shapes=SHAPES, start=1.0, lr=RATE)


def step(training: ArrayLoop, optimizer: SGD, number: int) -> None:
    assert make_step(training, optimizer, gradients_of(RANK, number)).kind == "written"


# ---- the algorithm ---------------------------------------------------------------------------------------------------


def simulate(done: list[list[bool]], rate: float = RATE) -> list[list[Any]]:
    """Return the weights of each rank after each step; `done` says of each whether the last round was done then."""
    sums: list[list[Any]] = [[] for _ in range(SIZE)]  # that are handed over, by rank and round
    for rank in range(SIZE):
        total = np.zeros(ELEMENTS, np.float32)
        for number, is_done in enumerate(done[rank]):
            total = total + flat(gradients_of(rank, number))
            if is_done:
                sums[rank].append(total)
                total = np.zeros(ELEMENTS, np.float32)
    found = []
    for rank in range(SIZE):
        common = np.ones(ELEMENTS, np.float32)
        replica, rounds, weights = None, 0, []
        for number, is_done in enumerate(done[rank]):
            if not is_done:
                if replica is None:
                    replica = common.copy()
                replica = replica - np.float32(rate) * flat(gradients_of(rank, number))
            else:
                if rounds > 0:
                    mean = sum(each[rounds - 1] for each in sums) / np.float32(SIZE)
                    common = common - np.float32(rate) * mean
                replica = None
                rounds += 1
            weights.append(common if replica is None else replica)
        found.append(weights)
    return found


@on_ranks(1, 2, 3)
def check_recorded_interleavings(comm: gf.Communicator) -> None:
    """Ranks whose rounds are done after other numbers of steps."""
    for seed in range(5):
        random = np.random.default_rng(seed)
        rounds = 6
        # Each rank trains a few steps in each round; the first step always begins one.
        lengths = random.integers(0, 4, (SIZE, rounds))
        done = [[bool(i == 0) for length in mine for i in range(length + 1)] for mine in lengths]
        expected = simulate(done)
        with trained(comm) as (training, optimizer):
            synchronizer: Any = training.synchronizer
            for number, is_done in enumerate(done[RANK]):
                with mock.patch.object(synchronizer, "round_is_running", return_value=not is_done):
                    step(training, optimizer, number)
                assert np.array_equal(flat(training.weights), expected[RANK][number]), (seed, number)
            training.finish()
            same_everywhere(training.weights)
            total = sum(flat(gradients_of(rank, n)) for rank in range(SIZE) for n in range(len(done[rank])))
            assert np.array_equal(flat(training.weights), 1 - RATE * total / SIZE)


@on_ranks(1, 2, 3)
def check_nothing_is_lost(comm: gf.Communicator) -> None:
    """Under delays of both sides, and with ranks that make other numbers of steps."""
    random = np.random.default_rng([RANK, 7])
    steps = 30 + 10 * RANK
    with trained(comm) as (training, optimizer):
        synchronizer: Any = training.synchronizer
        average = synchronizer._background.allreduce_async

        def late(*arguments: Any, **options: Any) -> Any:
            time.sleep(random.uniform(0, 0.002))
            return average(*arguments, **options)

        with mock.patch.object(synchronizer._background, "allreduce_async", late):
            for number in range(steps):
                step(training, optimizer, number)
                if number % 3 == 0:
                    time.sleep(random.uniform(0, 0.003))
            training.finish()
        same_everywhere(training.weights)
        counts = comm.allgather(np.array([steps])).ravel()
        total = sum(flat(gradients_of(rank, number)) for rank in range(SIZE) for number in range(counts[rank]))
        assert np.array_equal(flat(training.weights), 1 - RATE * total / SIZE)
        rounds = comm.allgather(np.array([synchronizer.rounds]))
        assert (rounds == rounds[0]).all()
        training.finish()
        assert np.array_equal(flat(training.weights), 1 - RATE * total / SIZE)


def check_rates_that_differ(comm: gf.Communicator) -> None:
    """Schedules of ranks that are at other steps: all apply a round with the same rates."""
    with trained(comm) as (training, optimizer):
        for number in range(10):
            optimizer.lr = 0.5 / (1 + number + 3 * RANK)
            step(training, optimizer, number)
            time.sleep(0.001 * RANK)
        training.finish()
        same_everywhere(training.weights)


def one_value(training: ArrayLoop, optimizer: SGD, value: float) -> str:
    """Make a step with the same gradient everywhere, and return what has gone wrong."""
    try:
        training.gradients[0][...] = value
        training.ready(0)
        training.wait()
        optimizer.step()
    except NonFiniteError as error:
        training.abandon()
        return str(error)
    return ""


def check_sums_that_are_not_finite(comm: gf.Communicator) -> None:
    """Of finite gradients of a round: the rank goes back."""
    with ArrayLoop(comm, [np.ones(64, np.float32)], "hpsgd") as training:
        optimizer = SGD(training, training.weights, lr=0.0)
        with mock.patch.object(training.synchronizer, "round_is_running", return_value=True):
            told = [one_value(training, optimizer, 3e38) for _ in range(2)]
        assert told[0] == ""
        assert f"gradient of 0 is not finite on rank {RANK}: this rank goes back" in told[1]
        assert one_value(training, optimizer, 1.0) == ""
        training.finish()
        same_everywhere(training.weights)
        assert np.isfinite(training.weights[0]).all()


def check_sums_that_are_not_finite_once_rounded(_: gf.Communicator) -> None:
    """For the way to other nodes: all drop the round."""
    with (
        gf.init(config=gf.Config(node_size="1")) as comm,
        ArrayLoop(comm, [np.ones(64, np.float32)], "hpsgd(wire='float16')") as training,
    ):
        optimizer = SGD(training, training.weights, lr=0.01)
        told = [one_value(training, optimizer, value) for value in (1e6, 1.0, 1.0)]
        try:
            training.finish()
        except NonFiniteError as error:
            told.append(str(error))
            training.abandon()
        (text,) = filter(None, told)
        assert "gradient of 0 in round 1 is not finite once averaged" in text
        training.finish()
        same_everywhere(training.weights)
        assert training.weights[0][0] > -10


# ---- use -------------------------------------------------------------------------------------------------------------


@on_ranks(1, 3)
def check_common_weights(comm: gf.Communicator) -> None:
    with trained(comm) as (training, optimizer):
        synchronizer: Any = training.synchronizer
        step(training, optimizer, 0)
        with mock.patch.object(synchronizer, "round_is_running", return_value=True):
            step(training, optimizer, 1)
        own = flat(training.weights)
        with training.common_weights():
            assert (flat(training.weights) == 1).all()
        assert np.array_equal(flat(training.weights), own)
        training.finish()


@on_ranks(1, 3)
def check_states(comm: gf.Communicator) -> None:
    with trained(comm) as (training, optimizer):
        step(training, optimizer, 0)
        for call in (training.state_dict, training.consolidated_state_dict):
            with raises(ArgumentError, "not been applied on all ranks yet: a checkpoint comes after finish"):
                call()
        training.finish()


def check_weights_that_are_written(comm: gf.Communicator) -> None:
    """While gradients are under way it is an error, on all ranks in finish(); to load a state afterwards helps."""
    with trained(comm) as (training, optimizer):
        synchronizer: Any = training.synchronizer
        state = training.state_dict()
        for has_replica in (False, True):
            step(training, optimizer, 0)
            if has_replica:
                with mock.patch.object(synchronizer, "round_is_running", return_value=True):
                    step(training, optimizer, 1)
            if RANK == SIZE - 1:
                for weight in training.weights:
                    weight[...] = 3
                training.gradients[0][...] = 0
                with raises(ArgumentError, "the weights were changed while gradients are under way"):
                    training.ready(0)
            with raises(ArgumentError, f"the weights of rank {SIZE - 1} were changed while gradients are under way"):
                training.finish()
            training.load_state_dict(state)
            assert all((weight == 3).all() for weight in training.weights)  # of the rank that has loaded some
            step(training, optimizer, 2)
            training.finish()
            total = sum(flat(gradients_of(rank, 2)) for rank in range(SIZE))
            assert np.array_equal(flat(training.weights), 3 - RATE * total / SIZE)
            for weight in training.weights:
                weight[...] = 1  # now it may be done


def check_a_state_that_is_loaded_in_mid_run(comm: gf.Communicator) -> None:
    """Without weights: what is under way is applied as by finish()."""
    with trained(comm) as (training, optimizer):
        state = training.state_dict()
        synchronizer: Any = training.synchronizer
        for number in range(5):
            with mock.patch.object(synchronizer, "round_is_running", return_value=bool((number + RANK) % 2)):
                step(training, optimizer, number)
        training.load_state_dict(state)
        same_everywhere(training.weights)
        total = sum(flat(gradients_of(rank, number)) for rank in range(SIZE) for number in range(5))
        assert np.array_equal(flat(training.weights), 1 - RATE * total / SIZE)
        assert synchronizer.rounds == 0


def check_weights_without_gradient(comm: gf.Communicator) -> None:
    """They do not decay, on the replica and in rounds; and get what other ranks have for them."""
    with ArrayLoop(comm, [np.ones(shape, np.float32) for shape in SHAPES], "hpsgd") as training:
        optimizer = SGD(training, training.weights, lr=RATE, weight_decay=0.5)
        synchronizer: Any = training.synchronizer
        for number in range(4):
            with mock.patch.object(synchronizer, "round_is_running", return_value=bool(number % 2)):
                training.gradients[0][...] = 0
                training.ready(0)
                if RANK == 0:
                    training.gradients[2][...] = SIZE
                    training.ready(2)
                training.wait()
                optimizer.step()
            assert (training.weights[4] == 1).all()
            assert (training.weights[0] < 1).all() or number == 0
        training.finish()
        same_everywhere(training.weights)
        assert (training.weights[4] == 1).all()
        assert (training.weights[2] < 1 - 3 * RATE).all()


def check_weights_of_16_bits(comm: gf.Communicator) -> None:
    """With master weights, also where there are tensors without elements."""
    with ArrayLoop(comm, [np.ones(shape, np.float16) for shape in SHAPES], "hpsgd") as training:
        optimizer = SGD(training, training.weights, lr=RATE)
        synchronizer: Any = training.synchronizer
        for number in range(4):
            with mock.patch.object(synchronizer, "round_is_running", return_value=bool(number % 2)):
                step(training, optimizer, number)
        training.finish()
        total = sum(flat(gradients_of(rank, number)) for rank in range(SIZE) for number in range(4))
        assert np.array_equal(flat(training.weights), (1 - RATE * total / SIZE).astype(np.float16))
        training.load_state_dict(training.state_dict())
        state = optimizer.state_dict()
        optimizer.load_state_dict(state)
        assert [len(master) for master in state["master"]] == [math.prod(shape) for shape in SHAPES]


def check_wrong_use(comm: gf.Communicator) -> None:
    weights = [np.ones(3, np.float32)]
    with ArrayLoop(comm, weights, "hpsgd") as training:
        with raises(ArgumentError, "plain SGD, and the optimizer has a momentum of 0.9"):
            SGD(training, weights, lr=0.1, momentum=0.9)
        optimizer = SGD(training, weights, lr=0.1)
        training.ready(0)
        with raises(ArgumentError, "became final twice"):
            training.ready(0)
        training.abandon()
        training.ready(0)
        training.wait()
        optimizer.step()
        training.finish()
    with raises(ArgumentError, "close() comes after finish()"), ArrayLoop(comm, weights, "hpsgd") as training:
        optimizer = SGD(training, weights, lr=0.1)
        training.ready(0)
        training.wait()
        optimizer.step()
        comm.barrier()
    with raises(ArgumentError, "float64"):
        ArrayLoop(comm, [np.ones(3)], "hpsgd")


@on_ranks(1, 3)
def check_explain(comm: gf.Communicator) -> None:
    """A step takes what it computes; a round takes as many as fit into it."""
    with quick_link():
        with trained(comm) as (training, _):
            found = training.explain(compute_seconds=0.01)
        assert found.parameters == ELEMENTS
        assert np.isclose(found.step.seconds, 0.01 + found.step.own_seconds)
        assert found.step.own_seconds > 0
        assert found.step.exposed_seconds == 0
        assert "tell compute_seconds" in str(gf.strategies.HPSGD().explain(comm, 1000)) or SIZE == 1


run_checks(LAYOUTS)
