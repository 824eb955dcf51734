"""``gradientflow bench fusion``: measure ways to average all gradients of a model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from gradientflow.bench.fusion_plan import (
    DEFAULT_BUFFER,
    DEFAULT_THRESHOLDS,
    FusionPlan,
    parse_buffer,
    parse_thresholds,
)
from gradientflow.bench.plan import PEERS, WIRES, parse_list
from gradientflow.bench.shapes import MODELS
from gradientflow.cli.bench_job import JOB_OPTIONS, run_bench
from gradientflow.cli.bench_rank import Output, progress, report, run_in_job

if TYPE_CHECKING:
    from rich.console import Console

    from gradientflow.communicator import Communicator

_OPTIONS = (
    click.Option(["--models"], default=",".join(MODELS), show_default=True, metavar="LIST", help="whose gradients"),
    click.Option(
        ["--thresholds"],
        default=DEFAULT_THRESHOLDS,
        show_default=True,
        metavar="LIST",
        help="of the pools, bytes; 0: one range a tensor, inf: one for all",
    ),
    click.Option(
        ["--fusion-buffer"], default=DEFAULT_BUFFER, show_default=True, metavar="SIZE", help="of copy fusion, bytes"
    ),
    click.Option(
        ["--wire"],
        default="float32",
        show_default=True,
        metavar="LIST",
        help=f"what values are rounded to between nodes, of {', '.join(WIRES)}",
    ),
    click.Option(
        ["--compare"], default="mpi", show_default=True, metavar="LIST", help=f"of {', '.join(PEERS)}, or '' for none"
    ),
    click.Option(["--iterations"], type=int, metavar="N", help="timed steps of each contestant (default: what fits)"),
    click.Option(["--seconds"], type=float, default=10.0, show_default=True, help="to spend on each model, roughly"),
    click.Option(["--cpu", "with_cpu"], is_flag=True, help="show processor times in the table"),
    click.Option(["--plot", "plot_path"], metavar="FILE.png", help="draw the times as bars (needs matplotlib)"),
)


class _FusionCommand(click.Command):
    """Measure one allreduce a tensor, fusion by copying and the gradient pool on the gradients of whole models."""

    def invoke(self, ctx: click.Context) -> int:
        """Measure; the result is the exit status."""
        options = ctx.params
        plan = _plan(options)
        return run_bench(
            options,
            lambda ranks, on_this_machine: plan.check_job(ranks, on_this_machine=on_this_machine),
            lambda output: _run_rank(plan, output, with_cpu=options["with_cpu"]),
        )


fusion = _FusionCommand("fusion", params=[*_OPTIONS, *JOB_OPTIONS], help=_FusionCommand.__doc__)


def _plan(options: Mapping[str, Any]) -> FusionPlan:
    plan = FusionPlan(
        models=parse_list(options["models"]),
        thresholds=parse_thresholds(options["thresholds"]),
        buffer_bytes=parse_buffer(options["fusion_buffer"]),
        peers=parse_list(options["compare"]),
        wires=parse_list(options["wire"]),
        iterations=options["iterations"],
        seconds=options["seconds"],
    )
    plan.check_peers()
    return plan


def _run_rank(plan: FusionPlan, output: Output, *, with_cpu: bool) -> int:
    from gradientflow.bench.fusion_session import FusionSession
    from gradientflow.bench.fusion_table import fusion_legend, print_fusion_table

    def work(comm: Communicator) -> int:
        with progress(comm, output, len(plan.models)) as show:
            outcome = FusionSession(comm, plan, show).run()

        def print_figures(console: Console) -> None:
            print_fusion_table(outcome.results, console, with_cpu=with_cpu)
            console.print(fusion_legend(outcome.results, with_cpu=with_cpu), highlight=False, markup=False)

        def draw(path: str, environment: Mapping[str, Any]) -> None:
            from gradientflow.bench.fusion_plot import save_fusion_plot

            save_fusion_plot(path, outcome.results, environment)

        report(comm, outcome, output, print_figures, draw)
        return 1 if outcome.wrong else 0

    return run_in_job(work)
