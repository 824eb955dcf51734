"""The sparse pool and the optimizers on CUDA devices: step by step the same bits as on the host."""

from __future__ import annotations

import math
import time

import numpy as np
from marks import on_ranks
from support import RANK, SIZE, raises, run_checks
from twins import DEVICE, DEVICES, Twins

import gradientflow as gf
from gradientflow import _core, device
from gradientflow.errors import (
    ArgumentError,
    ArgumentTypeError,
    ClosedError,
    CommunicationTimeoutError,
    MismatchError,
    NonFiniteError,
)

# ---- the same bits ---------------------------------------------------------------------------------------------------


@on_ranks(1, 2, 3)
def check_plain(comm: gf.Communicator) -> None:
    """Densities, momenta and chunk sizes: smaller than tensors, larger than them, and not a multiple of anything.

    A third of them for each number of ranks, another one with the next number.
    """
    cases = (
        ("float32", 0.2, 0.9, 64),
        ("float32", 0.5, 1.0, 2500),
        ("float16", 0.3, 0.5, 333),
        ("bfloat16", 0.1, 0.9, 512),
        ("float32", 0.3, 0.0, 100),
        ("float32", 1.0, 0.9, 10**6),
    )
    for dtype, density, momentum, chunk_size in cases[SIZE % 3 :: 3]:
        pool = {"density": density, "momentum": momentum, "chunk_size": chunk_size, "extra": 2}
        twins = Twins(comm, dtype, pool, lr=lambda t: 0.5 / (1 + t), momentum=0.9, weight_decay=0.01)
        for step in range(6):
            for each in twins.pools:
                each.extra[:] = RANK, step
            twins.iterate(step)
            twins.check((dtype, density, momentum, chunk_size, step))
            for each in twins.pools:
                each.zero()
            assert not twins.pools[1].memory.get().any()
        assert twins.pools[1].iteration == 6
        assert len(twins.pools[1].reports) >= 2
        twins.close()


def check_thresholds(comm: gf.Communicator) -> None:
    """What is sent travels chunk by chunk, or all at once."""
    for threshold in (0, math.inf):
        pool = {"density": 0.3, "momentum": 0.9, "chunk_size": 200, "fusion_threshold": threshold}
        twins = Twins(comm, "float32", pool, lr=0.1, correction=False)
        for step in range(4):
            twins.iterate(step)
            twins.check((threshold, step))
        twins.close()


@on_ranks(1, 3)
def check_mixed_precision(comm: gf.Communicator) -> None:
    """With loss scales that change, overflows on some rank, and master weights; SGD and LARS."""
    cases = (("float16", "float16", False), ("bfloat16", "bfloat16", True), ("float16", "float32", True))
    for dtype, weights, lars in (cases[SIZE % 3], cases[(SIZE + 1) % 3]):
        pool = {"density": 0.3, "momentum": 0.5, "chunk_size": 300, "skip_nonfinite": True}
        twins = Twins(comm, dtype, pool, lars=lars, weights=weights, lr=0.125, momentum=0.5, loss_scale=None)
        scales = [gf.optimizers.LossScale(2.0**4, growth_interval=3) for _ in twins.optimizers]
        for optimizer, scale in zip(twins.optimizers, scales, strict=True):
            optimizer.loss_scale = scale
            optimizer._source.set_scale()
        for step in range(7):
            assert scales[0].value == scales[1].value
            is_bad = step in (2, 3, 5)
            twins.iterate(step, scales[0].value, np.inf if is_bad and step % SIZE == RANK else None)
            assert twins.pools[1].overflowed == is_bad
            twins.check((dtype, weights, lars, step))
        assert scales[1].overflows == 3
        twins.close()


def check_dense_steps(comm: gf.Communicator) -> None:
    """The optimizers on a dense pool, with the counting of what is not finite."""
    for dtype, weights, lars, momentum in (
        ("float32", "float32", False, 0.9),
        ("float32", "float32", True, 0.0),
        ("float16", "float16", True, 0.9),
        ("bfloat16", "bfloat16", False, 0.0),
    ):
        twins = Twins(
            comm, dtype, {}, lars=lars, weights=weights, lr=0.1, momentum=momentum, weight_decay=0.01, loss_scale=None
        )
        for optimizer in twins.optimizers:
            optimizer.loss_scale = gf.optimizers.LossScale(2.0)
        for step in range(4):
            for optimizer in twins.optimizers:
                optimizer.momentum = 0.0 if step == 1 else momentum
            twins.iterate(step, 2.0, np.nan if step == 2 and RANK == SIZE - 1 else None)
            if step != 2:  # a NaN has other bits, perhaps
                twins.check((dtype, weights, lars, step))
        assert [optimizer.steps for optimizer in twins.optimizers] == [3, 3]
        twins.close()


