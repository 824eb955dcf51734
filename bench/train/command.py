"""``gradientflow bench train``: train real models with each strategy."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from gradientflow.annotations import JsonObject
from gradientflow.policies import as_stragglers
from gradientflow.strategies import parse_strategies

from ..core.command import Bench, option, page, plot, transport
from ..core.plan import WIRES, parse_thresholds
from ..core.table import AnyResult
from .columns import LAYOUT
from .ladder import LADDER
from .plan import CONTESTANTS, MODELS, ON_THE_LADDER, PRECISIONS, STRATEGIES, TrainPlan, parse_numbers
from .plot import draw
from .rates import parse_rates

if TYPE_CHECKING:
    from gradientflow.communicator import Communicator

    from ..core.session import Observer
    from .session import TrainSession


def _plan(strategies: tuple[str, ...] = (), rates: tuple[str, ...] = (), **options: Any) -> TrainPlan:
    named = parse_strategies(";".join(strategies), options.get("steps", TrainPlan.steps)) if strategies else ()
    rate, own_rates = parse_rates(rates)
    return TrainPlan(strategies=tuple(dict.fromkeys(named)), learning_rate=rate, own_rates=own_rates, **options)


def _numbers(name: str, field: str, default: str | None, help: str) -> click.Option:
    return option(f"{name} {field}", default, help, partial(parse_numbers, name))


def _page(results: Sequence[AnyResult], environment: JsonObject, remarks: Sequence[str]) -> str:
    from .page import page_of  # imports matplotlib and jinja2

    text: str = page_of(results, environment, remarks)
    return text


def _session(comm: Communicator, plan: TrainPlan, observe: Observer | None) -> TrainSession:
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # PyTorch warns of addresses without a host name
    from .session import TrainSession  # imports PyTorch, which takes a second or two

    return TrainSession(comm, plan, observe)


_TRAIN = Bench(
    name="train",
    options=(
        option("--model models", ",".join(MODELS), "Models to train, of these; or perceptrons of a size, as even-5M."),
        option("--contestants", ",".join(CONTESTANTS), "Ways to synchronize; training without it is always measured."),
        option(
            "--strategy strategies",
            None,
            "Our strategies, separated by semicolons or repeated: NAME, NAME(ARGUMENT=VALUE, ...), FILE.py:CLASS(...), "
            "or all  "
            f"[default: {STRATEGIES}, and that of gradientflow.toml; with --ladder: {ON_THE_LADDER}]",
            None,
            multiple=True,
            metavar="WORDS",
        ),
        option("--wire wires", None, f"Formats of gradients between nodes, for each strategy, of {', '.join(WIRES)}."),
        option(
            "--thresholds",
            None,
            "Fusion thresholds for each strategy, bytes; 0: every tensor by itself, inf: all at the end.",
            parse_thresholds,
        ),
        option(
            "--precision precisions",
            "float32",
            f"Precisions of our model, of {', '.join(PRECISIONS)}; bfloat16 with float32 master weights.",
        ),
        click.Option(
            ["--fused"],
            is_flag=True,
            help="Measure each strategy also with the step made by the core, in one pass.",
        ),
        click.Option(
            ["--survive"],
            is_flag=True,
            help='Measure each strategy also with on_failure="continue"; with --transport tcp.',
        ),
        click.Option(
            ["--views"],
            is_flag=True,
            help="Measure DDP also with gradient_as_bucket_view=True, and, as ddp-alone, without communication.",
        ),
        transport(),
        click.Option(
            ["--ladder"],
            is_flag=True,
            help="Measure MPI, ring, +fp16, +overlap, +lazy, +strategy, as in the paper, in place of all contestants.",
        ),
        _numbers("--powersgd-rank", "approximation_ranks", "1", "Ranks of the matrices that PowerSGD sends."),
        option("--steps", 40, "Timed steps of each contestant.", type=int),
        option("--turn", 5, "Timed steps of a turn, after which the next contestant has its turn.", type=int),
        option("--batch", 32, "Samples of a rank in a step.", type=int),
        _numbers("--seeds", "seeds", "0", "Seeds of parameters and order of data."),
        option(
            "--lr rates",
            None,
            "Learning rate of all; or NAME=RATE for one strategy or contestant, separated by semicolons or repeated "
            "(default: a rate that suits the model).",
            None,
            multiple=True,
            metavar="RATE",
        ),
        option("--momentum", 0.9, "Momentum of SGD, where the strategy takes one.", type=float),
        option("--threads", 1, "Threads of PyTorch and NumPy in each rank.", type=int),
        option(
            "--convergence epochs",
            None,
            "Epochs to train, beside one process that trains on the batches of all ranks.",
            type=int,
            metavar="EPOCHS",
        ),
        option(
            "--stragglers",
            None,
            "Computing time of each rank over that of the fastest, by sleeping: 1,1.3,1.7,2.2, or "
            '"stragglers((1, 2), jitter=0.1, slows=0)".',
            as_stragglers,
            metavar="WORDS",
        ),
        option(
            "--step-ms",
            None,
            "Milliseconds of a step of the fastest rank, with --stragglers (default: measured).",
            type=float,
        ),
        option("--traces", None, "Folder for the decisions of servers' policies, for replay.", None, metavar="FOLDER"),
        _numbers("--scale", "scale", None, "Numbers of ranks to train on, too, for the scale efficiency: 1,2,4."),
        option(
            "--resume",
            None,
            "File that keeps results: after an interruption the same command measures only missing results.",
            None,
            metavar="FILE",
        ),
        page("tables and plots"),
        plot("loss over time, and steps"),
    ),
    plan=_plan,
    session=_session,
    layout=LAYOUT,
    draw=draw,
    packages=("torch", "sklearn"),
    page=_page,
    others={"ladder": LADDER},
)

BENCHES = (_TRAIN,)
