"""``gradientflow bench train``: train real models with each way to synchronise gradients."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import click

from ..core.command import Bench, option, plot
from ..core.plan import WIRES, parse_densities, parse_list, parse_sizes, parse_thresholds
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


def _plan(options: Mapping[str, Any]) -> TrainPlan:
    plan = TrainPlan(
        models=parse_list(options["model"]),
        contestants=parse_list(options["contestants"]),
        wires=parse_list(options["wire"]),
        thresholds=parse_thresholds(options["thresholds"]),
        approximation_ranks=parse_numbers("--powersgd-rank", options["powersgd_rank"]),
        strategies=parse_list(options["strategy"]),
        densities=parse_densities(options["density"]),
        chunk_sizes=parse_sizes(options["chunk"]),
        warmups=parse_numbers("--warmup", options["warmup"]),
        corrections=parse_corrections(options["correction"]),
        precisions=parse_list(options["precision"]),
        ladder=options["ladder"],
        steps=options["steps"],
        turn=options["turn"],
        batch=options["batch"],
        seeds=parse_numbers("--seeds", options["seeds"]),
        learning_rate=options["learning_rate"],
        threads=options["threads"],
        epochs=options["epochs"],
    )
    check_packages()
    return plan


def _session(comm: Any, plan: TrainPlan, observe: Any) -> Any:
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # it warns of addresses that have no name
    from .session import TrainSession  # imports PyTorch, which takes a second or two

    return TrainSession(comm, plan, observe)


TRAIN = Bench(
    name="train",
    help="Train a perceptron, convolutional networks and a character LSTM on real data, beside DDP.",
    options=(
        option("--model", ",".join(MODELS), "what to train"),
        option("--contestants", ",".join(CONTESTANTS), "how to synchronise; training without it is always there"),
        option("--wire", "float32,float16", f"what our gradients are rounded to between nodes, of {', '.join(WIRES)}"),
        option(
            "--thresholds",
            "auto",
            "our fusion thresholds, bytes; 0: every tensor by itself, inf: all at the end, without overlap",
        ),
        option(
            "--strategy", "dense", f"what ours sends, of {', '.join(STRATEGIES)}: everything, or the important chunks"
        ),
        option("--density", "0.1", "csc: shares of the chunks"),
        option("--chunk", "32K", "csc: elements of a chunk"),
        option("--warmup", "0", "csc: iterations in which the density falls"),
        option("--correction", "on", "csc: on, off: drop what is not sent"),
        option(
            "--precision",
            "float32",
            f"of our model, of {', '.join(PRECISIONS)}; bfloat16 with float32 master weights",
        ),
        click.Option(
            ["--ladder"],
            is_flag=True,
            help="in place of all contestants: MPI, ring, +fp16, +overlap, +lazy, +csc, as in the GradientFlow paper",
        ),
        option("--powersgd-rank", "1", "of the matrices that PowerSGD sends"),
        option("--steps", 40, "timed steps of each contestant", type=int),
        option("--turn", 5, "timed steps until it is the next contestant's turn", type=int),
        option("--batch", 32, "samples of a rank in a step", type=int),
        option("--seeds", "0", "of parameters and order of data"),
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
