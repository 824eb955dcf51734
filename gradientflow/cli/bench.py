"""``gradientflow bench``: measure collectives beside other libraries."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click

from gradientflow.bench.collectives import COLLECTIVES
from gradientflow.bench.device import check_device
from gradientflow.bench.plan import (
    ALGORITHMS_OF,
    DEFAULT_SIZES,
    DEVICES,
    DTYPES,
    MEMORIES,
    OPS,
    PEERS_OF,
    WIRES,
    Plan,
    parse_list,
    parse_sizes,
)
from gradientflow.bench.session import check_job
from gradientflow.cli.bench_fusion import fusion
from gradientflow.cli.bench_job import JOB_OPTIONS, run_bench
from gradientflow.cli.bench_kernels import kernels
from gradientflow.cli.bench_rank import run_rank
from gradientflow.cli.bench_sparse import sparse
from gradientflow.cli.bench_train import train
from gradientflow.cli.library import keep_mpi_unstarted

_SIZED_OPTIONS = (
    click.Option(["--device"], default="cpu", show_default=True, metavar="NAME", help=f"of {', '.join(DEVICES)}"),
    click.Option(["--sizes"], default=DEFAULT_SIZES, show_default=True, metavar="LIST", help="bytes; K, M, G allowed"),
    click.Option(
        ["--memory"],
        default=",".join(MEMORIES),
        show_default=True,
        metavar="LIST",
        help="pool: node memory, array: ordinary memory",
    ),
    click.Option(
        ["--algorithm"],
        default="auto",
        show_default=True,
        metavar="LIST",
        help=f"of {', '.join(ALGORITHMS_OF['cuda'])}",
    ),
    click.Option(["--dtype"], default="float32", show_default=True, metavar="NAME", help=", ".join(DTYPES)),
    click.Option(["--plot", "plot_path"], metavar="FILE.png", help="draw bandwidth against size (needs matplotlib)"),
)
_REDUCING_OPTIONS = (click.Option(["--op"], default="sum", show_default=True, metavar="NAME", help=", ".join(OPS)),)
_WIRE_OPTION = click.Option(
    ["--wire"],
    metavar="LIST",
    help=f"what values are rounded to between nodes, of {', '.join(WIRES)}  [default: the dtype]",
)
_OPTIONS = (
    click.Option(
        ["--compare"],
        default="mpi",
        show_default=True,
        metavar="LIST",
        help=f"of {', '.join(PEERS_OF['cuda'])}, or '' for none",
    ),
    click.Option(["--iterations"], type=int, metavar="N", help="timed calls of each contestant (default: what fits)"),
    click.Option(["--seconds"], type=float, default=1.0, show_default=True, help="to spend on each size, roughly"),
    click.Option(["--cpu", "with_cpu"], is_flag=True, help="show processor times in the table"),
)


@click.group()
def bench() -> None:
    """Measure ours and other libraries side by side in one run.

    Every result is checked, element by element; if one is wrong, the exit status is 1.
    """


class _CollectiveCommand(click.Command):
    """Measure one collective, with the options that mean something for it."""

    def __init__(self, name: str) -> None:
        sized = () if name == "barrier" else _SIZED_OPTIONS
        reducing = _REDUCING_OPTIONS if COLLECTIVES[name].reduces else ()
        wire = (_WIRE_OPTION,) if name == "allreduce" else ()
        super().__init__(name, params=[*sized, *reducing, *wire, *_OPTIONS, *JOB_OPTIONS], help=f"Measure {name}.")

    def invoke(self, ctx: click.Context) -> int:
        """Measure; the result is the exit status."""
        plan = _plan(str(self.name), ctx.params)
        return run_bench(
            ctx.params,
            lambda ranks, on_this_machine: _check(plan, ranks, on_this_machine=on_this_machine),
            lambda output: run_rank(plan, output, with_cpu=ctx.params["with_cpu"]),
        )


for _name in COLLECTIVES:
    bench.add_command(_CollectiveCommand(_name))
bench.add_command(fusion)
bench.add_command(kernels)
bench.add_command(sparse)
bench.add_command(train)


def _plan(name: str, options: Mapping[str, Any]) -> Plan:
    """Make the plan of a command from its options; a barrier has fewer."""
    plan = Plan(
        collective=name,
        sizes=(0,) if name == "barrier" else parse_sizes(options["sizes"]),
        memories=parse_list(options.get("memory", "array")),
        algorithms=parse_list(options.get("algorithm", "auto")),
        peers=parse_list(options["compare"]),
        dtype=options.get("dtype", "float32"),
        op=options.get("op", "sum"),
        wires=parse_list(options.get("wire") or ""),
        iterations=options["iterations"],
        seconds=options["seconds"],
        device=options.get("device", "cpu"),
    )
    plan.check_peers()
    return plan


def _check(plan: Plan, ranks: int, *, on_this_machine: bool) -> None:
    """Refuse, before anything is started, what could only fail on the way."""
    check_job(plan, ranks, on_this_machine=on_this_machine)
    if plan.device != "cpu" and on_this_machine:
        keep_mpi_unstarted()
        check_device(plan.device)
