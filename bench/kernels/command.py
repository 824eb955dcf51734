"""``gradientflow bench kernels``: measure the compute kernels, compared with plain copies."""

from __future__ import annotations

from ..core.command import Bench, option, plot
from ..core.plan import DEVICES, check_choices, parse_sizes
from .columns import LAYOUT
from .plan import DEFAULT_SIZES, NAMES_OF, KernelsPlan
from .plot import draw
from .session import KernelsSession

_NAMES = dict.fromkeys(name for names in NAMES_OF.values() for name in names)
_SIZES = f"{DEFAULT_SIZES['cpu']}, on a device {DEFAULT_SIZES['cuda']}"


def _plan(
    device: str,
    sizes: str | None = None,
    names: tuple[str, ...] | None = None,
    seconds: float = KernelsPlan.seconds,
) -> KernelsPlan:
    check_choices("--device", (device,), DEVICES)
    return KernelsPlan(parse_sizes(DEFAULT_SIZES[device] if sizes is None else sizes), names, device, seconds)


_KERNELS = Bench(
    name="kernels",
    options=(
        option("--device", "cpu", f"Device, of {', '.join(DEVICES)}.", None, metavar="NAME"),
        option("--sizes", None, f"Bytes of the gradients as float32; K, M, G allowed  [default: {_SIZES}]", None),
        option("--kernels names", None, f"Kernels, of {', '.join(_NAMES)}  [default: all but selection]"),
        option("--seconds", 10.0, "Time for each size, roughly.", type=float),
        plot("bandwidths as bars"),
    ),
    plan=_plan,
    session=KernelsSession,
    layout=LAYOUT,
    draw=draw,
    packages=("pybind11",),
    in_job=False,
)

BENCHES = (_KERNELS,)
