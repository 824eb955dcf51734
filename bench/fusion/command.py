"""``gradientflow bench fusion``: measure ways to average all gradients of a model."""

from __future__ import annotations

from ..core.command import Bench, compare, option, plot, timing, transport, wires
from ..core.plan import parse_thresholds
from ..core.shapes import MODELS
from .columns import LAYOUT
from .plan import DEFAULT_BUFFER, DEFAULT_THRESHOLDS, FusionPlan, parse_buffer
from .plot import draw
from .session import FusionSession

_FUSION = Bench(
    name="fusion",
    options=(
        option("--models", ",".join(MODELS), "Models whose gradients are averaged."),
        option(
            "--thresholds",
            DEFAULT_THRESHOLDS,
            "Fusion thresholds of the pools, bytes; 0: one range for each tensor, inf: one range for all.",
            parse_thresholds,
        ),
        option(
            "--fusion-buffer buffer_bytes",
            DEFAULT_BUFFER,
            "Bytes of the buffer of copy fusion.",
            parse_buffer,
            metavar="SIZE",
        ),
        wires(),
        transport(),
        compare(),
        *timing(10.0, "model"),
        plot("the times as bars"),
    ),
    plan=FusionPlan,
    session=FusionSession,
    layout=LAYOUT,
    draw=draw,
)

BENCHES = (_FUSION,)
