"""``gradientflow bench sparse``: measure the exchange of gradients by important chunks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from gradientflow.bench.plan import PEERS, WIRES, parse_list, parse_sizes
from gradientflow.bench.shapes import MODELS
from gradientflow.bench.sparse_plan import (
    DEFAULT_CHUNKS,
    DEFAULT_DENSITIES,
    SparsePlan,
    parse_densities,
    parse_models,
)
from gradientflow.cli.bench_job import JOB_OPTIONS, run_bench
from gradientflow.cli.bench_rank import Output, progress, report, run_in_job

if TYPE_CHECKING:
    from rich.console import Console

    from gradientflow.communicator import Communicator

_OPTIONS = (
    click.Option(
        ["--model", "models"],
        default="mlp",
        show_default=True,
        metavar="LIST",
        help=f"whose gradients, of {', '.join(MODELS)}",
    ),
    click.Option(["--elements"], metavar="LIST", help="so many gradients in place of a model's; K and M allowed"),
    click.Option(
        ["--density"], default=DEFAULT_DENSITIES, show_default=True, metavar="LIST", help="shares of the chunks to send"
    ),
    click.Option(
        ["--chunk"], default=DEFAULT_CHUNKS, show_default=True, metavar="LIST", help="elements of a chunk; K, M allowed"
    ),
    click.Option(
        ["--momentum"], type=float, default=0.9, show_default=True, help="what is held back is multiplied by it"
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
    click.Option(
        ["--seconds"], type=float, default=10.0, show_default=True, help="to spend on each model and chunk, roughly"
    ),
    click.Option(["--cpu", "with_cpu"], is_flag=True, help="show processor times in the table"),
    click.Option(["--plot", "plot_path"], metavar="FILE.png", help="draw steps and bytes (needs matplotlib)"),
)


class _SparseCommand(click.Command):
    """Measure coarse-grained sparse communication beside dense exchanges of the same gradients."""

    def invoke(self, ctx: click.Context) -> int:
        """Measure; the result is the exit status."""
        options = ctx.params
        plan = _plan(options)
        return run_bench(
            options,
            lambda ranks, on_this_machine: plan.check_job(ranks, on_this_machine=on_this_machine),
            lambda output: _run_rank(plan, output, with_cpu=options["with_cpu"]),
        )


sparse = _SparseCommand("sparse", params=[*_OPTIONS, *JOB_OPTIONS], help=_SparseCommand.__doc__)


def _plan(options: Mapping[str, Any]) -> SparsePlan:
    plan = SparsePlan(
        models=parse_models(options["models"], options["elements"]),
        densities=parse_densities(options["density"]),
        chunk_sizes=parse_sizes(options["chunk"]),
        momentum=options["momentum"],
        wires=parse_list(options["wire"]),
        peers=parse_list(options["compare"]),
        iterations=options["iterations"],
        seconds=options["seconds"],
    )
    plan.check_peers()
    return plan


def _run_rank(plan: SparsePlan, output: Output, *, with_cpu: bool) -> int:
    from gradientflow.bench.kernels_table import kernels_legend, print_kernels_table
    from gradientflow.bench.sparse_session import SparseSession
    from gradientflow.bench.sparse_table import print_sparse_table, sparse_legend

    def work(comm: Communicator) -> int:
        with progress(comm, output, len(plan.blocks)) as show:
            session = SparseSession(comm, plan, show)
            outcome = session.run()

        def print_figures(console: Console) -> None:
            print_sparse_table(outcome.results, console, with_cpu=with_cpu)
            console.print(sparse_legend(outcome.results, with_cpu=with_cpu), highlight=False, markup=False)
            print_kernels_table(session.kernels, console)
            console.print(kernels_legend(session.kernels), highlight=False, markup=False)

        def draw(path: str, environment: Mapping[str, Any]) -> None:
            from gradientflow.bench.sparse_plot import save_sparse_plot

            save_sparse_plot(path, outcome.results, environment)

        report(comm, outcome, output, print_figures, draw, {"kernels": session.kernels})
        return 1 if outcome.wrong or any(result.wrong for result in session.kernels) else 0

    return run_in_job(work)
