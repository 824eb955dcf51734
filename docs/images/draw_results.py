"""Draw the picture of the README from the tables of docs/benchmarks.md: ``python docs/images/draw_results.py``."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

FOLDER = Path(__file__).resolve().parent
OURS, OTHERS, LEAST = "#0b5fa5", "#e28413", "#b0b7bf"


def table(start: str) -> list[list[str]]:
    """Read the table of docs/benchmarks.md whose head starts so."""
    lines = iter((FOLDER.parent / "benchmarks.md").read_text().splitlines())
    for line in lines:
        if line.startswith(start):
            break
    else:
        raise ValueError(f"docs/benchmarks.md has no table that starts with {start!r}")
    next(lines)
    rows = []
    for line in lines:
        if not line.startswith("|"):
            break
        rows.append([cell.strip() for cell in line.strip("|").split("|")])
    return rows


def number(cell: str) -> float:
    """Read a figure of a table."""
    return float(cell.replace(",", ""))


def draw_allreduce(axes: Axes) -> None:
    """Draw the time of an allreduce in a node over its size."""
    rows = table("| size | pool: call | filled | array: call")
    sizes = [row[0].replace(" KiB", "K").replace(" MiB", "M") for row in rows]
    for column, label, colour in ((1, "GradientFlow, node memory", OURS), (5, "Open MPI", OTHERS)):
        axes.plot(sizes, [number(row[column]) for row in rows], "o-", label=label, color=colour, markersize=4)
    axes.set_yscale("log")
    axes.set_xlabel("bytes, float32")
    axes.set_ylabel("microseconds")
    axes.set_title("Allreduce, 2 ranks in one node")
    axes.tick_params(axis="x", labelsize=8)
    axes.grid(visible=True, alpha=0.3)
    axes.legend(frameon=False)


def draw_steps(axes: Axes, title: str, bars: Sequence[tuple[str, str, str]]) -> None:
    """Draw steps in milliseconds, each with its label and colour."""
    labels, times, colours = [bar[0] for bar in bars], [number(bar[1]) for bar in bars], [bar[2] for bar in bars]
    drawn = axes.barh(labels[::-1], times[::-1], color=colours[::-1], height=0.65)
    axes.bar_label(drawn, fmt="%.0f", padding=3)
    axes.margins(x=0.12)
    axes.set_xlabel("milliseconds a step")
    axes.set_title(title)


def main() -> None:
    """Write results.png beside this file, or to the path that is given."""
    figure = Figure(figsize=(13, 3.4), layout="constrained")
    allreduce, node, hosts = figure.subplots(1, 3)
    draw_allreduce(allreduce)
    steps = {row[0]: row[1] for row in table("| | 2 ranks: step |")}
    draw_steps(
        node,
        "PyTorch training, 2 ranks in one node",
        [
            ("no communication", steps["alone"], LEAST),
            ("DistributedOptimizer", steps["`DistributedOptimizer`"], OURS),
            ("DDP, GradientFlow", steps["DDP, our process group"], OURS),
            ("DDP, Gloo", steps["DDP, Gloo"], OTHERS),
        ],
    )
    steps = {row[0]: row[1] for row in table("| | ms a step | over DDP + Gloo | exposed, ms | sent, MB | chunks")}
    draw_steps(
        hosts,
        "PyTorch training, 4 hosts, 1 Gbit/s",
        [
            ("no communication", steps["no communication"], LEAST),
            ("sparse (CSC 10 %), float16", steps["CSC 0.1, float16"], OURS),
            ("DistributedOptimizer, float16", steps["dense, float16"], OURS),
            ("DDP, Gloo, float16 hook", steps["DDP + Gloo, float16 hook"], OTHERS),
            ("DistributedOptimizer", steps["dense, float32"], OURS),
            ("DDP, Gloo", steps["DDP + Gloo"], OTHERS),
        ],
    )
    for axes in (allreduce, node, hosts):
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(sys.argv[1] if len(sys.argv) > 1 else FOLDER / "results.png", dpi=110)


if __name__ == "__main__":
    main()
