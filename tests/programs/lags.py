"""LAGS and what it is compared with, in the NumPy loop: against the algorithm in straight lines, states, bad input."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any
from unittest import mock

import numpy as np
from loops import array_loop, make_ready, make_step, whole_numbers
from marks import on_ranks
from support import (
    LAYOUTS,
    RANK,
    SIZE,
    flat,
    raises,
    run_checks,
    same_everywhere,
)

import gradientflow as gf
from gradientflow._location import core
from gradientflow.errors import ArgumentError, MismatchError
from gradientflow.optimizers import SGD
from gradientflow.strategies import LayerMonitor, parse_strategy
from gradientflow.strategies.predict.call_time import CallTime
from gradientflow.training import ArrayLoop

from survive.topk_reference import Reference

SHAPES = [(40,), (0,), (3, 7), (1,), (2, 300), (5,)]
COUNTS = [math.prod(shape) for shape in SHAPES]
FIXED = "lags(ratio=4, warmup=0, selection='exact')"
BASELINES = ("slgs(ratio=8)", "top_k(ratio=4)", "random_k(ratio=4)", "dgc(ratio=4, momentum=0.5)")
ALL = (FIXED, *BASELINES, "lags(max_ratio=50)")

gradients_of = partial(whole_numbers, SHAPES)  # of which many have the same magnitude
trained = partial(array_loop, shapes=SHAPES)


def exchange(training: ArrayLoop, gradients: list[Any], order: Any = None) -> None:
    make_ready(training, gradients, order)
    training.wait()


def step(training: ArrayLoop, optimizer: SGD, number: int) -> None:
    make_step(training, optimizer, gradients_of(RANK, number))


def require_close(found: Any, wanted: Any, what: object, tolerance: float = 1e-5) -> None:
    assert np.allclose(found, wanted, rtol=tolerance, atol=tolerance), (what, found, wanted)


# ---- the algorithm ---------------------------------------------------------------------------------------------------


@on_ranks(1, 2, 3)
def check_step_by_step(comm: gf.Communicator) -> None:
    """Each rank sends, keeps and gets what it would in straight lines."""
    whole = [sum(COUNTS)]
    for words, ratio, options in (
        (FIXED, 4.0, {}),
        ("top_k(ratio=7.5)", 7.5, {}),
        ("top_k(density=0.25)", 4.0, {}),
        ("lags(ratio=1e6, warmup=0)", 1e6, {}),
        ("lags(ratio=1, warmup=0)", 1.0, {}),
        ("slgs(ratio=8, selection='exact')", 8.0, {}),
        ("dgc(ratio=4, momentum=0.5, selection='exact')", 4.0, {"momentum": 0.5}),
        ("dgc(4, 0.5, masking=False, selection='exact')", 4.0, {"momentum": 0.5, "masking": False}),
        ("dgc(4, 0.5, clip=6.0, selection='exact')", 4.0, {"momentum": 0.5, "clip": 6.0}),
        ("dgc(4, 0.0, selection='exact')", 4.0, {}),
    ):
        elements = whole if words.startswith("slgs") else COUNTS
        reference = Reference(SIZE, elements, [ratio] * len(elements), **options)
        with trained(comm, words) as (training, optimizer):
            expected = np.zeros(sum(COUNTS))
            for number in range(5):
                everyone = [gradients_of(rank, number) for rank in range(SIZE)]
                layers = [[flat(each)] if elements is whole else [one.reshape(-1) for one in each] for each in everyone]
                # Backpropagation comes to the tensors in another order on each rank.
                exchange(training, everyone[RANK], np.roll(range(len(SHAPES)), RANK))
                reports = training.synchronizer.pools[0].layer_selections
                assert elements is whole or not all(report.dense for report in reports) or ratio == 1
                reference.ratios = [1.0 if report.dense else ratio for report in reports]  # what is sent as it is
                means = flat(reference.step(layers))
                require_close(flat(training.gradients), means, words)
                same_everywhere(training.gradients)
                residuals, mine = flat(training.synchronizer.residuals), flat(reference.residuals[RANK])
                if "clip" in options:
                    require_close(residuals, mine, words)
                else:
                    assert np.array_equal(residuals, mine), (words, number)
                expected -= means
                optimizer.step()
                require_close(flat(training.weights), expected, words)


@on_ranks(1, 3)
def check_what_is_sent_and_kept_is_what_was_there(comm: gf.Communicator) -> None:
    """Of every layer in every step, bit for bit: also rounded to 16 bits, sampled and at random."""
    others = "lags(ratio=30, warmup=4)", "lags(100, warmup=0, threshold_reuse=3)", "top_k(ratio=9, wire='float16')"
    for words in (*ALL, *others):
        for dtype, scale in ((np.float32, None), (np.float16, 8.0)):
            with trained(comm, words, dtype, loss_scale=scale) as (training, optimizer):
                synchronizer: Any = training.synchronizer
                velocity = np.zeros(sum(COUNTS), np.float32)
                for number in range(5):
                    before = flat(synchronizer.residuals)
                    gradients = [np.float32(each) / 8 + np.float32(0.01) for each in gradients_of(RANK, number)]
                    gradients = [each.astype(dtype).astype(np.float32) for each in gradients]
                    exchange(training, gradients)
                    velocity = np.float32(0.5 if "dgc" in words else 0) * velocity + flat(gradients)
                    there, kept = before + velocity, flat(synchronizer.residuals)
                    sent = there - kept
                    assert np.array_equal(sent + kept, there), words
                    if "wire" in words and dtype == np.float32:
                        assert np.array_equal(sent.astype(np.float16).astype(np.float32), sent), words
                    velocity[sent != 0] = 0
                    total = comm.allreduce(sent.copy(), "sum")
                    mean = flat(training.gradients) / np.float32(scale or 1)
                    assert np.allclose(SIZE * mean, total, rtol=2e-3 if scale else 1e-6, atol=1e-2 if scale else 1e-5)
                    optimizer.step()


def check_random_entries(comm: gf.Communicator) -> None:
    """As many as there should be, others in each step, and the same on all ranks and in a second run."""
    runs = []
    for _ in range(2):
        with trained(comm, "random_k(ratio=10, seed=3)") as (training, optimizer):
            chosen = []
            for _number in range(4):
                exchange(training, [np.ones(shape, np.float32) for shape in SHAPES])
                chosen.append(flat(training.synchronizer.residuals) == 0)
                for report, count in zip(training.synchronizer.pools[0].layer_selections, COUNTS, strict=True):
                    assert report.sent == report.k == math.ceil(count / 10)
                optimizer.step()
            runs.append(np.array(chosen))
    assert np.array_equal(*runs)
    assert len({each.tobytes() for each in runs[0]}) > 1
    assert len({each.tobytes() for each in comm.allgather(runs[0].astype(np.int8))}) == 1


def check_warmup(comm: gf.Communicator) -> None:
    """The ratio grows by fours."""
    with trained(comm, "dgc(ratio=100, momentum=0.5, warmup=6)") as (training, optimizer):
        assert training.strategy.warmup == 6
        for number, ratio in enumerate((4, 4, 16, 16, 64, 64, 100, 100)):
            step(training, optimizer, number)
            assert set(training.synchronizer.ratios) == {ratio}, number
            assert [report.k for report in training.synchronizer.pools[0].layer_selections] == [
                math.ceil(count / ratio) for count in COUNTS
            ]


def check_densities(comm: gf.Communicator) -> None:
    """A density is the share that is sent, exactly where that is a whole number."""
    for hundredths in (7, 14, 28, 29, 55, 57, 58):
        with ArrayLoop(comm, [np.zeros(100, np.float32)], f"top_k(density={hundredths / 100})") as training:
            exchange(training, [np.arange(1, 101)], [0])
            report = training.synchronizer.pools[0].layer_selections[0]  # type: ignore[attr-defined]
            assert report.k == report.sent == hundredths
        assert core.k_of(100, 100 / hundredths) == hundredths


def check_a_largest_ratio_below_the_number_of_ranks(comm: gf.Communicator) -> None:
    """It is taken; layers of which the entries would take more bytes than all of them are averaged as they are."""
    if SIZE < 3:
        return
    with ArrayLoop(comm, [np.zeros(5000, np.float32) for _ in range(2)], "lags(max_ratio=1.25, warmup=2)") as training:
        optimizer = SGD(training, training.weights, lr=1.0)
        for number in range(4):
            every = [np.random.default_rng([rank, number]).integers(-9, 10, 5000) for rank in range(SIZE)]
            exchange(training, [every[RANK]] * 2, [0, 1])
            for gradient in training.gradients:
                require_close(gradient, np.mean(every, axis=0), number)
            assert all(report.dense for report in training.synchronizer.pools[0].layer_selections)  # type: ignore[attr-defined]
            assert not flat(training.synchronizer.residuals).any()
            optimizer.step()
        assert set(training.synchronizer.ratios) <= {1.0, 1.25}  # type: ignore[attr-defined]


# ---- states ----------------------------------------------------------------------------------------------------------


def check_a_state_that_is_another_on_one_rank(comm: gf.Communicator) -> None:
    """It is refused on all ranks before anything is changed, and the next iteration works."""
    if SIZE == 1:
        return
    for words in (FIXED, "lags(max_ratio=50)", "dgc(ratio=4, momentum=0.5)"):
        with trained(comm, words) as (training, optimizer):
            step(training, optimizer, 0)
            state = training.state_dict()
            step(training, optimizer, 1)
            before = flat(training.synchronizer.residuals)
            with raises(MismatchError, "the iteration of float32"):
                training.load_state_dict(training.state_dict() if RANK == SIZE - 1 else state)
            assert np.array_equal(flat(training.synchronizer.residuals), before)
            step(training, optimizer, 2)
            same_everywhere(training.weights)


# ---- bad input -------------------------------------------------------------------------------------------------------


def check_ratios_that_differ(comm: gf.Communicator) -> None:
    if SIZE == 1:
        return
    with trained(comm, FIXED) as (training, optimizer):
        step(training, optimizer, 0)
        weights = flat(training.weights)
        strategy: Any = training.strategy
        strategy.final_ratio = 8.0 if RANK == SIZE - 1 else 4.0
        with raises(MismatchError):
            exchange(training, gradients_of(RANK, 1))
        training.abandon()
        strategy.final_ratio = 4.0
        assert np.array_equal(flat(training.weights), weights)
        step(training, optimizer, 2)
        same_everywhere(training.weights)


def check_arguments(comm: gf.Communicator) -> None:
    for words, text in (
        ("lags(ratio=0.99)", "ratio is a number of 1 or more, not 0.99"),
        ("lags(ratio='fast')", "'adaptive'"),
        ("lags(max_ratio=0)", "max_ratio is a number of 1 or more"),
        ("lags(ratio=9, refit_every=5)", "refit_every goes with an adaptive ratio"),
        ("lags(ratio=4, max_ratio=8)", "max_ratio goes with an adaptive ratio"),
        ("lags(ratio=1e999)", "ratio is a number of 1 or more, not inf"),
        ("slgs(ratio=0)", "1 or more"),
        ("lags(selection='random')", "selection is 'sampled' or 'exact', not 'random'"),
        ("slgs(selection='best')", "selection is"),
        ("dgc(selection=3)", "selection is"),
        ("lags(threshold_reuse=-1)", "threshold_reuse is 0 or more"),
        ("lags(merge_bytes=-1)", "merge_bytes is a whole number"),
        ("top_k(ratio=5, density=0.1)", "a ratio or a density, not both"),
        ("top_k(density=0)", "density is above 0"),
        ("random_k(seed=-1)", "seed is 0 or more"),
        ("dgc(momentum=1)", "below 1"),
        ("dgc(clip=0)", "clip is above 0"),
        ("dgc(warmup=-1)", "warmup is 0 or more"),
    ):
        with raises(ArgumentError, text):
            parse_strategy(words)
    with (
        ArrayLoop(comm, [np.zeros(4, np.float32)], "dgc(ratio=2)") as training,
        raises(ArgumentError, "make the optimizer with momentum=0"),
    ):
        SGD(training, training.weights, lr=1.0, momentum=0.9)
    with ArrayLoop(comm, [np.zeros(4, np.float32)], "dgc(ratio=2, momentum=0)") as training:
        SGD(training, training.weights, lr=1.0, momentum=0.9)


# ---- the monitor -----------------------------------------------------------------------------------------------------


def check_monitor(comm: gf.Communicator) -> None:
    """Delta, counts and norms are those of the straight lines; only in the iterations that were asked for."""
    reference = Reference(SIZE, COUNTS, [4.0] * len(COUNTS))
    with trained(comm, f"{FIXED[:-1]}, monitor=2)") as (training, optimizer):
        assert training.synchronizer.monitor is None
        for number in range(6):
            reference.step([[each.reshape(-1) for each in gradients_of(rank, number)] for rank in range(SIZE)])
            before = training.synchronizer.monitor
            exchange(training, gradients_of(RANK, number))
            for gradient in training.gradients:
                gradient[...] = 0  # as clipping might do
            optimizer.step()
            report = training.synchronizer.monitor
            if number % 2 == 0:
                assert report is before
                continue
            assert report.iteration == number + 1
            layers: list[LayerMonitor] = [each for each in report.layers if each.elements]
            filled = [index for index, count in enumerate(COUNTS) if count]
            assert [each.name for each in layers] == [training.layout.names[index] for index in filled]
            require_close([each.delta for each in layers], [reference.deltas[index] for index in filled], "delta")
            assert [each.sent for each in layers] == [each.k for each in layers]
            norms = [np.linalg.norm(reference.residuals[RANK][index]) for index in filled]
            require_close([each.residual_norm for each in layers], norms, "norms")
            assert all(each.name in str(report) for each in layers)
            assert report.worst.delta == max(each.delta for each in layers)
    for words in (
        "slgs(ratio=8, monitor=True)",
        "top_k(ratio=1, monitor=True)",
        "dgc(ratio=4, momentum=0, monitor=True)",
    ):
        with trained(comm, words) as (training, optimizer):
            step(training, optimizer, 0)
            assert len([each for each in training.synchronizer.monitor.layers if each.elements]) in (1, 5)
            if words.startswith("top_k"):
                assert {each.delta for each in training.synchronizer.monitor.layers} == {0.0}


# ---- adaptive ratios -------------------------------------------------------------------------------------------------

LARGE = [(3,), (1 << 15,), (64,), (1 << 15,), (1 << 15,), (2,)]  # three stages


@contextmanager
def told() -> Iterator[list[str]]:
    """Give what lags logs."""
    messages: list[str] = []
    handler, logger = logging.Handler(), logging.getLogger("gradientflow")
    handler.emit = lambda record: messages.append(record.getMessage())  # type: ignore[method-assign]
    handler.addFilter(lambda record: record.module == "lags")
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        yield messages
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)


@on_ranks(1, 3)
def check_adaptive_ratios(comm: gf.Communicator) -> None:
    """They are fitted once it has warmed up, again on request, and are the same on all ranks."""
    words = "lags(max_ratio=64, warmup=3)"
    dense, sparse = CallTime(0.1, 0.0), CallTime(0.02, 0.0)
    with (
        told() as messages,
        mock.patch.object(CallTime, "of_allreduce", return_value=dense),
        mock.patch.object(CallTime, "of_allgather", return_value=sparse),
        ArrayLoop(comm, [np.zeros(shape, np.float32) for shape in LARGE], words) as training,
    ):
        optimizer = SGD(training, training.weights, lr=1.0)
        synchronizer: Any = training.synchronizer
        assert synchronizer.stages == [range(2), range(2, 4), range(4, 6)]

        def train(steps: int, on_first: float, on_all: float) -> None:
            for number in range(steps):
                random = np.random.default_rng([RANK, number])
                for gradient in training.gradients:
                    gradient[...] = random.standard_normal(gradient.shape)
                for index in range(len(LARGE)):
                    # What the first and the second stage can hide behind.
                    time.sleep({3: on_first if RANK == 0 else on_all, 4: on_all}.get(index, 0.0))
                    training.ready(index)
                training.wait()
                optimizer.step()

        train(2, 0.3, 0.05)
        assert set(synchronizer.ratios) == {64}
        assert messages == []
        train(1, 0.3, 0.05)
        # The smallest past the ranks, if entries can hide and all cannot; the last stage takes the largest.
        least = float(max(2, SIZE))
        assert synchronizer.ratios == (*[least if SIZE > 1 else 1.0] * 2, least, least, 64, 64)
        assert len(messages) == (RANK == 0)
        train(6, 0.0, 0.0)  # the median counts
        assert len(messages) == (RANK == 0)
        synchronizer.refit()
        assert set(synchronizer.ratios) == {64}
        train(11, 0.0, 0.11)
        synchronizer.refit()
        assert synchronizer.ratios == (64, 64, 1, 1, 64, 64)  # rank 0 could not hide the first
        table = synchronizer.ratio_table()
        assert "hides in" in table
        assert all(name in table for name in training.layout.names)
        assert len(messages) == 3 * (RANK == 0)
        assert all("hides in" in each for each in messages)
        if RANK == 0:  # what has been chosen, not what the last iteration had
            chosen = [[cell.strip() for cell in line.split()][2] for line in messages[-1].splitlines()[-len(LARGE) :]]
            assert chosen == ["64", "64", "1", "1", "64", "64"], messages[-1]
        # A state has the ratios; one for any number of ranks has none, and they are fitted anew.
        with ArrayLoop(comm, [np.zeros(shape, np.float32) for shape in LARGE], words) as loop:
            other: Any = loop.synchronizer
            loop.load_state_dict(training.state_dict())
            assert other.ratios == synchronizer.ratios
            loop.load_state_dict(training.consolidated_state_dict())
            assert set(other.ratios) == {64}
        bad = training.state_dict()
        bad["synchronizer"]["ratios"][0] = 0.5
        with raises(ArgumentError, "a ratio of the state is a number of 1 or more"):
            training.load_state_dict(bad)


def check_ratios_are_fitted_again_by_themselves(comm: gf.Communicator) -> None:
    with trained(comm, "lags(max_ratio=8, warmup=2, refit_every=3)") as (training, optimizer):
        fits = []
        synchronizer: Any = training.synchronizer
        fit = synchronizer.refit
        synchronizer.refit = lambda: (fits.append(synchronizer.iterations), fit())
        for number in range(9):
            step(training, optimizer, number)
        assert fits == [2, 5, 8]
    with trained(comm, "lags(max_ratio=8)") as (training, _):  # before there is anything to tell of
        training.synchronizer.refit()
        assert all(name in training.synchronizer.ratio_table() for name in training.layout.names)


run_checks(LAYOUTS)
