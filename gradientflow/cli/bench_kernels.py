"""``gradientflow bench kernels``: measure the compute kernels beside plain copies."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

import gradientflow as gf
from gradientflow.bench.device import check_device
from gradientflow.bench.kernels_plan import DEFAULT_SIZES, NAMES_OF, KernelsPlan
from gradientflow.bench.plan import DEVICES, PlanError, check_choices, parse_list, parse_sizes
from gradientflow.cli.bench_job import output_here
from gradientflow.cli.bench_rank import Output, progress, report
from gradientflow.launch import ranks_of_this_job

if TYPE_CHECKING:
    from rich.console import Console

_NAMES = dict.fromkeys(name for names in NAMES_OF.values() for name in names)
_OPTIONS = (
    click.Option(["--device"], default="cpu", show_default=True, metavar="NAME", help=f"of {', '.join(DEVICES)}"),
    click.Option(
        ["--sizes"],
        metavar="LIST",
        help="bytes of the gradients as float32; K, M, G allowed  "
        f"[default: {DEFAULT_SIZES['cpu']}, on a device {DEFAULT_SIZES['cuda']}]",
    ),
    click.Option(["--kernels"], metavar="LIST", help=f"of {', '.join(_NAMES)}  [default: all]"),
    click.Option(["--seconds"], type=float, default=10.0, show_default=True, help="to spend on each size, roughly"),
    click.Option(["--json", "json_path"], metavar="FILE", help="write figures and environment here"),
    click.Option(["--plot", "plot_path"], metavar="FILE.png", help="draw bandwidths as bars (needs matplotlib)"),
)


class _KernelsCommand(click.Command):
    """Measure the compute kernels, on one core or on a CUDA device, beside plain copies of as many bytes."""

    def invoke(self, ctx: click.Context) -> int:
        """Measure; the result is the exit status."""
        options = ctx.params
        device = options["device"]
        check_choices("--device", (device,), DEVICES)
        plan = KernelsPlan(
            sizes=parse_sizes(DEFAULT_SIZES[device] if options["sizes"] is None else options["sizes"]),
            names=None if options["kernels"] is None else parse_list(options["kernels"]),
            device=device,
            seconds=options["seconds"],
        )
        return _run(plan, output_here(options))


kernels = _KernelsCommand("kernels", params=[*_OPTIONS], help=_KernelsCommand.__doc__)


def _run(plan: KernelsPlan, output: Output) -> int:
    from gradientflow.bench.kernels_session import KernelsSession
    from gradientflow.bench.kernels_table import kernels_legend, print_kernels_table

    if ranks_of_this_job() not in (None, 1):
        raise PlanError("bench kernels measures one process: start it without mpirun")
    check_device(plan.device)
    with gf.init() as comm:
        with progress(comm, output, len(plan.sizes) * len(plan.kernels)) as show:
            outcome = KernelsSession(comm, plan, show).run()

        def print_figures(console: Console) -> None:
            print_kernels_table(outcome.results, console)
            console.print(kernels_legend(outcome.results), highlight=False, markup=False)

        def draw(path: str, environment: Mapping[str, Any]) -> None:
            from gradientflow.bench.kernels_plot import save_kernels_plot

            save_kernels_plot(path, outcome.results, environment)

        report(comm, outcome, output, print_figures, draw)
    return 1 if outcome.wrong else 0
