"""Draw the picture of the README, and print its words: ``python docs/images/draw_results.py``.

``--measure`` measures anew first, with the commands below, in some five minutes, and keeps the figures in results.json.
Between hosts it needs root.
"""

from __future__ import annotations

import argparse
import json
import shlex
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

FOLDER = Path(__file__).resolve().parent
RESULTS = FOLDER / "results.json"
OURS, OTHERS, LEAST = "#0b5fa5", "#e28413", "#b0b7bf"

TRAIN = "gradientflow bench train --model mlp --steps 30 --strategy"
DENSE, FLOAT16, SPARSE = "dense", "dense(wire='float16')", "csc(density=0.1, wire='float16')"
COMMANDS = {
    "allreduce": "gradientflow bench allreduce -n 2 --sizes 1K,16K,256K,1M,4M,16M,64M --memory pool --compare mpi",
    "node": f"{TRAIN} {DENSE} -n 2 --contestants gradientflow,ddp-gradientflow,ddp-gloo",
    "hosts": f"gradientflow netlab --hosts 4 --rate 1gbit -- {TRAIN} "
    f"{shlex.quote('; '.join((DENSE, FLOAT16, SPARSE)))} --contestants gradientflow,ddp-gloo,ddp-gloo-fp16",
}


def measure() -> dict[str, Any]:
    """Run the commands; keep what is drawn."""
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        for name, command in COMMANDS.items():
            print(command, flush=True)
            file = Path(folder, f"{name}.json")
            subprocess.run([*shlex.split(command), "--json", str(file)], check=True)
            rows = json.loads(file.read_text(encoding="utf-8"))["results"]
            found[name] = [times(row) for row in rows] if name == "allreduce" else dict(map(step, rows))
    return found


def times(row: dict[str, Any]) -> dict[str, Any]:
    """Keep the time of an allreduce."""
    return {"backend": row["backend"], "bytes": row["bytes"], "median_us": round(row["median_us"], 2)}


def step(row: dict[str, Any]) -> tuple[str, float]:
    """Keep the time of a step, in milliseconds, by the name of the contestant or of our strategy."""
    name = row["contestant"] if row["strategy"] is None else row["strategy"]
    wire = (row["settings"] or {}).get("wire")
    name += f", {wire}" if wire not in (None, "float32") else ""
    return name, round(row["step_median_ms"], 1)


def words(results: dict[str, Any]) -> str:
    """Tell what the picture shows."""
    node, hosts = results["node"], results["hosts"]
    ours, peer = (by_size(results, backend) for backend in ("gradientflow", "mpi"))
    ratios = [peer[size] / ours[size] for size in ours]
    return (
        f"Allreduce inside a node is {min(ratios):.1f} to {max(ratios):.1f} times as fast as Open MPI's. A training "
        f"step on two ranks of one node takes {node['dense']:.0f} ms, with DDP over Gloo {node['ddp-gloo']:.0f} ms. "
        f"On four hosts at 1 Gbit/s it takes {hosts['csc, float16']:.0f} ms with sparse communication, "
        f"{hosts['dense, float16']:.0f} ms with float16 (DDP's float16 hook: {hosts['ddp-gloo-fp16']:.0f} ms) and "
        f"{hosts['dense']:.0f} ms with float32 (DDP over Gloo: {hosts['ddp-gloo']:.0f} ms)."
    )


def by_size(results: dict[str, Any], backend: str) -> dict[int, float]:
    """Give the microseconds of an allreduce by its bytes."""
    return {row["bytes"]: row["median_us"] for row in results["allreduce"] if row["backend"] == backend}


def draw_allreduce(axes: Axes, results: dict[str, Any]) -> None:
    """Draw the time of an allreduce in a node over its size."""
    for backend, label, colour in (("gradientflow", "GradientFlow, node memory", OURS), ("mpi", "Open MPI", OTHERS)):
        found = by_size(results, backend)
        sizes = [f"{size >> 20}M" if size >> 20 else f"{size >> 10}K" for size in found]
        axes.plot(sizes, [*found.values()], "o-", label=label, color=colour, markersize=4)
    axes.set_yscale("log")
    axes.set_xlabel("bytes, float32")
    axes.set_ylabel("microseconds")
    axes.set_title("Allreduce, 2 ranks in one node")
    axes.tick_params(axis="x", labelsize=8)
    axes.grid(visible=True, alpha=0.3)
    axes.legend(frameon=False)


def draw_steps(axes: Axes, title: str, steps: dict[str, float], bars: Sequence[tuple[str, str, str]]) -> None:
    """Draw steps in milliseconds: of each the label, the name and the colour."""
    labels, names, colours = zip(*bars[::-1], strict=True)
    drawn = axes.barh(labels, [steps[name] for name in names], color=colours, height=0.65)
    axes.bar_label(drawn, fmt="%.0f", padding=3)
    axes.margins(x=0.12)
    axes.set_xlabel("milliseconds a step")
    axes.set_title(title)


def main() -> None:
    """Write results.png beside this file, or to the path that is given, and print the words."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--measure", action="store_true", help="measure anew, and keep the figures")
    parser.add_argument("path", nargs="?", type=Path, default=FOLDER / "results.png", help="the picture")
    options = parser.parse_args()
    if options.measure:
        RESULTS.write_text(json.dumps(measure(), indent=1) + "\n", encoding="utf-8")
    results = json.loads(RESULTS.read_text(encoding="utf-8"))
    figure = Figure(figsize=(13, 3.4), layout="constrained")
    allreduce, node, hosts = figure.subplots(1, 3)
    draw_allreduce(allreduce, results)
    draw_steps(
        node,
        "PyTorch training, 2 ranks in one node",
        results["node"],
        [
            ("no communication", "none", LEAST),
            ("DistributedOptimizer", "dense", OURS),
            ("DDP, GradientFlow", "ddp-gradientflow", OURS),
            ("DDP, Gloo", "ddp-gloo", OTHERS),
        ],
    )
    draw_steps(
        hosts,
        "PyTorch training, 4 hosts, 1 Gbit/s",
        results["hosts"],
        [
            ("no communication", "none", LEAST),
            ("sparse (CSC 10 %), float16", "csc, float16", OURS),
            ("DistributedOptimizer, float16", "dense, float16", OURS),
            ("DDP, Gloo, float16 hook", "ddp-gloo-fp16", OTHERS),
            ("DistributedOptimizer", "dense", OURS),
            ("DDP, Gloo", "ddp-gloo", OTHERS),
        ],
    )
    for axes in (allreduce, node, hosts):
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(options.path, dpi=110)
    print(words(results))


if __name__ == "__main__":
    main()
