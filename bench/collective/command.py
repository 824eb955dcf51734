"""``gradientflow bench allreduce`` and the others: each with the options that mean something for it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..core.case import COLLECTIVES
from ..core.command import Bench, compare, option, plot, timing, wires
from ..core.plan import DEVICES, check_installed, parse_list, parse_sizes
from .columns import LAYOUT
from .plan import ALGORITHMS_OF, DEFAULT_SIZES, DTYPES, MEMORIES, OPS, PEERS_OF, CollectivePlan
from .plot import draw
from .session import CollectiveSession


def _options(name: str) -> list[Any]:
    """Give the options of a collective; a barrier has fewer."""
    options = [compare(PEERS_OF["cuda"]), *timing(1.0, "size", "calls")]
    if name == "allreduce":
        options.insert(0, wires(None))
    if COLLECTIVES[name].reduces:
        options.insert(0, option("--op", "sum", ", ".join(OPS), metavar="NAME"))
    if name == "barrier":
        return options
    return [
        option("--device", "cpu", f"of {', '.join(DEVICES)}", metavar="NAME"),
        option("--sizes", DEFAULT_SIZES, "bytes; K, M, G allowed"),
        option("--memory", ",".join(MEMORIES), "pool: node memory, array: ordinary memory"),
        option("--algorithm", "auto", f"of {', '.join(ALGORITHMS_OF['cuda'])}"),
        option("--dtype", "float32", ", ".join(DTYPES), metavar="NAME"),
        plot("bandwidth against size"),
        *options,
    ]


def _bench(name: str) -> Bench:
    def plan(options: Mapping[str, Any]) -> CollectivePlan:
        found = CollectivePlan(
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
        check_installed(found.peers)
        return found

    return Bench(name, f"Measure {name}.", _options(name), plan, CollectiveSession, LAYOUT, draw)


BENCHES = [_bench(name) for name in COLLECTIVES]
