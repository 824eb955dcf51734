"""``gradientflow bench sparse``: measure the exchange of gradients by important chunks."""

from __future__ import annotations

from typing import Any

from ..core.command import Bench, compare, option, plot, timing, transport, wires
from ..core.plan import SINGLE_WIRES, parse_densities, parse_sizes
from ..core.shapes import MODELS
from ..kernels.columns import LAYOUT as KERNELS_LAYOUT
from .columns import LAYOUT
from .plan import DEFAULT_CHUNKS, DEFAULT_DENSITIES, SparsePlan, parse_models
from .plot import draw
from .session import SparseSession


def _plan(models: str, elements: str | None = None, **options: Any) -> SparsePlan:
    return SparsePlan(parse_models(models, elements), **options)


_SPARSE = Bench(
    name="sparse",
    options=(
        option("--model models", "mlp", f"Models whose gradients are exchanged, of {', '.join(MODELS)}.", None),
        option("--elements", None, "Number of gradients, in place of a model's; K and M allowed.", None),
        option("--density densities", DEFAULT_DENSITIES, "Shares of the chunks to send.", parse_densities),
        option("--chunk chunk_sizes", DEFAULT_CHUNKS, "Elements of a chunk; K, M allowed.", parse_sizes),
        option("--momentum", 0.9, "Factor of the residuals in each step.", type=float),
        wires(known=SINGLE_WIRES),
        transport(),
        compare(),
        *timing(10.0, "model and chunk"),
        plot("steps and bytes"),
    ),
    plan=_plan,
    session=SparseSession,
    layout=LAYOUT,
    draw=draw,
    packages=("pybind11",),
    others={"kernels": KERNELS_LAYOUT},
)

BENCHES = (_SPARSE,)
