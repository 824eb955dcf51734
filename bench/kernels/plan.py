"""The options of ``gradientflow bench kernels`` as one checked value."""

from __future__ import annotations

from dataclasses import dataclass

from gradientflow.machine import format_size

from ..core.device import check_device
from ..core.native import load_kernels
from ..core.plan import DEVICES, Plan, check_choices, check_memory, check_sizes, check_time
from .contestants import DEVICE_KERNELS, KERNELS, Kernel
from .selection import GROUP, SELECTIONS, Selection

KERNELS_OF = {"cpu": KERNELS, "cuda": DEVICE_KERNELS}
NAMES_OF = {device: tuple(dict.fromkeys(kernel.name for kernel in kernels)) for device, kernels in KERNELS_OF.items()}
NAMES = NAMES_OF["cpu"]
NAMES_OF["cpu"] = (*NAMES, GROUP)

# On the CPU: in a cache near the core, in a shared cache, and in memory. On a device: shorter than a launch, in the
# second-level cache, and in memory.
DEFAULT_SIZES = {"cpu": "1M,24M,256M", "cuda": "64K,4M,256M"}

_ITEM = 4  # bytes of a float32


@dataclass(frozen=True)
class KernelsPlan(Plan):
    """One run of ``gradientflow bench kernels``.

    Attributes
    ----------
    sizes : tuple of int
        Bytes of the gradients as float32; 16-bit gradients have the same number of elements.
    names : tuple of str, optional
        The kernels to measure; by default all of the device except the selections.
    device : str
        The device that runs the kernels.
    seconds : float
        The time to spend on each size, roughly.
    """

    sizes: tuple[int, ...]
    names: tuple[str, ...] | None = None
    device: str = "cpu"
    seconds: float = 10.0

    def __post_init__(self) -> None:
        """Refuse invalid options, with a sentence that names the remedy."""
        check_choices("--device", (self.device,), DEVICES)
        if self.names is not None:
            check_choices("--kernels", self.names, NAMES_OF[self.device])
        check_time(None, self.seconds)
        check_sizes(self.sizes, "float32", DEFAULT_SIZES[self.device])
        # The free memory of a device is not known in advance; the host holds one array at a time.
        needed = self.buffer_bytes(max(self.sizes)) if self.device == "cpu" else max(self.sizes)
        check_memory(needed, f"{format_size(max(self.sizes))} of gradients need", "smaller --sizes", " of buffers")

    @property
    def blocks(self) -> list[tuple[int, Kernel | Selection]]:
        """The blocks: a kernel at one size, interleaved with a copy."""
        return [(size, kernel) for size in self.sizes for kernel in self.kernels]

    def check_machine(self, ranks: int) -> None:
        """Refuse a missing device, and kernels that cannot be compiled."""
        check_device(self.device)
        load_kernels(self.device)

    @property
    def kernels(self) -> list[Kernel | Selection]:
        """The kernels to measure, with every element type."""
        kernels = KERNELS_OF[self.device]
        chosen = [kernel for kernel in kernels if self.names is None or kernel.name in self.names]
        return [*chosen, *(SELECTIONS if GROUP in (self.names or ()) else ())]

    def buffer_bytes(self, size: int) -> int:
        """Give the bytes of memory that a size needs: for the arrays of a kernel, and for the copy."""
        arrays = max(len(kernel.arrays) for kernel in self.kernels) * size
        return arrays + max(kernel.moved for kernel in self.kernels) * count_of(size)


def count_of(size: int) -> int:
    """Give the number of gradients of a size."""
    return size // _ITEM
