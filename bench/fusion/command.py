"""``gradientflow bench fusion``: measure ways to average all gradients of a model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..core.command import Bench, compare, option, plot, timing, wires
from ..core.plan import check_installed, parse_list, parse_thresholds
from ..core.shapes import MODELS
from .columns import LAYOUT
from .plan import DEFAULT_BUFFER, DEFAULT_THRESHOLDS, FusionPlan, parse_buffer
from .plot import draw
from .session import FusionSession


def _plan(options: Mapping[str, Any]) -> FusionPlan:
    plan = FusionPlan(
        models=parse_list(options["models"]),
        thresholds=parse_thresholds(options["thresholds"]),
        buffer_bytes=parse_buffer(options["fusion_buffer"]),
        peers=parse_list(options["compare"]),
        wires=parse_list(options["wire"]),
        iterations=options["iterations"],
        seconds=options["seconds"],
    )
    check_installed(plan.peers)
    return plan


FUSION = Bench(
    name="fusion",
    help="Measure one allreduce a tensor, fusion by copying and the gradient pool on the gradients of whole models.",
    options=(
        option("--models", ",".join(MODELS), "whose gradients"),
        option("--thresholds", DEFAULT_THRESHOLDS, "of the pools, bytes; 0: one range a tensor, inf: one for all"),
        option("--fusion-buffer", DEFAULT_BUFFER, "of copy fusion, bytes", metavar="SIZE"),
        wires(),
        compare(),
        *timing(10.0, "model"),
        plot("the times as bars"),
    ),
    plan=_plan,
    session=FusionSession,
    layout=LAYOUT,
    draw=draw,
)
