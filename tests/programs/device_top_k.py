"""The top-k pool on CUDA devices: step by step the same bits as on the host."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any
from unittest import mock

import numpy as np
from marks import on_ranks, thorough
from support import RANK, SIZE, WORLD, raises, run_checks
from twins import DEVICE, Twins

import gradientflow as gf
from gradientflow import _core, device
from gradientflow.errors import CommunicationTimeoutError, GradientFlowError, MismatchError, NonFiniteError
from gradientflow.strategies import Iteration, Layout, parse_strategy
from gradientflow.strategies.predict.call_time import CallTime

CASES: list[tuple[str, dict[str, Any]]] = [
    ("float32", {"ratios": 9, "selection": "exact", "extra": 2, "threshold_reuse": 1}),
    ("float32", {"ratios": [3, 2, 1, 1, 50, 200, 1], "momentum": 0.5, "merge_bytes": 0}),
    ("float16", {"ratios": [40, 2, 1, 1, 5, 100, 1], "wire": "float16", "clip": 2.0}),
    ("bfloat16", {"ratios": [7, 2, 3, 40, 1, 1, 1], "layers": None, "overlap": False}),
    ("float32", {"ratios": 20, "layers": [3, 4], "wire": "bfloat16", "momentum": 0.25, "masking": False}),
    ("float16", {"ratios": 8, "selection": "random", "momentum": 0.5}),
]


def make(comm: gf.Communicator, dtype: str, options: dict[str, Any]) -> Twins:
    return Twins(comm, dtype, options, lr=lambda t: 0.5 / (1 + t), momentum=0.0 if "momentum" in options else 0.9)


@on_ranks(1, 3)
def check_the_same_bits(comm: gf.Communicator) -> None:
    """Of all that can be seen, after every step; also where a layer becomes dense, which has kept something."""
    for number, (dtype, options) in enumerate(CASES):
        if number % 2 == SIZE % 2:
            continue
        twins = make(comm, dtype, options)
        for step in range(7):
            if step == 5:
                for pool in twins.pools:
                    pool.ratios = [1.0 if ratio > 5 else 30.0 for ratio in pool.ratios]
            for pool in twins.pools:
                pool.extra[:] = RANK + step
            twins.iterate(step)
            twins.check((number, step))
            for pool in twins.pools:
                assert all(report.ready is None or report.ready <= time.monotonic() for report in pool.layer_selections)
                pool.zero()
            assert not twins.pools[1].memory.get().any()
        assert [pool.iteration for pool in twins.pools] == [7, 7]
        twins.close()


@thorough
def check_taking_back_and_states(comm: gf.Communicator) -> None:
    """An iteration that is taken back; and a run that is loaded, from a device on the host and the other way round."""
    options = {"ratios": [9, 2, 1, 1, 5, 100, 1], "momentum": 0.5}
    twins = make(comm, "float32", options)
    for step in range(2):
        twins.iterate(step)
    twins.ready(twins.write([77]))
    twins.pools[0].wait()
    twins.pools[1].wait(stream=twins.streams[1])
    twins.pools[0].rollback()
    twins.pools[1].rollback(twins.streams[1])
    _core.device.order(DEVICE, twins.streams[1], 0)
    twins.check("taken back")
    others = make(comm, "float32", options)
    for old, new in zip(twins.pools[::-1], others.pools, strict=True):
        new.load_state_dict(old.state_dict())
    for before, after in zip(twins.optimizers[::-1], others.optimizers, strict=True):
        after.load_state_dict(before.state_dict())
    for step in range(3, 6):
        twins.iterate(step)
        others.iterate(step)
        others.check(step)
        assert np.array_equal(twins.pools[0].memory, others.pools[0].memory)
    others.close()
    twins.close()


def outcome(call: Callable[[], None]) -> str:
    """Return the error that a call ends with."""
    try:
        call()
    except GradientFlowError as error:
        return f"{type(error).__name__}: {error}"
    return ""


def outcomes(twins: Twins, call: Callable[[Any, Any], None]) -> list[str]:
    """Return how a call ends with both pools."""
    streams = None, twins.streams[1]
    found = [outcome(partial(call, pool, stream)) for pool, stream in zip(twins.pools, streams, strict=True)]
    for stream in twins.streams:
        _core.device.order(DEVICE, stream, 0)
    return found


@on_ranks(1, 3)
def check_what_may_go_wrong(comm: gf.Communicator) -> None:
    """The same errors, with nothing changed: not finite, in sparse and dense layers, and ratios that differ."""
    culprit = SIZE - 1
    for ratios, bad in (([9, 2, 1, 3, 5, 100, 1], np.nan), ([9, 2, 1, 1, 5, 100, 1], -np.inf)):
        twins = make(comm, "float32", {"ratios": ratios, "momentum": 0.5})
        for step in range(4):
            if step == 1:
                twins.ready(twins.write([step], 1.0, bad if culprit == RANK else None))
                left, right = outcomes(twins, lambda pool, stream: pool.wait(stream=stream))
                assert left == right
                assert NonFiniteError.__name__ in right
                assert f"tensor 3 is not finite on rank {culprit}" in right
                assert not twins.pools[1].memory.get().any()
            elif step == 2 and SIZE > 1:
                for pool in twins.pools:
                    pool.ratios = 4 if culprit == RANK else ratios
                twins.ready(twins.write([step]))
                left, right = outcomes(twins, lambda pool, stream: pool.wait(stream=stream))
                assert left == right
                assert MismatchError.__name__ in right
                for pool in twins.pools:
                    pool.ratios = ratios
            else:
                twins.iterate(step)
            twins.check((ratios, step))
        twins.close()
    if SIZE > 1:
        with raises(MismatchError, "on CUDA devices"):
            gf.TopKGradientPool(comm, [6], device=DEVICE if RANK == 0 else "cpu")


@thorough
def check_giving_up_and_coming_late(comm: gf.Communicator) -> None:
    """A rank abandons an iteration; another time the others wait for it in vain, and again."""
    twins = make(comm, "float32", {"ratios": [9, 2, 1, 1, 5, 100, 1], "momentum": 0.5, "merge_bytes": 0})
    for step in range(4):
        if step == 1:
            written = twins.write([step])
            if RANK == 0:
                twins.ready([each for each in written if each[0] in (3, 5)])
                assert outcomes(twins, lambda pool, stream: pool.rollback(stream)) == ["", ""]
            else:
                twins.ready(written)
                assert outcomes(twins, lambda pool, stream: pool.wait(stream=stream)) == ["", ""]
        elif step == 2 and SIZE > 1:
            written = twins.write([step])
            if RANK > 0:
                twins.ready(written)
                with raises(CommunicationTimeoutError, "not averaged within 0.05 s; it goes on"):
                    twins.pools[1].wait(timeout=0.05)
            WORLD.Barrier()
            if RANK == 0:
                twins.ready(written)
            for pool in twins.pools:
                pool.wait(timeout=60)
        else:
            twins.iterate(step)
        twins.check(step)
    twins.close()


@thorough
def check_times_are_those_of_the_device(comm: gf.Communicator) -> None:
    """A layer is ready when the device has computed it, though the host has said so before; the ratios follow."""
    strategy = parse_strategy("lags(max_ratio=50, warmup=2)")
    layout = Layout(tuple("abc"), ((1 << 14,),) * 3, ("float32",) * 3, device=DEVICE)
    busy = device.empty(1 << 24, "uint8", DEVICE), device.empty(1 << 24, "uint8", DEVICE)
    with (
        mock.patch.object(CallTime, "of_allreduce", return_value=CallTime(0.02, 0.0)),
        mock.patch.object(CallTime, "of_allgather", return_value=CallTime(100.0, 0.0)),
    ):
        synchronizer: Any = strategy.bind(comm, layout)
        (pool,) = synchronizer.pools
        for _ in range(2):
            synchronizer.begin(Iteration())
            synchronizer.ready(0)
            for _ in range(50):
                _core.device.copy(DEVICE, busy[0]._address, busy[1]._address, busy[0].nbytes, 0)
            synchronizer.ready(1)
            synchronizer.ready(2)
            said = time.monotonic()
            synchronizer.wait()
            assert [report.ready > said for report in pool.layer_selections[1:]] == [True, True]
            synchronizer.after_step()
        assert synchronizer.ratios == (1, 50, 50)  # the first is averaged while the second is computed
        synchronizer.close()


run_checks()
