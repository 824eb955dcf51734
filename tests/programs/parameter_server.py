"""The parameter server: rounds in straight lines, pulls, timeouts, back-pressure, and what may go wrong."""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import resource
import shutil
import signal
import struct
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from marks import on_ranks
from support import RANK, SIZE, WORLD, narrow, raises, run, run_checks, scaled, widen

import gradientflow as gf
from gradientflow.errors import (
    ArgumentError,
    ArgumentTypeError,
    ClosedError,
    CommunicationTimeoutError,
    MismatchError,
    PeerError,
)
from gradientflow.strategies import Settings

SHAPES: list[Any] = [(3, 5), (1,), (0,), (700,), (40, 9), (0, 3), (33,)]
LATE = scaled(30.0 if SIZE <= 8 else 120.0)  # seconds after which something hangs

Arrays = list[np.ndarray]
Pushed = Sequence[np.ndarray | None]  # by one worker; None where it has no gradient


def rounded(values: np.ndarray, wire: str) -> np.ndarray:
    """Return float32 numbers as they are after they have travelled."""
    return widen(narrow(values)) if wire == "bfloat16" else values.astype(wire).astype(np.float32)


def draw(*seed: int, shapes: Sequence[Any] = SHAPES) -> Arrays:
    return [each.copy() for each in _drawn(seed, tuple(shapes))]


@cache
def _drawn(seed: tuple[int, ...], shapes: tuple[Any, ...]) -> Arrays:
    random = np.random.default_rng(seed)
    return [random.standard_normal(shape).astype(np.float32) for shape in shapes]


def zeros() -> Arrays:
    return [np.zeros(shape, np.float32) for shape in SHAPES]


def same(one: Sequence[np.ndarray], two: Sequence[np.ndarray]) -> bool:
    return all(np.array_equal(a.view(np.uint32), b.view(np.uint32)) for a, b in zip(one, two, strict=True))


def mean_of(pushes: Sequence[Pushed], i: int, wire: str) -> np.ndarray | None:
    """Return the mean of a tensor's gradients, added in the order of the pushes; None if no push has one."""
    given = [push[i] for push in pushes]
    shape = next((each.shape for each in given if each is not None), None)
    if shape is None:
        return None
    first, *others = (np.zeros(shape, np.float32) if each is None else rounded(each, wire) for each in given)
    for each in others:
        first = first + each
    return first / np.float32(len(pushes))


class StraightLine:
    """Servers of momentum SGD, written without any of the library."""

    def __init__(self, weights: Arrays, wire: str, rate_in_momentum: bool = False) -> None:
        self.weights = [each.copy() for each in weights]
        self.momentum = [np.zeros_like(each) for each in weights]
        self.wire = wire
        self.rate_in_momentum = rate_in_momentum

    def round(self, pushes: Sequence[Pushed], settings: Sequence[Settings], scale: float = 1.0) -> None:
        for i, (rate, momentum, decay, *_) in enumerate(np.array(settings, np.float32)):
            mean = mean_of(pushes, i, self.wire)
            if mean is None:
                continue
            inner, outer = (rate, np.float32(1)) if self.rate_in_momentum else (np.float32(1), rate)
            step = inner * (mean * np.float32(1 / scale) + decay * self.weights[i])
            if momentum:
                step = self.momentum[i] = momentum * self.momentum[i] + step
            self.weights[i] = self.weights[i] - outer * step

    def pulled(self) -> Arrays:
        return [rounded(each, self.wire) for each in self.weights]


