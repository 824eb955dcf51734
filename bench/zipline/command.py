"""``gradientflow bench zipline``: the searches for the next barrier of ElasticBSP."""

from __future__ import annotations

from gradientflow.policies import parse_policies

from ..core.command import Bench, option, plot
from ..core.plan import parse_counts
from .columns import LAYOUT
from .decisions import DECISIONS
from .plan import ALGORITHMS, ZiplinePlan
from .plot import draw
from .session import ZiplineSession

_ZIPLINE = Bench(
    name="zipline",
    options=(
        option("--workers", "10,50,100,500,1000", "Numbers of workers.", parse_counts),
        option("--lookahead", "15,150", "Predicted pushes of each worker.", parse_counts),
        option("--algorithms", ",".join(ALGORITHMS), "Searches, of these."),
        option(
            "--policies",
            "bsp; asp; ssp(3); dssp(3, 15); dssp(3, 15, 'all'); elastic_bsp(15)",
            "Policies whose decisions are timed, separated by semicolons; '' for none.",
            lambda text: tuple(parse_policies(text)) if text.strip() else (),
            metavar="WORDS",
        ),
        option("--deciding", 64, "Numbers of workers that these policies decide about.", type=int, metavar="N"),
        option("--draws", 10, "Random instances of each size.", type=int, metavar="N"),
        option("--seconds", 1.0, "Time for each search and size, roughly.", type=float),
        plot("times over workers"),
    ),
    plan=ZiplinePlan,
    session=ZiplineSession,
    layout=LAYOUT,
    draw=draw,
    packages=("pybind11",),
    others={"decisions": DECISIONS},
    in_job=False,
)

BENCHES = (_ZIPLINE,)
