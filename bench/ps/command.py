"""``gradientflow bench ps``: measure the parameter server."""

from __future__ import annotations

from ..core.command import Bench, compare, option, plot, timing, transport, wires
from ..core.plan import SINGLE_WIRES, parse_counts, parse_sizes
from .columns import LAYOUT
from .plan import DEFAULT_SIZES, MEMORIES, PEERS, ServerPlan
from .plot import draw
from .session import ServerSession

_PS = Bench(
    name="ps",
    options=(
        option("--sizes", DEFAULT_SIZES, "Bytes of gradients; K, M and G allowed.", parse_sizes),
        option(
            "--servers",
            None,
            "Numbers of servers, in the ranks of workers  [default: as many as workers]",
            parse_counts,
        ),
        option(
            "--memory memories",
            ",".join(MEMORIES),
            "Memory of gradients: the worker's (array), the servers' (in-place).",
        ),
        wires(known=SINGLE_WIRES),
        transport(),
        compare(PEERS),
        *timing(3.0, "size", "exchanges"),
        plot("times"),
    ),
    plan=ServerPlan,
    session=ServerSession,
    layout=LAYOUT,
    draw=draw,
)

BENCHES = (_PS,)
