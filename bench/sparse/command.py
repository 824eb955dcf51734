"""``gradientflow bench sparse``: measure the exchange of gradients by important chunks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..core.command import Bench, compare, option, plot, timing, wires
from ..core.plan import check_installed, parse_densities, parse_list, parse_sizes
from ..core.shapes import MODELS
from ..kernels.columns import LAYOUT as KERNELS_LAYOUT
from .columns import LAYOUT
from .plan import DEFAULT_CHUNKS, DEFAULT_DENSITIES, SparsePlan, parse_models
from .plot import draw
from .session import SparseSession


def _plan(options: Mapping[str, Any]) -> SparsePlan:
    plan = SparsePlan(
        models=parse_models(options["models"], options["elements"]),
        densities=parse_densities(options["density"]),
        chunk_sizes=parse_sizes(options["chunk"]),
        momentum=options["momentum"],
        wires=parse_list(options["wire"]),
        peers=parse_list(options["compare"]),
        iterations=options["iterations"],
        seconds=options["seconds"],
    )
    check_installed(plan.peers)
    return plan


SPARSE = Bench(
    name="sparse",
    help="Measure coarse-grained sparse communication beside dense exchanges of the same gradients.",
    options=(
        option("--model models", "mlp", f"whose gradients, of {', '.join(MODELS)}"),
        option("--elements", None, "so many gradients in place of a model's; K and M allowed"),
        option("--density", DEFAULT_DENSITIES, "shares of the chunks to send"),
        option("--chunk", DEFAULT_CHUNKS, "elements of a chunk; K, M allowed"),
        option("--momentum", 0.9, "what is held back is multiplied by it", type=float),
        wires(),
        compare(),
        *timing(10.0, "model and chunk"),
        plot("steps and bytes"),
    ),
    plan=_plan,
    session=SparseSession,
    layout=LAYOUT,
    draw=draw,
    others={"kernels": KERNELS_LAYOUT},
)
