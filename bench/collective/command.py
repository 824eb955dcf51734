"""``gradientflow bench allreduce`` and its like: a command for each collective, with the options that apply."""

from __future__ import annotations

from functools import partial

import click

from ..core.case import COLLECTIVES
from ..core.command import Bench, compare, option, plot, timing, transport, wires
from ..core.plan import DEVICES, parse_sizes
from .columns import LAYOUT
from .plan import ALGORITHMS_OF, DEFAULT_SIZES, DTYPES, LIMIT, MEMORIES, OPS, PEERS_OF, CollectivePlan
from .plot import draw
from .session import CollectiveSession


def _options(name: str) -> list[click.Option]:
    """Give the options of a collective; barrier has fewer."""
    peers = list(dict.fromkeys((*PEERS_OF["cpu"], *PEERS_OF["cuda"])))
    if name != "allreduce":
        peers.remove(LIMIT)
    options = [transport(), compare(peers), *timing(1.0, "size", "calls")]
    if name == "allreduce":
        options.insert(0, wires(None))
    if COLLECTIVES[name].reduces:
        options.insert(0, option("--op", "sum", f"Reduction: {', '.join(OPS)}.", None, metavar="NAME"))
    if name == "barrier":
        return options
    return [
        option("--device", "cpu", f"Device, of {', '.join(DEVICES)}.", None, metavar="NAME"),
        option("--sizes", DEFAULT_SIZES, "Bytes of a tensor; K, M, G allowed.", parse_sizes),
        option(
            "--memory memories", ",".join(MEMORIES), "Memory of tensors: node memory (pool), ordinary memory (array)."
        ),
        option("--algorithm algorithms", "auto", f"Algorithms, of {', '.join(ALGORITHMS_OF['cuda'])}."),
        option("--dtype", "float32", f"Element type: {', '.join(DTYPES)}.", None, metavar="NAME"),
        plot("bandwidth against size"),
        *options,
    ]


def _bench(name: str) -> Bench:
    plan = partial(CollectivePlan, name, sizes=(0,)) if name == "barrier" else partial(CollectivePlan, name)
    return Bench(name, _options(name), plan, CollectiveSession, LAYOUT, draw)


BENCHES = tuple(_bench(name) for name in COLLECTIVES)
