"""Draw the picture of the README, and print its table: ``python docs/images/draw_results.py``.

``--measure`` measures first, with the commands below, in three minutes, and keeps the figures in results.json.
Between hosts it needs root.
"""

from __future__ import annotations

import argparse
import json
import shlex
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

FOLDER = Path(__file__).resolve().parent
RESULTS = FOLDER / "results.json"
OURS, OTHERS, LEAST = "#0b5fa5", "#e28413", "#b0b7bf"

COMMANDS = {
    "allreduce": "gradientflow bench allreduce -n 2 --sizes 1K,16K,256K,1M,4M,16M,64M --memory pool --compare mpi",
    "first": "gradientflow bench first --gradients 300K,1400K,5M,23M --no-jax",
}
GLOO = "ddp-gloo"


def measure() -> dict[str, Any]:
    """Run the commands; keep what is drawn."""
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        for name, command in COMMANDS.items():
            print(command, flush=True)
            file = Path(folder, f"{name}.json")
            subprocess.run([*shlex.split(command), "--json", str(file)], check=True)
            found[name] = json.loads(file.read_text(encoding="utf-8"))
    found["allreduce"] = [times(row) for row in found["allreduce"]["results"]]
    found["node"], found["hosts"] = (steps(place["results"]) for place in found.pop("first"))
    return found


def times(row: dict[str, Any]) -> dict[str, Any]:
    """Keep the time of an allreduce."""
    return {"backend": row["backend"], "bytes": row["bytes"], "median_us": round(row["median_us"], 2)}


def steps(figures: dict[str, dict[str, float]]) -> dict[str, dict[str, float]]:
    """Round the milliseconds of a step, by the bytes of the gradients and the name of the contestant."""
    return {size: {name: round(time, 1) for name, time in each.items()} for size, each in figures.items()}


def words(results: dict[str, Any]) -> str:
    """Return the figures of the picture as the table of the README."""
    ours, peer = (by_size(results, backend) for backend in ("gradientflow", "mpi"))
    ratios = [peer[size] / ours[size] for size in ours]
    sizes = [*results["node"]]
    rows = [
        ("", "Measured"),
        ("Allreduce in a node: times as fast as Open MPI's", f"{min(ratios):.1f} to {max(ratios):.1f}"),
        (
            "Step of `DistributedOptimizer` over that of DDP on Gloo, two ranks of a node, gradients of "
            f"{sizes[0]}B to {sizes[-1]}B",
            spread(results["node"], "dense"),
        ),
        ("The same on four hosts at 1 Gbit/s", spread(results["hosts"], "dense")),
        ('The same on four hosts, with `strategy="csc"`', spread(results["hosts"], "csc")),
    ]
    head, *body = (f"| {' | '.join(row)} |" for row in rows)
    return "\n".join([head, "|---|---:|", *body])


def shares(figures: dict[str, dict[str, float]], name: str) -> dict[str, float]:
    """Give the time of a step over that of DDP over Gloo, by the bytes of the gradients."""
    return {size: each[name] / each[GLOO] for size, each in figures.items()}


def spread(figures: dict[str, dict[str, float]], name: str) -> str:
    """Give the smallest and the largest of these shares."""
    found = shares(figures, name).values()
    return f"{min(found):.2f} to {max(found):.2f}"


def by_size(results: dict[str, Any], backend: str) -> dict[int, float]:
    """Give the microseconds of an allreduce by its bytes."""
    return {row["bytes"]: row["median_us"] for row in results["allreduce"] if row["backend"] == backend}


def draw_allreduce(axes: Axes, results: dict[str, Any]) -> None:
    """Draw the time of an allreduce in a node over its size."""
    for backend, label, color in (("gradientflow", "GradientFlow, node memory", OURS), ("mpi", "Open MPI", OTHERS)):
        found = by_size(results, backend)
        sizes = [f"{size >> 20}M" if size >> 20 else f"{size >> 10}K" for size in found]
        axes.plot(sizes, [*found.values()], "o-", label=label, color=color, markersize=4)
    axes.set_yscale("log")
    axes.set_xlabel("bytes, float32")
    axes.set_ylabel("microseconds")
    axes.set_title("Allreduce, 2 ranks in one node")
    axes.tick_params(axis="x", labelsize=8)
    axes.grid(visible=True, alpha=0.3)
    axes.legend(frameon=False)


def draw_shares(axes: Axes, results: dict[str, Any]) -> None:
    """Draw the share of the time of DDP over Gloo that a step takes, over the bytes of the gradients."""
    for place, name, label, style in (
        ("hosts", "dense", "DistributedOptimizer, 4 hosts", "s-"),
        ("node", "dense", "DistributedOptimizer, one node", "o-"),
        ("hosts", "csc", "sparse (csc), 4 hosts", "^--"),
    ):
        found = shares(results[place], name)
        axes.plot([*found], [*found.values()], style, label=label, color=OURS, markersize=4)
    axes.axhline(1, label="DDP, Gloo", color=OTHERS)
    axes.set_ylim(bottom=0)
    axes.set_xlabel("bytes of gradients")
    axes.set_ylabel("step, over that of DDP, Gloo")
    axes.set_title("PyTorch training, nothing set")
    axes.grid(visible=True, alpha=0.3)
    axes.legend(frameon=False, fontsize=8)


def draw_steps(axes: Axes, results: dict[str, Any]) -> None:
    """Draw steps of the largest gradients on the hosts, in milliseconds."""
    size, steps = [*results["hosts"].items()][-1]
    bars = [
        ("DDP, Gloo", GLOO, OTHERS),
        ("DDP, GradientFlow", "ddp-gradientflow", OURS),
        ("DistributedOptimizer", "dense", OURS),
        ("sparse (lags)", "lags", OURS),
        ("sparse (csc)", "csc", OURS),
        ("no communication", "none", LEAST),
    ]
    labels, names, colors = zip(*bars, strict=True)
    drawn = axes.barh(labels, [steps[name] for name in names], color=colors, height=0.65)
    axes.bar_label(drawn, fmt="%.0f", padding=3)
    axes.margins(x=0.12)
    axes.set_xlabel("milliseconds a step")
    axes.set_title(f"{size}B of gradients, 4 hosts, 1 Gbit/s")


def main() -> None:
    """Write results.png beside this file, or to the path that is given, and print the words."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--measure", action="store_true", help="measure first, and keep the figures")
    parser.add_argument("path", nargs="?", type=Path, default=FOLDER / "results.png", help="the picture")
    options = parser.parse_args()
    if options.measure:
        RESULTS.write_text(json.dumps(measure(), indent=1) + "\n", encoding="utf-8")
    results = json.loads(RESULTS.read_text(encoding="utf-8"))
    figure = Figure(figsize=(13, 3.4), layout="constrained")
    every = figure.subplots(1, 3)
    for axes, draw in zip(every, (draw_allreduce, draw_shares, draw_steps), strict=True):
        draw(axes, results)
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(options.path, dpi=110)
    print(words(results))


if __name__ == "__main__":
    main()