def server_counts() -> list[int | None]:
    return [None, *sorted({1, (SIZE + 1) // 2, SIZE})]


@on_ranks(1, 2, 3)
def check_rounds(comm: gf.Communicator) -> None:
    settings = [Settings(0.1 + 0.01 * i, 0.9 if i % 2 else 0.0, 0.01 * i) for i in range(len(SHAPES))]
    for wire in ("float32", "float16", "bfloat16"):
        for servers in server_counts():
            for threshold in (0, 1000, None) if wire == "float32" else (400,):
                weights = draw(1, RANK)  # those of rank 0 count
                line = StraightLine(draw(1, 0), wire)
                with gf.ParameterServer(
                    comm, weights, servers=servers, wire=wire, fusion_threshold=threshold
                ) as server:
                    assert server.wire == wire
                    assert servers is None or server.servers == servers
                    server.pull_into(weights)
                    assert same(weights, line.pulled())
                    for step in range(4):
                        pushes = [draw(2, step, rank) for rank in range(SIZE)]
                        for i in np.random.default_rng([step, RANK]).permutation(len(SHAPES)):
                            server.ready(int(i), pushes[RANK][i])
                        now = [s._replace(rate=s.rate / (1 + step // 2)) for s in settings]
                        if step == 2:
                            now = [s._replace(momentum=0.0) for s in now]  # which leaves the momentum as it is
                        push = server.push(now, loss_scale=1 << step)
                        line.round(pushes, now, 1 << step)
                        server.pull_into(weights)
                        assert push.done
                        assert push.wait(LATE) == "applied"
                        assert same(weights, line.pulled()), (wire, servers, threshold, step)
                    server.pull_into(weights, exact=True)
                    assert same(weights, line.weights)
                    server.finish(weights)
                    assert same(weights, line.weights)


def check_large_tensors(comm: gf.Communicator) -> None:
    """Ranges that are parts of a tensor, in several messages each; weights are taken as they come."""
    shapes: list[Any] = [(90_001,), (7,), (50_000,)]
    for wire, threshold in (("float32", 100_000), ("float32", None), ("float16", 70_000)):
        for servers in {1, SIZE}:
            weights = draw(20, shapes=shapes)
            line = StraightLine(weights, wire)
            with gf.ParameterServer(comm, weights, servers=servers, wire=wire, fusion_threshold=threshold) as server:
                for step in range(3):
                    pushes = [draw(21, step, rank, shapes=shapes) for rank in range(SIZE)]
                    settings = Settings(0.1, 0.9, 0.01)
                    _, pull = server.push_pull(settings, gradients=pushes[RANK], exact=step == 2)
                    pull.take_all(weights, LATE)
                    line.round(pushes, [settings] * len(shapes))
                    assert same(weights, line.weights if step == 2 else line.pulled()), (wire, threshold, step)
                server.finish(weights)
                assert same(weights, line.weights)


@on_ranks(1, 2)
def check_versions_past_the_caches(comm: gf.Communicator) -> None:
    """Shards of more than 4 MiB, whose versions are written past the caches; tails that are no whole vector."""
    if SIZE > 2:
        return
    shapes: list[Any] = [(7,), (1_200_003,), (1025,)]
    for wire, momentum in (("float32", 0.0), ("float32", 0.9), ("float16", 0.9)):
        weights = draw(22, shapes=shapes)
        line = StraightLine(weights, wire)
        settings = Settings(0.1, momentum, 0.01)
        with gf.ParameterServer(comm, weights, servers=1, wire=wire) as server:
            for step in range(3):
                pushes = [draw(23, step, rank, shapes=shapes) for rank in range(SIZE)]
                push, pull = server.push_pull(settings, gradients=pushes[RANK], exact=step == 1)
                pull.take_all(weights, LATE)
                assert push.wait(LATE) == "applied"
                line.round(pushes, [settings] * len(shapes))
                assert same(weights, line.weights if step == 1 else line.pulled()), (wire, momentum, step)
            server.finish()


@on_ranks(1, 3)
def check_what_is_pushed(comm: gf.Communicator) -> None:
    """Gradients of other dtypes, by address, and not at all; skipped rounds."""
    weights = zeros()
    line = StraightLine(weights, "float32")
    with gf.ParameterServer(comm, weights) as server:
        halves = [each.astype(np.float16) for each in draw(5, RANK)]
        for i, each in enumerate(halves[:4]):
            if i % 2:
                server.ready(i, each)
            else:
                server.ready(i - len(SHAPES), (each.ctypes.data, "float16"))
        assert server.push(Settings(0.5)).wait(LATE) == "applied"
        pushed = [[each.astype(np.float16).astype(np.float32) for each in draw(5, r)] for r in range(SIZE)]
        line.round([each[:4] + [None] * 3 for each in pushed], [Settings(0.5)] * len(SHAPES))
        server.pull_into(weights)
        assert same(weights, line.weights)
        bad = [np.full_like(each, np.nan) for each in weights]
        skipped = server.push(Settings(0.5, 0.9), gradients=bad, skip=RANK == SIZE - 1)
        applied = server.push(Settings(0.5, 0.9), gradients=draw(6, RANK))
        assert skipped.wait(LATE) == "skipped"
        assert applied.wait(LATE) == "applied"
        line.round([draw(6, rank) for rank in range(SIZE)], [Settings(0.5, 0.9)] * len(SHAPES))
        server.pull_into(weights)
        assert same(weights, line.weights)
        server.finish()


@on_ranks(1, 3)
def check_tensors_without_a_gradient(comm: gf.Communicator) -> None:
    """A round leaves a tensor alone that none of its pushes has; one that some have gets zeros from the others."""
    settings = [Settings(0.1, 0.9, 0.01 * i) for i in range(len(SHAPES))]
    for wire, words in (("float32", "sgd"), ("float16", "sgd(rate_in_momentum=True)"), ("bfloat16", "sgd")):
        weights = draw(24)
        line = StraightLine(weights, wire, "True" in words)
        with gf.ParameterServer(comm, weights, optimizer=words, wire=wire, fusion_threshold=400) as server:
            for step in range(6):
                pushes: list[Pushed] = [
                    [None if step % 3 and (i + step + rank * (step > 3)) % 3 else each for i, each in enumerate(drawn)]
                    for rank, drawn in enumerate(draw(25, step, rank) for rank in range(SIZE))
                ]
                now = [each._replace(rate=0.1 / (1 + step)) for each in settings]
                if step == 4:
                    for i, each in enumerate(pushes[RANK]):
                        if each is not None:
                            server.ready(i, each)
                server.push(now, gradients=None if step == 4 else pushes[RANK])
                line.round(pushes, now)
                server.pull_into(weights)
                assert same(weights, line.pulled()), (wire, step)
            assert same(server.state_dict()["momentum"], line.momentum)
            server.finish(weights)
            assert same(weights, line.weights)


def check_pushes_that_are_applied_alone(comm: gf.Communicator) -> None:
    """A push moves no tensor that it does not have, though others have it in theirs."""
    weights = [np.full(5, 2.0, np.float32) for _ in range(SIZE + 1)]
    with gf.ParameterServer(comm, weights, "asp", fusion_threshold=0, servers=1) as server:
        for _ in range(3):
            own: list[Any] = [np.ones(5, np.float32) if i == RANK else None for i in range(SIZE + 1)]
            server.push(Settings(0.5, 0.0, 0.5), gradients=own).wait(LATE)  # w = w - (1 + w / 2) / 2
        server.finish(weights)
    for each in weights[:SIZE]:
        assert np.all(each == 0.75 * (0.75 * (0.75 * 2 - 0.5) - 0.5) - 0.5), each
    assert np.all(weights[SIZE] == 2)


@on_ranks(1, 3)
def check_a_pull_stays(comm: gf.Communicator) -> None:
    """What has been pulled stays as it was, however many rounds follow before it is taken."""
    for wire in ("float32", "float16"):
        weights = zeros()
        line = StraightLine(weights, wire)
        with gf.ParameterServer(comm, weights, wire=wire) as server:
            for later in range(5):
                before = line.pulled()
                pull = server.pull()
                pull.wait(LATE)
                pull.take(0, weights[0])
                for step in range(later):
                    server.push(Settings(0.1, 0.5), gradients=draw(7, step, RANK))
                    line.round([draw(7, step, rank) for rank in range(SIZE)], [Settings(0.1, 0.5)] * len(SHAPES))
                pull.take_all(weights)
                assert same(weights, before)
            server.pull_into(weights)
            assert same(weights, line.pulled())
            with raises(ArgumentError, "has given way"):
                pull.take(0, weights[0])
            server.finish()


@on_ranks(1, 2, 3)
def check_asynchronous(comm: gf.Communicator) -> None:
    """Each push is applied once, alone, whoever comes when; whole numbers are exact."""
    weights = zeros()
    with gf.ParameterServer(comm, weights, "asp", servers=(SIZE + 1) // 2) as server:
        for _ in range(2):  # afresh after finish
            for step in range(3 + 4 * RANK):
                before = [each.copy() for each in weights]
                push = server.push(Settings(1.0), gradients=[np.full_like(each, -1.0) for each in weights])
                if step % 3:
                    assert push.wait(LATE) == "applied"
                server.pull_into(weights)
                for one, other in zip(weights, before, strict=True):
                    assert np.all(one >= other + 1)  # its own, and perhaps others'
            server.finish(weights)
        total = 2 * sum(3 + 4 * rank for rank in range(SIZE))
        assert all(np.all(each == total) for each in weights), weights


@on_ranks(1, 3)
def check_finish(comm: gf.Communicator) -> None:
    """Workers that push different numbers of times: rounds go on with those that are left."""
    weights = zeros()
    line = StraightLine(weights, "float32")
    with gf.ParameterServer(comm, weights) as server:
        for _ in range(2):
            for step in range(RANK + 1):
                server.push(Settings(0.1, 0.9), gradients=draw(8, step, RANK))
            server.finish(weights)
            for step in range(SIZE):
                line.round([draw(8, step, rank) for rank in range(step, SIZE)], [Settings(0.1, 0.9)] * len(SHAPES))
            assert same(weights, line.weights)


def check_timeouts(comm: gf.Communicator) -> None:
    weights = zeros()
    with gf.ParameterServer(comm, weights) as server:
        if RANK == 0 and SIZE > 1:
            push = server.push(Settings(1.0), gradients=draw(9, 0))
            pull = server.pull()
            for waiting in (push, pull):
                with raises(CommunicationTimeoutError, "rank 0", "0.05 s", "it goes on"):
                    waiting.wait(0.05)
            assert not push.done
            assert not pull.done
            with raises(CommunicationTimeoutError, "rank 0", "0.05 s", "it goes on"):
                pull.take(0, weights[0], 0.05)
            with raises(ArgumentError, "still under way"):
                server.pull()
            with raises(ArgumentError, "still under way"):
                server.push_pull(Settings(1.0), gradients=draw(9, 0))
            assert server._native.ready_count == 0  # they can be given again
            WORLD.Barrier()
        else:
            WORLD.Barrier()
            push = server.push(Settings(1.0), gradients=draw(9, RANK))
            pull = server.pull()
        pull.wait(LATE)
        assert pull.done
        assert push.done
        server.finish(timeout=LATE)


def check_back_pressure(comm: gf.Communicator) -> None:
    """Two pushes may be under way, and the third waits: memory is bounded."""
    if SIZE == 1:
        return
    weights = zeros()
    with gf.ParameterServer(comm, weights) as server:
        if RANK == 0:
            pushes = [server.push(Settings(1.0), gradients=draw(10, i)) for i in range(2)]
            begin = time.monotonic()
            WORLD.Ibarrier().Wait()
            pushes.append(server.push(Settings(1.0), gradients=draw(10, 2)))
            assert time.monotonic() - begin > 0.2
        else:
            WORLD.Ibarrier().Wait()
            time.sleep(0.3)
            pushes = [server.push(Settings(1.0), gradients=draw(10, i)) for i in range(3)]
        for push in pushes:
            push.wait(LATE)
        server.finish()


def check_settings_that_differ(comm: gf.Communicator) -> None:
    if SIZE == 1:
        return
    weights = zeros()
    names = [f"layer {i}" for i in range(len(SHAPES))]
    rate = 0.5 if RANK == SIZE - 1 else 1.0
    with (
        raises(MismatchError, "rate of 'layer 0'", "0.5", f"rank {SIZE - 1}"),
        gf.ParameterServer(comm, weights, names=names) as server,
    ):
        server.push(Settings(rate), gradients=draw(11)).wait(LATE)
    WORLD.Barrier()
    with raises(MismatchError, "loss_scale", f"rank {SIZE - 1}"), gf.ParameterServer(comm, weights) as server:
        server.push(Settings(1.0), 2.0 if RANK == SIZE - 1 else 1.0, gradients=draw(11))
        server.pull_into(weights)


def check_a_reason_that_comes_late(comm: gf.Communicator) -> None:
    """Rank 0 has failed and left before the others ask for what it was to send them; they have heard that it left."""
    if SIZE == 1:
        return
    weights = zeros()
    server = gf.ParameterServer(comm, weights, servers=1)
    if RANK > 0:
        server.push(Settings(1.0), gradients=draw(11))
        pull = server.pull()
    WORLD.Barrier()
    if RANK == 0:
        with raises(MismatchError, "rate", "0.5"), server:
            server.push(Settings(0.5), gradients=draw(11)).wait(LATE)
    WORLD.Barrier()
    if RANK > 0:
        time.sleep(0.1)
        with raises(MismatchError, "rate", "0.5"), server:
            pull.take_all(weights)


def check_policies_of_users(comm: gf.Communicator) -> None:
    """One that applies each push as it comes, and raises in the end. No handler of a signal can raise in it."""
    asked: list[threading.Thread] = []

    class Twice(gf.policies.Policy):
        def start(self, workers: int) -> Any:
            asked.append(threading.current_thread())
            pushes = 0

            class Running:
                def pushed(self, worker: int, seconds: float) -> gf.policies.Answer:
                    nonlocal pushes
                    asked.append(threading.current_thread())
                    pushes += 1
                    if pushes > workers:
                        raise RuntimeError("that is enough")
                    return gf.policies.Answer([[worker]], [worker])

                def departed(self, worker: int, seconds: float) -> gf.policies.Answer:
                    return gf.policies.Answer()

            return Running()

    weights = zeros()
    ones = [np.ones_like(each) for each in weights]
    with gf.ParameterServer(comm, weights, Twice()) as server:
        asked.clear()  # its constructor starts the policy, too
        time.sleep(0.1 * RANK)  # so that rank 0, which serves, waits for what others push
        server.push(Settings(1.0), gradients=ones).wait(LATE)
        server.finish(weights)
        assert all(np.all(each == -SIZE) for each in weights)
        server.finish()
        assert threading.main_thread() not in asked
        assert RANK > 0 or len(asked) > SIZE
    with raises(ArgumentError, "that is enough"), gf.ParameterServer(comm, weights, Twice()) as server:
        for _ in range(2):
            server.push(Settings(1.0), gradients=ones).wait(LATE)
        server.finish(timeout=LATE)


def check_arguments(comm: gf.Communicator) -> None:
    weights = zeros()
    make = gf.ParameterServer
    with raises(ArgumentTypeError, "weights", "float64"):
        make(comm, [np.zeros(3)])
    with raises(ArgumentError, "contiguous"):
        make(comm, [np.zeros((4, 4), np.float32).T])
    with raises(ArgumentError, "servers", str(SIZE + 1)):
        make(comm, weights, servers=SIZE + 1)
    with raises(ArgumentError, "servers"):
        make(comm, weights, servers=0)
    with raises(ArgumentTypeError, "servers is a whole number, not True"):
        make(comm, weights, servers=True)
    if SIZE > 1:
        with raises(ArgumentError, "fewer servers"):
            make(comm, [np.zeros(3, np.float32)], servers=SIZE)
    with raises(ArgumentError, "wire is one of float32, float16, bfloat16, float8_e4m3, not 'float64'"):
        make(comm, weights, wire="float64")
    with raises(ArgumentError, "a parameter server sends values one by one, and those of float8_e4m3 share a scale"):
        make(comm, weights, wire="float8_e4m3")
    with raises(ArgumentError, "names"):
        make(comm, weights, names=["a"])
    with raises(ArgumentError, "nobody"):
        make(comm, weights, "nobody")
    with raises(ArgumentError, "optimizer"):
        make(comm, weights, optimizer="nobody")
    with raises(ArgumentTypeError, "rate_in_momentum is a bool"):
        make(comm, weights, optimizer="sgd(rate_in_momentum=1)")
    if SIZE > 1:
        with raises(MismatchError, "policy"):
            make(comm, weights, "asp" if RANK else "bsp")
        with raises(MismatchError, "optimizer"):
            make(comm, weights, optimizer="sgd(rate_in_momentum=True)" if RANK else "sgd")
        with raises(MismatchError, "parameter servers: the shape of tensor 1 is (3, 2) on rank 1 and (2, 3) on rank 0"):
            make(comm, [weights[0], np.zeros((3, 2) if RANK == 1 else (2, 3), np.float32)])
        with raises(MismatchError, "the name of tensor 1 is 'b' on rank 1 and 'a' on rank 0"):
            make(comm, weights[:2], names=["c", "b" if RANK == 1 else "a"])
        with raises(MismatchError, "rank 1 has the shape of tensor 2, which rank 0 has not"):
            make(comm, weights[: 3 if RANK == 1 else 2])
    with make(comm, weights) as server:
        with raises(ArgumentError, "tensor"):
            server.ready(len(SHAPES), weights[0])
        with raises(ArgumentError, "gradient 0 has 1 elements, and the tensor 15"):
            server.ready(0, weights[1])
        with raises(ArgumentError, "rate"):
            server.push(Settings(-1.0))
        with raises(ArgumentError, "settings"):
            server.push([Settings(1.0)] * 2)
        with raises(ArgumentError, "loss_scale"):
            server.push(Settings(1.0), 0.0)
        with raises(ArgumentError, "gradients"):
            server.push(Settings(1.0), gradients=weights[:2])
        server.ready(0, weights[0])
        with raises(ArgumentError, "0"):
            server.ready(0, weights[0])
        with raises(ArgumentError, "push"):
            server.finish()
        server.push(Settings(1.0)).wait(LATE)
        pull = server.pull()
        pull.wait(LATE)
        with raises(ArgumentError, "tensor"):
            pull.take(len(SHAPES), weights[0])
        with raises(ArgumentTypeError, "float64"):
            pull.take(0, np.zeros(15))
        server.finish()
    with raises(ClosedError, "closed"):
        server.pull()


@on_ranks(1, 3)
def check_tiny(comm: gf.Communicator) -> None:
    """No weights at all, and fewer than servers could have."""
    for shapes in ([], [(0,)], [(1,)], [(3,), (40,)]):
        weights = [np.zeros(shape, np.float32) for shape in shapes]
        with gf.ParameterServer(comm, weights) as server:
            for _ in range(2):
                server.push(Settings(1.0), gradients=[np.ones_like(each) for each in weights]).wait(LATE)
            server.finish(weights)
            assert all(np.all(each == -2) for each in weights)


def check_closing(comm: gf.Communicator) -> None:
    """A rank that closes without finishing, or raises, is named."""
    if SIZE == 1:
        return
    for orderly in (True, False):
        server = gf.ParameterServer(comm, zeros())
        if RANK == SIZE - 1:
            server.close(orderly)
        else:
            with raises(PeerError, f"rank {SIZE - 1}"):
                server.push(Settings(1.0)).wait(LATE)
            server.close(False)
        WORLD.Barrier()


def check_closing_in_any_order(comm: gf.Communicator) -> None:
    """Who has closed one serves on while another is open, and with the last one waits for all."""
    for servers in {1, SIZE}:
        opened = {i: gf.ParameterServer(comm, [np.full(400, i, np.float32)], servers=servers) for i in range(3)}
        for server in opened.values():
            server.push(Settings(1.0), gradients=[np.ones(400, np.float32)])
            server.finish()
        for turn in range(3):
            place = (RANK + turn) % 3
            server, found = opened.pop(place), np.zeros(400, np.float32)
            server.pull_into([found])
            assert (found == place - 1).all()
            server.close()
            assert server.closed
            del server
            WORLD.Barrier()  # nobody waits for who comes later


@on_ranks(1, 3)
def check_lars(comm: gf.Communicator) -> None:
    """Local rates from the norms of whole tensors, whatever the servers; the same bits everywhere."""
    found = []
    for servers in server_counts():
        weights = draw(13)
        line = StraightLine(weights, "float32", rate_in_momentum=True)
        with gf.ParameterServer(comm, weights, optimizer="lars", servers=servers, fusion_threshold=500) as server:
            for step in range(3):
                settings = [Settings(0.1, 0.9, 0.01, 0.02 if i % 2 == 0 else 0.0) for i in range(len(SHAPES))]
                pushes = [draw(14, step, rank) for rank in range(SIZE)]
                shown = [[None if (step, i) == (1, 0) else each for i, each in enumerate(push)] for push in pushes]
                server.push(settings, gradients=shown[RANK])
                local = []
                for i, each in enumerate(settings):
                    mean = sum(push[i].astype(np.float64) for push in pushes) / SIZE
                    norm, weight = float(np.linalg.norm(mean)), float(np.linalg.norm(line.weights[i]))
                    rate = each.rate * each.trust * weight / (norm + each.weight_decay * weight) if norm else each.rate
                    local.append(each._replace(rate=rate if each.trust else each.rate))
                line.round(shown, local)
            server.finish(weights)
        for one, other in zip(weights, line.weights, strict=True):
            np.testing.assert_allclose(one, other, 1e-5, 1e-6)
        found.append([each.tobytes() for each in weights])
        assert all(each == found[-1] for each in WORLD.allgather(found[-1]))
    with gf.ParameterServer(comm, draw(13)) as server, raises(ArgumentError, "trust", "lars"):
        server.push(Settings(0.1, trust=0.02))


class AdamLine:
    """Servers of Adam, written without any of the library, in float32 from operation to operation."""

    def __init__(self, weights: Arrays, beta1: float = 0.9, beta2: float = 0.999, eps: float = 1e-8) -> None:
        self.weights = [each.copy() for each in weights]
        self.mean, self.square = ([np.zeros_like(each) for each in weights] for _ in range(2))
        self.updates, self.betas, self.eps = [0] * len(weights), (beta1, beta2), eps

    def round(self, pushes: Sequence[Pushed], settings: Settings, scale: float = 1.0) -> None:
        (beta1, beta2), f = self.betas, np.float32
        for i, weight in enumerate(self.weights):
            mean = mean_of(pushes, i, "float32")
            if mean is None:
                continue
            self.updates[i] += 1
            g = mean * f(1 / scale) + f(settings.weight_decay) * weight
            self.mean[i] = f(beta1) * self.mean[i] + f(1 - beta1) * g
            self.square[i] = f(beta2) * self.square[i] + f(1 - beta2) * g * g
            rate = f(float(f(settings.rate)) / (1 - beta1 ** self.updates[i]))
            root = f(np.sqrt(1 - beta2 ** self.updates[i]))
            self.weights[i] = weight - rate * self.mean[i] / (np.sqrt(self.square[i]) / root + f(self.eps))


@on_ranks(1, 3)
def check_adam(comm: gf.Communicator) -> None:
    """A run that is saved, and goes on with another number of servers; its words have to be the same on all ranks.

    Each tensor has a number of updates of its own.
    """
    path = Path(WORLD.bcast(tempfile.mkdtemp() if RANK == 0 else "")) / "servers.npz"
    words, settings, weights = "adam(beta1=0.8, beta2=0.95, eps=1e-06)", Settings(0.01, 0.0, 0.1), draw(18)
    line = AdamLine(weights, 0.8, 0.95, 1e-6)

    def step(server: gf.ParameterServer, number: int) -> None:
        skip = number == 2  # which is no update
        now = settings._replace(rate=0.01 * (number + 1))
        pushes: list[Any] = [draw(19, number, rank) for rank in range(SIZE)]
        if number in (1, 6):
            pushes = [[*push[:3], None, *push[4:]] for push in pushes]
        done = server.push(now, 1 << number, skip and RANK == 0, gradients=pushes[RANK]).wait(LATE)
        assert done == ("skipped" if skip else "applied")
        if not skip:
            line.round(pushes, now, 1 << number)

    def check(server: gf.ParameterServer) -> dict[str, Any]:
        state = server.state_dict()
        assert same(state["weights"], line.weights)
        assert same(state["exp_avg"], line.mean)
        assert same(state["exp_avg_sq"], line.square)
        assert [n for n, each in zip(state["updates"], SHAPES, strict=True) if 0 not in each] == [
            n for n, each in zip(line.updates, SHAPES, strict=True) if 0 not in each
        ]
        assert state["optimizer"] == words
        return state

    with gf.ParameterServer(comm, weights, optimizer=words, servers=1) as server:
        for number in range(5):
            step(server, number)
        state = check(server)
        assert state["updates"] == [4, 4, 0, 3, 4, 0, 4]  # of a tensor without elements it is not known
        server.save(path)
        server.finish()
    for by_file in (True, False):
        line.weights, line.mean, line.square = (state[name][:] for name in ("weights", "exp_avg", "exp_avg_sq"))
        line.updates = [int(each) for each in state["updates"]]
        with gf.ParameterServer(comm, draw(20), optimizer=words, fusion_threshold=100) as server:
            if by_file:
                server.load(path)
            else:
                server.load_state_dict(state)
            check(server)
            for number in range(5, 8):
                step(server, number)
            check(server)
            server.finish(weights)
            assert same(weights, line.weights)
    with gf.ParameterServer(comm, weights, optimizer="adam") as server:
        with raises(ArgumentError, "have a momentum", "beta1"):
            server.push(Settings(0.1, 0.9))
        for numbers in ([-1] * len(SHAPES), [4]):
            with raises(ArgumentError, "updates"):
                server.load_state_dict({**state, "optimizer": "adam", "updates": numbers})
        for wrong in (state, {**state, "optimizer": "adam", "format": 1}):
            with raises(ArgumentError, "the state is of"):
                server.load_state_dict(wrong)
        server.finish()
    for wire in ("float16", "bfloat16"):
        line = AdamLine(draw(21))
        with gf.ParameterServer(comm, line.weights, optimizer="adam", wire=wire) as server:
            for number in range(3):
                pushes = [draw(22, number, rank) for rank in range(SIZE)]
                server.push(Settings(0.01), gradients=pushes[RANK])
                line.round([[rounded(each, wire) for each in push] for push in pushes], Settings(0.01))
                server.pull_into(weights)
                assert same(weights, [rounded(each, wire) for each in line.weights])
            server.finish(weights)
            assert same(weights, line.weights)
    if SIZE > 1:
        with raises(MismatchError, "optimizer"):
            gf.ParameterServer(comm, weights, optimizer="adam(beta1=0.8)" if RANK else "adam")
    WORLD.Barrier()
    if RANK == 0:
        shutil.rmtree(path.parent)


@on_ranks(1, 3)
def check_states(comm: gf.Communicator) -> None:
    """A run goes on where it stood, with another number of servers; what is wrong is refused on all ranks."""
    settings = Settings(0.1, 0.9)
    path = Path(WORLD.bcast(tempfile.mkdtemp() if RANK == 0 else "")) / "servers.npz"
    weights = draw(15)
    line = StraightLine(weights, "float32")

    def step(server: gf.ParameterServer, number: int) -> None:
        server.push(settings, gradients=draw(16, number, RANK)).wait(LATE)
        line.round([draw(16, number, rank) for rank in range(SIZE)], [settings] * len(SHAPES))

    with gf.ParameterServer(comm, weights, servers=1) as server:
        for number in range(3):
            step(server, number)
        state = server.state_dict()
        assert same(state["weights"], line.weights)
        assert same(state["momentum"], line.momentum)
        server.save(path)
        server.finish()
    for by_file in (True, False):
        line.weights, line.momentum = state["weights"], state["momentum"][:]
        with gf.ParameterServer(comm, draw(17), fusion_threshold=100) as server:
            if by_file:
                server.load(path)
            else:
                server.load_state_dict(state)
            for number in range(3, 5):
                step(server, number)
            server.finish(weights)
            assert same(weights, line.weights)
    with gf.ParameterServer(comm, [np.zeros(3, np.float32)], "bsp") as server:
        for wrong in ({}, {**state, "optimizer": "lars"}, state):
            with raises(ArgumentError, "state"):
                server.load_state_dict(wrong)
        with raises(ArgumentError, "servers.npz"):
            server.load(path.with_name("no") / "servers.npz")
        with raises(ArgumentError, "cannot be saved"):
            server.save(path.with_name("no") / "servers.npz")
        server.finish()
    WORLD.Barrier()
    if RANK == 0:
        assert os.listdir(path.parent) == ["servers.npz"]
        shutil.rmtree(path.parent)


def break_file(path: Path, how: str) -> None:
    """Make of a file of `save` one that is none."""
    if how == "one array":
        with path.open("wb") as file:
            np.save(file, np.zeros(3))
        return
    if how == "a state with a tensor missing":
        state = dict(np.load(path))
        del state["weights.000001"]
        with path.open("wb") as file:
            np.savez(file, **state)
        return
    data = bytearray(path.read_bytes())
    directory = data.rfind(b"PK\x01\x02")  # what the archive says of its last array
    if how == "an unknown compression":
        data[directory + 10] = 99
    elif how == "a wrong sum":
        data[directory + 16] ^= 1
        data[data.rfind(b"PK\x03\x04") + 14] ^= 1
    path.write_bytes({"nothing": b"", "text": b"weights", "half of it": data[: len(data) // 2]}.get(how, data))


def check_files_that_are_broken(comm: gf.Communicator) -> None:
    """Whatever is wrong with a file is an error on all ranks, and the servers keep what they have."""
    path = Path(WORLD.bcast(tempfile.mkdtemp() if RANK == 0 else "")) / "servers.npz"
    weights, found = draw(40), zeros()
    broken = ("nothing", "text", "half of it", "one array", "an unknown compression", "a wrong sum")
    with gf.ParameterServer(comm, weights) as server:
        for how in (*broken, "a state with a tensor missing"):
            server.save(path)
            if RANK == 0:
                break_file(path, how)
            with raises(ArgumentError, "cannot be loaded" if "missing" in how else str(path)):
                server.load(path)
        with raises(ArgumentError, "None cannot be read"):
            server.load(None)  # type: ignore[arg-type]
        for wrong in ({"weights": [np.zeros(3), "a"]}, {"format": np.arange(3)}, {"weights": 3}):
            with raises(ArgumentError, "cannot be loaded"):
                server.load_state_dict({**server.state_dict(), **wrong})
        server.pull_into(found)
        WORLD.Barrier()
        server.finish()
    assert same(found, weights)
    if RANK == 0:
        shutil.rmtree(path.parent)


def check_a_full_disk(comm: gf.Communicator) -> None:
    """A state that cannot be written is an error on all ranks, and the file of before is there still."""
    path = Path(WORLD.bcast(tempfile.mkdtemp() if RANK == 0 else "")) / "servers.npz"
    weights = draw(41)
    with gf.ParameterServer(comm, weights) as server:
        server.save(path)
        server.push(Settings(1.0), gradients=weights).wait(LATE)
        limits = resource.getrlimit(resource.RLIMIT_FSIZE)
        if RANK == 0:
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (4000, limits[1]))
        with raises(ArgumentError, "servers.npz", "cannot be saved", os.strerror(errno.EFBIG)):
            server.save(path)
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        assert os.listdir(path.parent) == ["servers.npz"]
        server.load(path)
        server.pull_into(weights)
        assert same(weights, draw(41))
        server.finish()
    if RANK == 0:
        shutil.rmtree(path.parent)


@on_ranks(1, 3)
def check_reports(comm: gf.Communicator) -> None:
    weights = zeros()
    for policy in ("bsp", "ssp(1)"):
        with gf.ParameterServer(comm, weights, policy) as server:
            for _ in range(5):
                server.push(Settings(1.0), gradients=weights).wait(LATE)
            server.finish()
            told = server.statistics()
            assert told.rounds == (5 if policy == "bsp" else 5 * SIZE)
            assert told.ends == 1
            assert [each.pushes for each in told.workers] == [5] * SIZE
            for each in told.workers:
                assert each.waited >= 0
                assert sum(each.staleness.values()) == 5
                assert max(each.staleness) <= (0 if policy == "bsp" else 1)
            if policy == "bsp":
                assert told.barriers == (5 if SIZE > 1 else 0)
            trace = server.trace()
            assert len(trace.events) == 6 * SIZE
            assert trace.difference() is None
            WORLD.Barrier()
            server.finish()
    with gf.ParameterServer(comm, weights, "ssp(1)") as server:
        for pushes in (1 + 5 * RANK, 3):  # after the first end, all begin with as many
            for _ in range(pushes):
                server.push(Settings(1.0), gradients=weights).wait(LATE)
            server.finish()
        told = server.statistics()
        assert [each.pushes for each in told.workers] == [4 + 5 * rank for rank in range(SIZE)]
        assert max(max(each.staleness) for each in told.workers) <= 1
        WORLD.Barrier()
        server.finish()


def check_gradients_of_another_dtype(comm: gf.Communicator) -> None:
    """They are refused, and the next push goes on."""
    weights = zeros()
    with gf.ParameterServer(comm, weights) as server:
        with raises(ArgumentTypeError, "float64"):
            server.ready(3, np.zeros(SHAPES[3]))
        with raises(ArgumentError, "gradient 1 has 2 elements, and the tensor 1"):
            server.push(Settings(1.0), gradients=[weights[0], np.zeros(2, np.float32), *weights[2:]])
        assert server.push(Settings(1.0), gradients=weights).wait(LATE) == "applied"
        server.finish()


def check_pushes_that_are_refused(comm: gf.Communicator) -> None:
    """None of their gradients is ready, in place or not."""
    weights = draw(36)
    for optimizer in ("sgd", "adam"):
        with gf.ParameterServer(comm, weights, optimizer=optimizer) as server:
            places = in_place(server, draw(37, RANK))
            fit = {"settings": Settings(1.0), "gradients": places}
            for unfit, why in [
                ({"settings": Settings(1.0, trust=0.1)}, "'lars'"),
                ({"settings": [Settings(1.0)] * 2}, "settings"),
                ({"loss_scale": 0.0}, "loss_scale"),
                ({"gradients": [*places[:-1], places[-1].astype(np.int32)]}, "not int32"),
                ({"gradients": [*places[:-1], places[-1][::-1]]}, "contiguous"),
                ({"gradients": [*places[:-1], places[3][: SHAPES[-1][0]]]}, "not in its own place"),
            ]:
                with raises(ArgumentTypeError if "int32" in why else ArgumentError, why):
                    server.push(**{**fit, **unfit})
            assert server._native.ready_count == 0
            assert server.push(**fit).wait(LATE) == "applied"
            server.ready(1, np.ones(1, np.float32))
            with raises(ArgumentError, "tensor 1 was already ready"):
                server.push(**fit)
            assert server._native.ready_count == 1
            server.push(Settings(1.0))
            server.finish()


def check_a_finish_that_timed_out(comm: gf.Communicator) -> None:
    """It is called again, and goes on with what has begun."""
    if SIZE == 1:
        return
    weights = zeros()
    with gf.ParameterServer(comm, weights) as server:
        server.push(Settings(1.0), gradients=draw(11, RANK))
        if RANK == SIZE - 1:
            WORLD.Barrier()
        else:
            with raises(CommunicationTimeoutError, ""):
                server.finish(weights, timeout=0.2)
            with raises(ArgumentError, "finish has begun"):
                server.push(Settings(1.0), gradients=weights)
            WORLD.Barrier()
        server.finish(weights, timeout=LATE)
        assert server.statistics().ends == 1
        WORLD.Barrier()
        server.finish()


def check_a_state_comes_after_pushes(comm: gf.Communicator) -> None:
    """What was on its way is not applied to what is loaded."""
    weights = zeros()
    with gf.ParameterServer(comm, weights) as server:
        state = server.state_dict()
        state["weights"] = [np.full(shape, 5.0, np.float32) for shape in SHAPES]
        if RANK == SIZE - 1:
            time.sleep(0.3)
        server.push(Settings(1.0, momentum=0.5), gradients=draw(13, RANK))
        server.load_state_dict(state)
        server.pull_into(weights)
        assert all((each == 5).all() for each in weights)
        server.finish()


def check_optimizers_that_differ(comm: gf.Communicator) -> None:
    if SIZE > 1:
        with raises(MismatchError, "optimizer"):
            gf.ParameterServer(comm, zeros(), optimizer="lars" if RANK else "sgd")


@on_ranks(2)
def check_pushes_that_nobody_waits_for(comm: gf.Communicator) -> None:
    """Small ones to another node, too, stay here until the server takes them: one has left, and two wait."""
    if SIZE == 1 or comm.nodes < SIZE:
        return
    small = [np.zeros(8, np.float32)]
    with (
        gf.init(config=gf.Config(timeout=1.0, node_size=1)) as impatient,
        gf.ParameterServer(impatient, small, servers=1) as server,
    ):
        if RANK == 1:
            with raises(CommunicationTimeoutError, "push 4"):
                for _ in range(100):  # nobody else pushes
                    server.push(Settings(1.0), gradients=small)
        WORLD.Barrier()
        for _ in range(0 if RANK == 1 else 16):
            server.push(Settings(1.0), gradients=small)
        server.finish(timeout=LATE)


def check_a_worker_that_never_waits(comm: gf.Communicator) -> None:
    """It runs no more than two pushes past what the policy allows."""
    if SIZE == 1:
        return
    for servers in {1, SIZE}:
        with gf.ParameterServer(comm, zeros(), "ssp(2)", servers=servers) as server:
            if RANK == 0:
                for _ in range(5):  # one that waits makes three
                    server.push(Settings(1.0), gradients=server.gradients(LATE))
                with raises(CommunicationTimeoutError, "push 6", "0.3 s"):
                    server.gradients(0.3)
            WORLD.Barrier()
            for _ in range(1 if RANK == 0 else 6):
                server.push(Settings(1.0), gradients=server.gradients(LATE)).wait(LATE)
            server.finish(timeout=LATE)
            assert max(max(each.staleness) for each in server.statistics().workers) <= 4
            WORLD.Barrier()


def check_timeouts_that_are_no_numbers(comm: gf.Communicator) -> None:
    """They are refused, also where there is nothing to wait for."""
    weights = zeros()
    with gf.ParameterServer(comm, weights) as server:
        push, pull = server.push_pull(Settings(1.0))
        push.wait(LATE)
        pull.wait(LATE)
        calls: list[Any] = [push.wait, pull.wait, server.gradients, server.statistics, server.trace, server.state_dict]
        calls += [lambda t: pull.take(0, weights[0], t), lambda t: pull.weights(0, t), lambda t: server.finish(None, t)]
        for call in calls:
            with raises(ArgumentError, "timeout is not a number"):
                call(float("nan"))
        server.finish()


def check_threads(comm: gf.Communicator) -> None:
    """Tensors become ready in several threads."""
    from concurrent.futures import ThreadPoolExecutor

    weights = zeros()
    line = StraightLine(weights, "float32")
    with gf.ParameterServer(comm, weights) as server, ThreadPoolExecutor(4) as threads:
        for step in range(10):
            gradients = draw(12, step, RANK)
            list(threads.map(server.ready, range(len(SHAPES)), gradients))
            server.push(Settings(0.1))
            line.round([draw(12, step, rank) for rank in range(SIZE)], [Settings(0.1)] * len(SHAPES))
            server.pull_into(weights)
            assert same(weights, line.weights)
        server.finish()


def in_place(server: gf.ParameterServer, gradients: Arrays) -> list[Any]:
    """Write gradients where the servers read them; bfloat16 as addresses, since NumPy does not know it."""
    if server.wire != "bfloat16":
        places: list[Any] = server.gradients(LATE)
        for place, each in zip(places, gradients, strict=True):
            assert place.dtype == server.wire
            assert place.flags.writeable
            place[...] = each
        return places
    places = server._native.gradients(LATE, np.dtype(np.uint16), server.shapes)
    for place, each in zip(places, gradients, strict=True):
        place[...] = narrow(each)
    return places


def weights_of(pull: Any, wire: str) -> Arrays:
    """Return the weights of a pull, where they lie, in float32."""
    if wire == "bfloat16":
        views = [pull._native.weights(pull.number, i, LATE, np.dtype(np.uint16), s) for i, s in enumerate(SHAPES)]
        return [widen(each) for each in views]
    views = [pull.weights(i, LATE) for i in range(len(SHAPES))]
    assert all(each.dtype == wire and not each.flags.writeable for each in views)
    return [each.astype(np.float32) for each in views]


@on_ranks(1, 2, 3)
def check_memory_in_place(comm: gf.Communicator) -> None:
    """Gradients written where servers read them, and weights read where servers wrote them: the bits of the copies."""
    settings = Settings(0.1, 0.9, 0.01)
    for wire in ("float32", "float16", "bfloat16"):
        for servers in server_counts():
            for threshold in (0, 400, None) if wire == "float32" else (400,):
                weights = draw(30)
                line = StraightLine(weights, wire)
                with gf.ParameterServer(
                    comm, weights, servers=servers, wire=wire, fusion_threshold=threshold
                ) as server:
                    for step in range(5):
                        pushes = [draw(31, step, rank) for rank in range(SIZE)]
                        places = in_place(server, pushes[RANK])
                        for i in np.random.default_rng([step, RANK]).permutation(len(SHAPES)):
                            if wire == "bfloat16":
                                server.ready(int(i), (places[i].ctypes.data, "bfloat16"))
                            elif step % 2:
                                server.ready(int(i), places[i])
                        gradients = places if step % 2 == 0 and wire != "bfloat16" else None
                        exact = step == 3
                        _, pull = server.push_pull(settings, gradients=gradients, exact=exact)
                        line.round(pushes, [settings] * len(SHAPES))
                        expected = line.weights if exact else line.pulled()
                        for _ in range(2):  # what has been brought together once stays where it is
                            found = weights_of(pull, "float32" if exact else wire)
                            assert same(found, expected), (wire, servers, threshold, step)
                        pull.take_all(weights)
                        assert same(weights, expected)
                    server.finish()


@on_ranks(1, 3)
def check_weights_that_are_looked_at(comm: gf.Communicator) -> None:
    """They stay as they are, however many rounds others make meanwhile, and nobody waits for the one who looks."""
    for policy in ("asp", f"ssp({40 * SIZE})", "bsp"):
        for servers in sorted({1, SIZE}):
            weights = zeros()
            with gf.ParameterServer(comm, weights, policy, servers=servers) as server:
                for turn in range(SIZE if policy != "bsp" else 0):
                    WORLD.Barrier()
                    if turn == RANK:
                        pull = server.pull()
                        seen = [pull.weights(i, LATE) for i in range(len(SHAPES))]
                        before = [each.copy() for each in seen]
                    WORLD.Barrier()
                    for _ in range(0 if turn == RANK else 12):
                        server.push(Settings(1.0), gradients=[np.full_like(each, -1.0) for each in weights]).wait(LATE)
                        server.pull_into(weights)
                    WORLD.Barrier()
                    if turn == RANK:
                        assert same(seen, before)
                server.finish(weights)
                total = 12 * (SIZE - 1) * SIZE if policy != "bsp" else 0
                assert all(np.all(each == total) for each in weights)
                pull = server.pull()
                seen = [pull.weights(i, LATE) for i in range(len(SHAPES))]
                before = [each.copy() for each in seen]
                for _ in range(7):  # of this worker itself
                    push = server.push(Settings(1.0), gradients=in_place(server, [np.ones_like(each) for each in seen]))
                push.wait(LATE)
                assert same(seen, before)
                server.finish()


@on_ranks(1, 3)
def check_gradients_out_of_place(comm: gf.Communicator) -> None:
    """Memory of other pushes, and of pulls, is copied; the place of another tensor, or as another dtype, is refused."""
    for wire in ("float32", "float16"):
        weights = draw(32)
        line = StraightLine(weights, wire)
        with gf.ParameterServer(comm, weights, wire=wire) as server:
            mine = [draw(33, rank) for rank in range(SIZE)]
            old = in_place(server, mine[RANK])
            settings = [Settings(0.5)] * len(SHAPES)
            server.push(settings, gradients=old).wait(LATE)
            line.round(mine, settings)
            assert old[3].ctypes.data != server.gradients()[3].ctypes.data
            server.push(settings, gradients=old).wait(LATE)  # of the other memory
            line.round(mine, settings)
            server.push(settings, gradients=old).wait(LATE)  # of this one again, with what is there
            line.round(mine, settings)
            pull = server.pull()
            assert same(weights_of(pull, wire), line.pulled())
            server.push(settings, gradients=[pull.weights(i) for i in range(len(SHAPES))]).wait(LATE)
            line.round([line.pulled()] * SIZE, settings)
            server.pull_into(weights)
            assert same(weights, line.pulled())
            places = server.gradients()
            with raises(ArgumentError, "gradient 3 lies where the gradients of this push are written", wire):
                server.ready(3, _as_elements(places, 3))
            with raises(ArgumentError, "gradient 1", "as " + wire):
                server.ready(1, (places[1].ctypes.data, "bfloat16"))
            assert server._native.ready_count == 0
            server.finish()
        for i, each in enumerate(places):  # memory that is looked at stays
            each[...] = i
        assert all(np.all(each == i) for i, each in enumerate(places))


def _as_elements(places: list[Any], index: int) -> np.ndarray:
    """Return as many elements as a tensor has, from the place of the one before it on."""
    from numpy.lib.stride_tricks import as_strided

    before: np.ndarray = places[index - 2]  # the one before is empty
    return as_strided(before, places[index].shape, before.strides)


def check_weights_are_read_only(comm: gf.Communicator) -> None:
    weights = draw(34)
    with gf.ParameterServer(comm, weights) as server:
        pull = server.pull()
        seen = pull.weights(3, LATE)
        assert same([seen], [weights[3]])
        with raises(ValueError, "read-only"):
            seen[0] = 1
        with raises(ValueError, ""):
            seen.flags.writeable = True
        assert np.array_equal(pull.weights(-1), pull.weights(len(SHAPES) - 1))
        assert pull.weights(2).shape == SHAPES[2]
        with raises(ArgumentError, f"no tensor {len(SHAPES)}"):
            pull.weights(len(SHAPES))
        server.pull().wait(LATE)
        with raises(ArgumentError, "pull 1 has given way to pull 2"):
            pull.weights(3)
        with raises(ArgumentError, "pull 1 has given way to pull 2"):
            pull.take(3, weights[3])
        server.finish()
    with raises(ClosedError, "closed"):
        server.gradients()
    with raises(ClosedError, "closed"):
        pull.weights(3)
    del server, pull
    assert seen.sum() == seen.copy().sum()  # its memory is still there


def check_waits_for_gradients(comm: gf.Communicator) -> None:
    """Memory for a third push is there once the first one is applied."""
    if SIZE == 1:
        return
    with gf.ParameterServer(comm, zeros()) as server:
        if RANK == 0:
            for i in range(2):
                server.push(Settings(1.0), gradients=in_place(server, draw(35, i)))
            with raises(CommunicationTimeoutError, "push 3", "0.05 s"):
                server.gradients(0.05)
            WORLD.Barrier()
            server.push(Settings(1.0), gradients=in_place(server, draw(35, 2)))
        else:
            WORLD.Barrier()
            for i in range(3):
                server.push(Settings(1.0), gradients=draw(35, i))
        server.finish(timeout=LATE)


def check_threads_that_push(comm: gf.Communicator) -> None:
    """Whole pushes of several threads come one after the other."""
    from concurrent.futures import ThreadPoolExecutor

    weights = zeros()
    with gf.ParameterServer(comm, weights, "asp") as server, ThreadPoolExecutor(4) as threads:
        gradients = [np.full_like(each, -1.0) for each in weights]
        pushes = list(threads.map(lambda _: server.push(Settings(1.0), gradients=gradients), range(24)))
        assert sorted(push.number for push in pushes) == list(range(1, 25))
        server.finish(weights, LATE)
        assert all(np.all(each == 24 * SIZE) for each in weights)
        ones = threads.map(
            lambda _: server._native.push(server._settings.rows(Settings(1.0)), 1.0, "applied", None, []), range(24)
        )
        assert len(set(ones)) == 24
        server.finish(weights, LATE)
        assert all(np.all(each == 24 * SIZE) for each in weights)  # those were of zeros


@on_ranks(1, 2)
def check_skips_that_are_forgotten(comm: gf.Communicator) -> None:
    """Of pushes older than the last 1024 that were skipped nothing is known."""
    if comm.nodes != 1 or SIZE > 2:
        return
    small = [np.zeros(8 * SIZE, np.float32)]
    with gf.ParameterServer(comm, small) as server:
        first = server.push(Settings(1.0), skip=True)
        assert first.wait(LATE) == "skipped"
        applied = server.push(Settings(1.0))
        for _ in range(1024):
            last = server.push(Settings(1.0), skip=True)
        assert last.wait(LATE) == "skipped"
        assert applied.wait(LATE) == "applied"
        with raises(ArgumentError, "push 1 was skipped is not known any more", "1024"):
            first.wait(LATE)
        server.finish()


def refuse_advice_to_provide_pages() -> None:
    """Have this process see a system that does not know MADV_POPULATE_WRITE and MADV_COLLAPSE, by a filter."""
    call, architecture = {"x86_64": (28, 0xC000003E), "aarch64": (233, 0xC00000B7)}[platform.machine()]
    load, equal, end = 0x20, 0x15, 0x06  # a word of the call; jump over so many instructions, or so many; the answer
    allow, refuse = 0x7FFF0000, 0x00050000 | errno.EINVAL
    program = [
        *((load, 0, 0, 4), (equal, 0, 6, architecture), (load, 0, 0, 0), (equal, 0, 4, call)),
        *((load, 0, 0, 32), (equal, 1, 0, 23), (equal, 0, 1, 25), (end, 0, 0, refuse), (end, 0, 0, allow)),
    ]
    instructions = ctypes.create_string_buffer(b"".join(struct.pack("=HBBI", *each) for each in program))
    head = struct.pack("@HP", len(program), ctypes.addressof(instructions))
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl.argtypes = [ctypes.c_int, ctypes.c_ulong, ctypes.c_char_p, ctypes.c_ulong, ctypes.c_ulong]
    if libc.prctl(38, 1, None, 0, 0) != 0 or libc.prctl(22, 2, head, 0, 0) != 0:
        print("no filters here", flush=True)


def old_system() -> None:
    """Versions that are used for the first time leave those beside them as they are, on any system."""
    refuse_advice_to_provide_pages()
    comm = gf.init()
    weights = draw_one(0)
    gradient = draw_one(1)
    with gf.ParameterServer(comm, [weights], "asp", servers=1) as server:
        for turn in range(SIZE):  # then all versions but two are held, and those are used for the first time
            WORLD.Barrier()
            if turn == RANK:
                server.push(Settings(1.0), gradients=[gradient]).wait(LATE)
                pull = server.pull()
                seen = pull.weights(0)
                before = seen.copy()
        WORLD.Barrier()
        for _ in range(2 if RANK == 0 else 0):
            server.push(Settings(1.0), gradients=[gradient]).wait(LATE)
        WORLD.Barrier()
        assert np.array_equal(seen, before)
        server.finish([weights])
    expected = draw_one(0)
    for _ in range(SIZE + 2):
        expected -= gradient
    assert np.array_equal(weights, expected)


def draw_one(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(1_150_000).astype(np.float32)


def stall() -> None:
    """One of many workers is stopped in the middle of a run; the others go on, and no memory grows."""
    comm = gf.init(config=gf.Config(node_size=sys.argv[2]))
    weights = [np.zeros(500_000, np.float32) for _ in range(4)]
    gradients = [np.full_like(each, -1.0) for each in weights]
    pids = WORLD.allgather(os.getpid())
    with gf.ParameterServer(comm, weights, "asp", servers=1) as server:
        for _ in range(3):
            server.push(Settings(1.0), gradients=gradients).wait(LATE)
            server.pull_into(weights)
        WORLD.Barrier()
        before, begin = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.monotonic()
        if RANK == 1:
            for _ in range(2):
                server.push(Settings(1.0), gradients=gradients)
            server.pull()
            os.kill(os.getpid(), signal.SIGSTOP)  # until rank 0 wakes it
        else:
            for _ in range(15):
                server.push(Settings(1.0), gradients=gradients).wait(LATE)
                server.pull_into(weights)
        if RANK == 0:
            grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024
            assert grown < 5 * sum(each.nbytes for each in weights), grown
            took = time.monotonic() - begin
            print(f"{SIZE} workers, one stopped: 15 pushes in {took:.1f} s, {grown / 2**20:.1f} MiB more", flush=True)
            state = Path(f"/proc/{pids[1]}/stat").read_text().rpartition(")")[2].split()[0]
            assert state in "tT", state
            os.kill(pids[1], signal.SIGCONT)
        server.finish(weights, LATE)
        assert all(np.all(each == 5 + 18 * (SIZE - 1)) for each in weights), weights


def die(how: str) -> None:
    """One of the ranks dies; the others say who."""
    comm = gf.init()
    weights = zeros()
    server = gf.ParameterServer(comm, weights, "asp" if "asp" in how else "bsp")
    server.push(Settings(1.0)).wait(LATE)
    WORLD.Barrier()
    if RANK == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    begin = time.monotonic()
    with raises(PeerError, "rank 1"):
        while time.monotonic() < begin + LATE:
            server.push(Settings(1.0)).wait(LATE)
    assert time.monotonic() - begin < scaled(10)
    print(f"rank {RANK} knows", flush=True)
    os._exit(0)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        run({"stall": stall, "old-system": old_system}.get(sys.argv[1], lambda: die(sys.argv[1])))
    else:
        run_checks([{}, {"node_size": 2 if SIZE > 2 else 1}])
