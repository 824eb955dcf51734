"""``gradientflow bench zipline``: the searches for the next barrier of ElasticBSP."""

from __future__ import annotations

from ..core.command import Bench, option, plot
from .columns import LAYOUT
from .plan import ALGORITHMS, ZiplinePlan, parse_counts
from .plot import draw
from .session import ZiplineSession

ZIPLINE = Bench(
    name="zipline",
    help="Compare the searches for the next barrier of ElasticBSP: what they find, and how long they take.",
    options=(
        option("--workers", "10,50,100,500,1000", "how many", parse_counts),
        option("--lookahead", "15,150", "pushes of each that are predicted", parse_counts),
        option("--algorithms", ",".join(ALGORITHMS), "of these"),
        option("--draws", 10, "random instances of each size", type=int, metavar="N"),
        option("--seconds", 1.0, "to spend on each search and size, roughly", type=float),
        plot("times over workers"),
    ),
    plan=ZiplinePlan,
    session=ZiplineSession,
    layout=LAYOUT,
    draw=draw,
    in_job=False,
)
