"""``gradientflow bench train``: train real models with each way to synchronise gradients."""

from __future__ import annotations

import os
from functools import partial
from typing import Any

import click

from ..core.command import Bench, option, plot, wires
from ..core.plan import parse_densities, parse_sizes, parse_thresholds
from .columns import LAYOUT
from .ladder import LADDER
from .plan import (
    CONTESTANTS,
    MODELS,
    PRECISIONS,
    STRATEGIES,
    TrainPlan,
    check_packages,
    parse_corrections,
    parse_numbers,
)
from .plot import draw


def _plan(**options: Any) -> TrainPlan:
    plan = TrainPlan(**options)
    check_packages()
    return plan


def _numbers(name: str, field: str, default: str, help: str) -> click.Option:
    return option(f"{name} {field}", default, help, partial(parse_numbers, name))


def _session(comm: Any, plan: TrainPlan, observe: Any) -> Any:
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # it warns of addresses that have no name
    from .session import TrainSession  # imports PyTorch, which takes a second or two

    return TrainSession(comm, plan, observe)


TRAIN = Bench(
    name="train",
    help="Train a perceptron, convolutional networks and a character LSTM on real data, beside DDP.",
    options=(
        option("--model models", ",".join(MODELS), "what to train"),
        option("--contestants", ",".join(CONTESTANTS), "how to synchronise; training without it is always there"),
        wires("float32,float16", "our gradients"),
        option(
            "--thresholds",
            "auto",
            "our fusion thresholds, bytes; 0: every tensor by itself, inf: all at the end, without overlap",
            parse_thresholds,
        ),
        option(
            "--strategy strategies",
            "dense",
            f"what ours sends, of {', '.join(STRATEGIES)}: everything, or the important chunks",
        ),
        option("--density densities", "0.1", "csc: shares of the chunks", parse_densities),
        option("--chunk chunk_sizes", "32K", "csc: elements of a chunk", parse_sizes),
        _numbers("--warmup", "warmups", "0", "csc: iterations in which the density falls"),
        option("--correction corrections", "on", "csc: on, off: drop what is not sent", parse_corrections),
        option(
            "--precision precisions",
            "float32",
            f"of our model, of {', '.join(PRECISIONS)}; bfloat16 with float32 master weights",
        ),
        click.Option(
            ["--ladder"],
            is_flag=True,
            help="in place of all contestants: MPI, ring, +fp16, +overlap, +lazy, +csc, as in the GradientFlow paper",
        ),
        _numbers("--powersgd-rank", "approximation_ranks", "1", "of the matrices that PowerSGD sends"),
        option("--steps", 40, "timed steps of each contestant", type=int),
        option("--turn", 5, "timed steps until it is the next contestant's turn", type=int),
        option("--batch", 32, "samples of a rank in a step", type=int),
        _numbers("--seeds", "seeds", "0", "of parameters and order of data"),
        option("--lr learning_rate", None, "(default: one that suits the model)", type=float, metavar="RATE"),
        option("--threads", 1, "of PyTorch, in each rank", type=int),
        option(
            "--convergence epochs",
            None,
            "train so long, and compare with one process that trains on the batches of all ranks",
            type=int,
            metavar="EPOCHS",
        ),
        plot("loss over time, and steps"),
    ),
    plan=_plan,
    session=_session,
    layout=LAYOUT,
    draw=draw,
    others={"ladder": LADDER},
)