def check_lars_at_the_ends_of_float32(comm: gf.Communicator) -> None:
    """Norms whose squares overflow, or vanish, in float32; beside others that do neither."""
    twins = Twins(comm, "float32", {}, lars=True, lr=0.1, momentum=0.5, weight_decay=0.01)
    for step, factor in enumerate((1e-25, 1e25, 1.0)):
        twins.iterate(step, factor)
        twins.check(factor)
    twins.close()


def check_steps_ahead(comm: gf.Communicator) -> None:
    """Steps that the host makes long before the device does, each with another rate."""
    twins = Twins(comm, "float32", {}, lr=lambda t: 1 / (1 + t), momentum=0.5)
    twins.iterate(0)
    for _, stream in twins.write([1]):
        _core.device.order(DEVICE, stream, 0)
    twins.keep_busy(0)
    for _ in range(5):
        for pool, optimizer in zip(twins.pools, twins.optimizers, strict=True):
            pool.ready()
            pool.wait()
            optimizer.step()
    twins.check("ahead")
    twins.close()


# ---- what may go wrong -----------------------------------------------------------------------------------------------


@on_ranks(1, 3)
def check_not_finite(comm: gf.Communicator) -> None:
    """The same error, with the same place, and nothing changed, whether the chunk is sent or not."""
    culprit = SIZE - 1
    for chunk_size, momentum, bad in ((64, 0.9, np.nan), (10**6, 0.9, np.inf), (100, 0.0, -np.inf)):
        pool = {"density": 0.2, "momentum": momentum, "chunk_size": chunk_size}
        twins = Twins(comm, "float32", pool, lr=0.5)
        for step in range(4):
            if step not in (0, 2, 3):
                twins.iterate(step)
                twins.check((chunk_size, step))
                continue
            twins.ready(twins.write([step], 1.0, bad if culprit == RANK else None))
            messages = []
            for each, stream in zip(twins.pools, ({}, {"stream": twins.streams[1]}), strict=True):
                try:
                    each.wait(**stream)
                except NonFiniteError as error:
                    messages.append(str(error))
                each.zero()
            assert len(messages) == 2, (chunk_size, step)
            assert messages[0] == messages[1]
            assert f"on rank {culprit}" in messages[1]
            _core.device.order(DEVICE, twins.streams[1], 0)
            assert len(twins.pools[1].spans) == 0
            twins.check((chunk_size, step))
        twins.close()


@on_ranks(1, 3)
def check_abandoned(comm: gf.Communicator) -> None:
    """A rank gives an iteration up, with some tensors ready: it keeps its residuals, and the others go on."""
    pool = {"density": 0.3, "momentum": 0.9, "chunk_size": 150}
    twins = Twins(comm, "float32", pool, lr=0.5)
    for step in range(4):
        if step not in (1, 2):
            twins.iterate(step)
            twins.check(step)
            continue
        written = twins.write([step])
        last = twins.streams[1]
        if RANK == 0:
            # One tensor is ready, which fills no chunk; or several, which do.
            said = [each for each in written if each[0] == 4] if step == 1 else written[:3]
            last = next(stream for stream in twins.streams if stream != said[0][1])
            for stream in {*twins.streams} - {stream for _, stream in said}:
                _core.device.order(DEVICE, stream, last)
            for index, stream in said:
                twins.keep_busy(stream)
                twins.put(index, stream)
            twins.ready(said)
            twins.pools[0].rollback()
            twins.pools[1].rollback(last)
        else:
            twins.ready(written)
            twins.pools[0].wait()
            twins.pools[1].wait(stream=last)
        for stream in twins.streams:  # also what comes late is there when values are read
            _core.device.order(DEVICE, stream, 0)
        twins.check(step)
    twins.close()


def check_late(comm: gf.Communicator) -> None:
    """A rank that comes late: the others' wait ends in time, and the iteration goes on."""
    if SIZE == 1:
        return
    twins = Twins(comm, "float32", {"density": 0.3, "momentum": 0.9, "chunk_size": 150}, lr=0.5)
    for step in range(2):
        written = twins.write([step])
        twins.ready(written)
        twins.pools[0].wait()
        if RANK == 0:
            time.sleep(0.2)
        else:
            with raises(CommunicationTimeoutError, "not averaged within 0.05 s; it goes on"):
                twins.pools[1].wait(timeout=0.05)
            assert twins.pools[1].iteration == step
        twins.pools[1].wait(timeout=60)
        twins.check(step)
    twins.close()


