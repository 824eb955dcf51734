"""``gradientflow bench train``: train real models with each way to synchronise gradients."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from gradientflow.bench.environment import describe_environment, environment_lines, package_version
from gradientflow.bench.fusion_plan import parse_thresholds
from gradientflow.bench.plan import WIRES, PlanError, parse_list, parse_sizes
from gradientflow.bench.sparse_plan import parse_densities
from gradientflow.bench.train.plan import (
    CONTESTANTS,
    MODELS,
    PRECISIONS,
    STRATEGIES,
    TrainPlan,
    check_packages,
    parse_corrections,
    parse_numbers,
)
from gradientflow.cli.bench_job import JOB_OPTIONS, run_bench
from gradientflow.cli.bench_rank import Output, open_console, progress, run_in_job

if TYPE_CHECKING:
    from gradientflow.communicator import Communicator

_OPTIONS = (
    click.Option(["--model"], default=",".join(MODELS), show_default=True, metavar="LIST", help="what to train"),
    click.Option(
        ["--contestants"],
        default=",".join(CONTESTANTS),
        show_default=True,
        metavar="LIST",
        help="how to synchronise; training without it is always there",
    ),
    click.Option(
        ["--wire"],
        default="float32,float16",
        show_default=True,
        metavar="LIST",
        help=f"what our gradients are rounded to between nodes, of {', '.join(WIRES)}",
    ),
    click.Option(
        ["--thresholds"],
        default="auto",
        show_default=True,
        metavar="LIST",
        help="our fusion thresholds, bytes; 0: every tensor by itself, inf: all at the end, without overlap",
    ),
    click.Option(
        ["--strategy"],
        default="dense",
        show_default=True,
        metavar="LIST",
        help=f"what ours sends, of {', '.join(STRATEGIES)}: everything, or the important chunks",
    ),
    click.Option(["--density"], default="0.1", show_default=True, metavar="LIST", help="csc: shares of the chunks"),
    click.Option(["--chunk"], default="32K", show_default=True, metavar="LIST", help="csc: elements of a chunk"),
    click.Option(
        ["--warmup"], default="0", show_default=True, metavar="LIST", help="csc: iterations in which the density falls"
    ),
    click.Option(
        ["--correction"], default="on", show_default=True, metavar="LIST", help="csc: on, off: drop what is not sent"
    ),
    click.Option(
        ["--precision"],
        default="float32",
        show_default=True,
        metavar="LIST",
        help=f"of our model, of {', '.join(PRECISIONS)}; bfloat16 with float32 master weights",
    ),
    click.Option(
        ["--ladder"],
        is_flag=True,
        help="in place of all contestants: MPI, ring, +fp16, +overlap, +lazy, +csc, as in the GradientFlow paper",
    ),
    click.Option(
        ["--powersgd-rank"], default="1", show_default=True, metavar="LIST", help="of the matrices that PowerSGD sends"
    ),
    click.Option(["--steps"], type=int, default=40, show_default=True, help="timed steps of each contestant"),
    click.Option(
        ["--turn"], type=int, default=5, show_default=True, help="timed steps until it is the next contestant's turn"
    ),
    click.Option(["--batch"], type=int, default=32, show_default=True, help="samples of a rank in a step"),
    click.Option(["--seeds"], default="0", show_default=True, metavar="LIST", help="of parameters and order of data"),
    click.Option(["--lr", "learning_rate"], type=float, metavar="RATE", help="(default: one that suits the model)"),
    click.Option(["--threads"], type=int, default=1, show_default=True, help="of PyTorch, in each rank"),
    click.Option(
        ["--convergence", "epochs"],
        type=int,
        metavar="EPOCHS",
        help="train so long, and compare with one process that trains on the batches of all ranks",
    ),
    click.Option(["--plot", "plot_path"], metavar="FILE.png", help="draw loss over time, and steps (needs matplotlib)"),
)


class _TrainCommand(click.Command):
    """Train a perceptron, convolutional networks and a character LSTM on real data, beside DDP."""

    def invoke(self, ctx: click.Context) -> int:
        """Train; the result is the exit status."""
        plan = _plan(ctx.params)
        return run_bench(ctx.params, _check_job, lambda output: _run_rank(plan, output))


train = _TrainCommand("train", params=[*_OPTIONS, *JOB_OPTIONS], help=_TrainCommand.__doc__)


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


def _check_job(ranks: int, on_this_machine: bool) -> None:
    if ranks < 1:
        raise PlanError(f"-n needs at least 1 rank, not {ranks}")


def _run_rank(plan: TrainPlan, output: Output) -> int:
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # it warns of addresses that have no name
    from gradientflow.bench.train.session import TrainSession  # imports PyTorch, which takes a second or two

    def work(comm: Communicator) -> int:
        with progress(comm, output, plan.all_turns) as show:
            outcome = TrainSession(comm, plan, show).run()
        if comm.rank == 0:
            environment = describe_environment(comm, output.arguments, outcome.hosts, outcome.load)
            _report(plan, outcome, environment, output)
        return 1 if outcome.wrong else 0

    return run_in_job(work)


def _report(plan: TrainPlan, outcome: Any, environment: dict[str, Any], output: Output) -> None:
    from gradientflow.bench.train.ladder import climb, print_ladder
    from gradientflow.bench.train.results import write_json
    from gradientflow.bench.train.table import legend, print_table

    environment["torch"] = package_version("torch")
    console = open_console(sys.stdout, output.out_columns)
    for line in environment_lines(environment):
        console.print(line, highlight=False, soft_wrap=True)
    print_table(outcome.results, console)
    console.print(legend(outcome.results), highlight=False, markup=False)
    rungs = climb(plan, outcome.results) if plan.ladder else []
    if rungs:
        print_ladder(rungs, console)
    for sentence in outcome.remarks:
        console.print(sentence, style="yellow", highlight=False, markup=False)
    if output.json_path is not None:
        write_json(output.json_path, environment, outcome.results, rungs)
    if output.plot_path is not None:
        from gradientflow.bench.train.plot import save_plot

        save_plot(output.plot_path, outcome.results, environment)
