"""The choice that auto makes: the same on all ranks, of what is allowed, kept in states; what it says about it."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any
from unittest import mock

import numpy as np
import torch
from loops import array_loop, make_step, whole_numbers
from marks import on_ranks
from support import LAYOUTS, RANK, SIZE, flat, quick_link, raises, run_checks

import gradientflow as gf
import gradientflow.torch as gft
from gradientflow.agreement import require_same_kinds
from gradientflow.errors import ArgumentError, ArgumentTypeError, MismatchError
from gradientflow.model import Step
from gradientflow.optimizers import SGD
from gradientflow.strategies import Auto, Dense, parse_strategy
from gradientflow.strategies.methods import auto
from gradientflow.strategies.predict.explanation import Measured
from gradientflow.training import ArrayLoop

torch.set_num_threads(1)

SHAPES = [(40,), (30, 200), (0,), (1,), (5000,)]
STEPS = 2
WARMUP = Auto(steps=STEPS).steps_to_choice - 1  # of which one is for finding out the order


def words(**options: Any) -> Auto:
    return Auto(steps=STEPS, **options)


trained = partial(array_loop, shapes=SHAPES, start=0.5, lr=0.125, momentum=0.5)


def step(training: ArrayLoop, optimizer: SGD, number: int) -> None:
    make_step(training, optimizer, whole_numbers(SHAPES, RANK, number))


def chosen(training: ArrayLoop) -> Any:
    synchronizer: Any = training.synchronizer
    return synchronizer.choice


@contextmanager
def preferring(wanted: Callable[[Any], bool], accept: bool | None = True) -> Iterator[None]:
    """Predict most for a choice, on rank 0 alone: the other ranks find the opposite.

    Then accept it, or do not; None: as its steps are.
    """
    predicted = Measured.step

    def other(self: Measured, dense: Any) -> Step:
        found = predicted(self, dense)
        assert found.seconds >= self.computation.seconds
        return found._replace(seconds=1.0 if wanted(dense) == (RANK == 0) else 100.0)

    with ExitStack() as stack:
        stack.enter_context(mock.patch.object(Measured, "step", other))
        if accept is not None:
            stack.enter_context(mock.patch.object(auto, "is_kept", return_value=accept))
        stack.enter_context(mock.patch.object(auto, "_PROMISING", 0.0))
        yield


def is_one_range(dense: Any) -> bool:
    return getattr(dense, "fusion_threshold", None) == "inf"


@on_ranks(1, 3)
def check_it_trains_as_dense_does(comm: gf.Communicator) -> None:
    """With a choice that differs, arrays that are held, and whatever ranks find by themselves."""
    for accept in (True, False):
        with preferring(is_one_range, accept), trained(comm, words()) as (training, optimizer):
            held = training.gradients
            with trained(comm, "dense") as (other, stepper):
                for number in range(WARMUP + 3):
                    assert (chosen(training) is None) == (number < WARMUP)
                    step(training, optimizer, number)
                    step(other, stepper, number)
                    assert np.array_equal(flat(training.weights), flat(other.weights)), number
            assert all(mine is before for mine, before in zip(training.gradients, held, strict=True))
            assert is_one_range(chosen(training)) == accept
            (pool,) = training.synchronizer.pools  # type: ignore[attr-defined]
            assert (len(pool.ranges) == 1) == (accept or pool.fusion_threshold > pool.nbytes)
            why = training.synchronizer.why  # type: ignore[attr-defined]
            assert ("ms with dense(fusion_threshold='inf')" in why) == (comm.size > 0)


@on_ranks(1, 3)
def check_nothing_promises_more(comm: gf.Communicator) -> None:
    """The first choice is dense, at once where no prediction is better."""
    same = Step(1.0, 0.5 + RANK, 0.0, 0.5, 0.0)
    with mock.patch.object(Measured, "step", return_value=same), trained(comm, words()) as (training, optimizer):
        for number in range(WARMUP):
            step(training, optimizer, number)
            assert (chosen(training) is None) == (number + 1 < 2 + STEPS)
        assert chosen(training) == Dense()
        assert "promises more: 500.00 ms of" in training.synchronizer.why  # type: ignore[attr-defined]


@on_ranks(1, 3)
def check_wires_only_if_allowed(comm: gf.Communicator) -> None:
    for allow in ((), ("float16",)):
        with preferring(lambda dense: dense.wire == "float16"), trained(comm, words(allow=allow)) as (each, optimizer):
            for number in range(WARMUP):
                step(each, optimizer, number)
            assert (chosen(each).wire == "float16") == (allow != () and comm.nodes > 1)
            state = copy.deepcopy(each.state_dict())
    with trained(comm, words(allow="bfloat16")) as (each, _):
        each.load_state_dict(state)  # whose choice is not allowed here
        assert (chosen(each) is None) == (comm.nodes > 1)
    with raises(ArgumentError, "allow is a sequence of the wires float16, bfloat16, float8_e4m3, not ('int8',)"):
        Auto(allow=("int8",))
    with raises(ArgumentTypeError, "allow is a sequence of wires, not None"):
        Auto(allow=None)  # type: ignore[arg-type]
    with raises(ArgumentError, "steps is 2 or more"):
        Auto(steps=1)
    assert parse_strategy("auto(allow='bfloat16')") == Auto(("bfloat16",))


@on_ranks(1, 3)
def check_states(comm: gf.Communicator) -> None:
    """The choice is part of a state, for as many ranks; before there is one, and for others, it is made anew."""
    with preferring(is_one_range), trained(comm, words()) as (training, optimizer):
        step(training, optimizer, 0)
        early = copy.deepcopy(training.state_dict())
        for number in range(1, WARMUP):
            step(training, optimizer, number)
        state = copy.deepcopy(training.state_dict())
        assert training.consolidated_state_dict() == state
        with trained(comm, words()) as (other, stepper):
            other.load_state_dict(state)
            assert is_one_range(chosen(other))
            assert len(other.synchronizer.pools[0].ranges) == 1  # type: ignore[attr-defined]
            step(other, stepper, 1)
            other.load_state_dict(early)
            assert chosen(other) is None
            state["synchronizer"]["ranks"] += 1
            other.load_state_dict(state)
            assert chosen(other) is None
            if SIZE > 1:
                state["synchronizer"]["ranks"] -= RANK == 0
                with raises(MismatchError, "the choice"):
                    other.load_state_dict(state)
            for number in range(WARMUP):
                step(other, stepper, number)
            assert is_one_range(chosen(other))
            del state["synchronizer"]["choice"]
            with raises(ArgumentError, "this is not the state of auto"):
                other.load_state_dict(state)


def check_steps_that_are_longer_are_not_kept(comm: gf.Communicator) -> None:
    """Whatever was predicted: here the steps with it are shorter, or longer, by a clock of their own.

    The first ones are much longer, and do not count.
    """
    for seconds in (1.0, 3.0):
        now, settling = [0.0], [100.0] * 2
        clock = mock.Mock(perf_counter=lambda now=now: now[0])
        with (
            preferring(is_one_range, accept=None),
            mock.patch.object(auto, "time", clock),
            trained(comm, words()) as (training, optimizer),
        ):
            for number in range(WARMUP):
                is_verified = is_one_range(training.synchronizer._now)  # type: ignore[attr-defined]
                step(training, optimizer, number)
                now[0] += seconds + (settling.pop() if settling else 0.0) if is_verified else 2.0
            assert is_one_range(chosen(training)) == (seconds < 2.0)


@on_ranks(1, 3)
def check_explain(comm: gf.Communicator) -> None:
    with ExitStack() as stack:
        stack.enter_context(quick_link())
        stack.enter_context(preferring(is_one_range))
        with trained(comm, words()) as (training, optimizer):
            assert f"which is measured until iteration {WARMUP + 1}" in str(training.explain(compute_seconds=0.01))
            for number in range(WARMUP):
                step(training, optimizer, number)
            found: Any = training.explain()
        assert found.strategy == "auto"
        assert found.choice == "dense(fusion_threshold='inf')"
        assert found.compute_seconds > 0
        assert found.why in str(found)
        names = {each.partition("(")[0] for each, _ in found.lossy}
        everything = {"csc", "lags", "powersgd", "hpsgd", "local_sgd", "diloco", "sparse_loco", "ssd_sgd"}
        assert names == (everything if SIZE > 1 else set())
        assert all(gain > 0 and name in str(found) for name, gain in found.lossy)
        assert Auto(("float16",)).explain(comm, 1000).choice.startswith("dense")


@on_ranks(1, 3)
def check_tune(comm: gf.Communicator) -> None:
    """All ranks get the same table, and training continues as before."""
    with quick_link(), trained(comm, words()) as (training, optimizer):
        step(training, optimizer, 0)
        before = flat(training.weights).copy()
        found = training.tune("csc; dense(wire='float16'); lags", compute_seconds=0.01)
        assert [str(each) for each in found.strategies] == ["csc", "dense(wire='float16')", "lags"]
        assert all(each.step.seconds >= 0.01 for each in found.predictions)
        assert str(found).index("rounded") < str(found).index("a part later")
        assert len(found.advice) == min(SIZE - 1, 1), found.advice
        require_same_kinds(comm, {"tables": {"of tune": str(found)}})
        assert training.tune("csc; dense", lossless=True, compute_seconds=1.0).strategies == (Dense(),)
        with raises(ArgumentError, "compute_seconds is the time of a step without communication, above 0"):
            training.tune(compute_seconds=0.0)
        with raises(ArgumentError, "densest"):
            training.tune("densest", compute_seconds=1.0)
        assert np.array_equal(flat(training.weights), before)
        step(training, optimizer, 1)


def check_a_model_that_changes(comm: gf.Communicator) -> None:
    """In PyTorch: the order is learned, parameters are added, and states go along."""
    if SIZE == 1:
        return
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Linear(16, 16), torch.nn.Linear(16, 4))
    model[0].requires_grad_(False)
    sgd = torch.optim.SGD([*model[1].parameters(), *model[2].parameters()], lr=1e-5)  # or weights grow without bound
    with preferring(is_one_range), gft.DistributedOptimizer(sgd, model, comm, strategy=words()) as optimizer:

        def train(steps: int) -> None:
            for number in range(steps):
                optimizer.zero_grad()
                model(torch.full((2, 8), 1.0 + RANK + number)).square().mean().backward()
                optimizer.step()

        train(WARMUP + 2)
        synchronizer: Any = optimizer.synchronizer
        assert is_one_range(synchronizer.choice)
        state = copy.deepcopy(optimizer.state_dict())
        model[0].requires_grad_(True)
        optimizer.add_param_group({"params": list(model[0].parameters())})
        synchronizer = optimizer.synchronizer
        assert synchronizer.choice is None
        train(WARMUP + 1)
        assert is_one_range(synchronizer.choice)
        with raises(ArgumentError, "has"):  # of another model
            optimizer.load_state_dict(state)
        state = copy.deepcopy(optimizer.state_dict())
        optimizer.load_state_dict(sgd.state_dict())
        assert synchronizer.choice is None
        optimizer.load_state_dict(state)
        assert is_one_range(synchronizer.choice)
        train(1)
        mine = torch.cat([each.detach().reshape(-1) for each in model.parameters()]).numpy()
        assert np.isfinite(mine).all()
        assert (comm.allgather(mine).reshape(SIZE, -1) == mine).all()


@on_ranks(1, 3)
def check_pools_are_regrouped(comm: gf.Communicator) -> None:
    with gf.GradientPool(comm, [100, 200, 300]) as pool:
        for threshold, ranges in ((0, 3), ("inf", 1), (1200, 2), ("auto", 1)):
            pool.regroup(threshold, "float16" if threshold == "inf" else None)
            assert len(pool.ranges) == ranges, threshold
            for index, view in enumerate(pool.views):
                view[...] = RANK + index
            pool.ready(0)
            with raises(ArgumentError, "a pool is regrouped between iterations"):
                pool.regroup(0)
            pool.ready()
            pool.wait()
            assert all((view == (SIZE - 1) / 2 + index).all() for index, view in enumerate(pool.views))
            assert len(pool.reports) == ranges
        if SIZE > 1 and comm.nodes > 1:
            pool.regroup(0 if RANK else "inf")
            with raises(MismatchError, ""):
                pool.ready()
                pool.wait()


run_checks(LAYOUTS)