@on_ranks(1, 3)
def check_states(comm: gf.Communicator) -> None:
    """A run that is loaded goes on bit by bit, from a device on a device, and from there on the host."""
    pool = {"density": 0.3, "momentum": 0.9, "chunk_size": 150}
    twins = Twins(comm, "float16", pool, weights="float16", lr=0.5, momentum=0.9)
    for step in range(3):
        twins.iterate(step)
    others = Twins(comm, "float16", pool, weights="float16", lr=0.5, momentum=0.9)
    for old, new in zip(twins.pools[::-1], others.pools, strict=True):
        new.load_state_dict(old.state_dict())
        sums = old.consolidated_state_dict()
        assert sums["rank"] is None
    for before, after in zip(twins.optimizers[::-1], others.optimizers, strict=True):
        after.load_state_dict(before.state_dict())
    for step in range(3, 6):
        twins.iterate(step)
        others.iterate(step)
        others.check(step)
        assert np.array_equal(twins.pools[0].memory, others.pools[0].memory)
        assert all(a.tobytes() == b.tobytes() for a, b in zip(twins.weights, others.weights, strict=True))
    residual = [np.full(shape, index, np.float32) for index, shape in enumerate(twins.pools[0].shapes)]
    for each in twins.pools:
        each.set_residuals(residual)
    assert not twins.pools[1].memory.get().any()
    twins.check_kept("hold")
    others.close()
    twins.close()


def check_refusals(comm: gf.Communicator) -> None:
    sparse = gf.SparseGradientPool(comm, [6, 3], density=0.5, chunk_size=4, device=DEVICE)
    on_host = gf.GradientPool(comm, [6, 3])
    here = [device.asarray(np.ones(6, np.float32), DEVICE), device.asarray(np.ones(3, np.float32), DEVICE)]
    host = [np.ones(6, np.float32), np.ones(3, np.float32)]
    place = f"on CUDA device {DEVICE}"
    with raises(ArgumentError, "the weights of tensor 1 are in memory of the host", f"optimizer {place}"):
        gf.optimizers.SGD(sparse, [here[0], host[1]], lr=0.1)
    with raises(ArgumentError, f"the weights of tensor 0 are {place}", "optimizer in memory of the host"):
        gf.optimizers.SGD(on_host, here, lr=0.1)
    if DEVICES > 1:
        other = (DEVICE + 1) % DEVICES
        elsewhere = device.asarray(np.ones(6, np.float32), other)
        with raises(ArgumentError, f"the weights of tensor 0 are on CUDA device {other}", place):
            gf.optimizers.LARS(sparse, [elsewhere, here[1]], lr=0.1)
    with raises(ArgumentTypeError, "weights are float32, float16 or bfloat16, not float64"):
        gf.optimizers.SGD(sparse, [device.asarray(np.ones(6), DEVICE), here[1]], lr=0.1)
    with raises(ArgumentError, "tensor 0 of the weights has 5 elements"):
        gf.optimizers.SGD(sparse, [device.asarray(np.ones(5, np.float32), DEVICE), here[1]], lr=0.1)
    optimizer = gf.optimizers.SGD(sparse, here, lr=0.1)
    for pool in (on_host, sparse):
        pool.ready()
        pool.wait()
    with raises(ArgumentError, "the gradients of the pool are in memory of the host", f"optimizer {place}"):
        optimizer._natives[0].step(on_host.update(), [(0.1, 0.0, 0.0, 0.0, False, None)] * 2, 1.0)
    with raises(ArgumentError, f"the gradients of the pool are {place}"):
        gf.optimizers.SGD(on_host, host, lr=0.1)._natives[0].step(
            sparse.update(), [(0.1, 0.0, 0.0, 0.0, False, None)] * 2, 1.0
        )
    with raises(ArgumentTypeError, "not float64"):
        gf.SparseGradientPool(comm, [6], "float64", device=DEVICE)
    with raises(ArgumentTypeError, "a stream is a number"):
        sparse.wait(stream="stream")
    if SIZE > 1:
        with raises(MismatchError, "on CUDA devices"):
            gf.SparseGradientPool(comm, [6], device=DEVICE if RANK == 0 else "cpu")
    sparse.ready(0)
    with raises(ArgumentError, "tensor 0 was already ready"):
        sparse.ready(0)
    with raises(ArgumentError, "between iterations"):
        sparse.zero()
    sparse.wait()
    sparse.close()
    with raises(ClosedError, "closed"):
        sparse.ready(0)
    assert sparse.views[0].get().tolist() == [0] * 6  # the memory stays


run_checks()
