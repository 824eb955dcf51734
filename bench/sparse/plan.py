"""The options of ``gradientflow bench sparse`` as one checked value."""

from __future__ import annotations

import math
from dataclasses import dataclass

from ..core.native import load_kernels
from ..core.plan import (
    SINGLE_WIRES,
    ComparedPlan,
    PlanError,
    check_choices,
    check_densities,
    check_memory,
    parse_list,
    parse_sizes,
)
from ..core.shapes import MODELS, Model

DEFAULT_DENSITIES = "1,0.3,0.15,0.1,0.05,0.01"
DEFAULT_CHUNKS = "4K,32K"

DTYPE = "float32"
_ITEM = 4
_TENSORS = 16  # number of tensors of a model given as a number of elements


@dataclass(frozen=True)
class SparsePlan(ComparedPlan):
    """One run of ``gradientflow bench sparse``.

    Attributes
    ----------
    models : tuple of Model
        The models of the gradients.
    densities : tuple of float
        The shares of the chunks that are sent.
    chunk_sizes : tuple of int
        Elements of a chunk.
    momentum : float
        The factor of the residuals.
    """

    known_wires = SINGLE_WIRES  # residuals and norms are compared to the bit

    models: tuple[Model, ...]
    densities: tuple[float, ...]
    chunk_sizes: tuple[int, ...]
    momentum: float = 0.9

    def __post_init__(self) -> None:
        """Refuse invalid options, with a sentence that names the remedy."""
        super().__post_init__()
        if not self.models:
            raise PlanError(f"--model names nothing: choose from {', '.join(MODELS)}")
        if not self.chunk_sizes:
            raise PlanError(f"--chunk names nothing: write for example {DEFAULT_CHUNKS}")
        check_densities(self.densities)
        if not 0 <= self.momentum <= 1:
            raise PlanError(f"--momentum needs a number from 0 to 1, not {self.momentum:g}")

    @property
    def blocks(self) -> list[tuple[Model, int]]:
        """The blocks: each model with each chunk size."""
        return [(model, chunk_size) for model in self.models for chunk_size in self.chunk_sizes]

    def check_machine(self, ranks: int) -> None:
        """Refuse options that need too much memory, and kernels that cannot be compiled."""
        load_kernels("cpu")
        largest = max(self.models, key=lambda model: model.parameters)
        # Gradients, residuals twice, the send buffer, as large as the gradients, and memory for the check.
        copies = len(self.wires) * (1 + 4 * len(self.densities)) + len(self.peers) + 6
        check_memory(
            ranks * copies * largest.parameters * _ITEM,
            f"the gradients of {largest.title} with {len(self.densities)} densities and {ranks} ranks need",
            "fewer --density or --wire, or a smaller --model",
        )


def parse_models(names: str, elements: str | None) -> tuple[Model, ...]:
    """Read the models: by name, or else as numbers of elements such as ``6M,100000``."""
    if elements is not None:
        return tuple(_model_of(count) for count in parse_sizes(elements))
    chosen = parse_list(names)
    check_choices("--model", chosen, tuple(MODELS))
    return tuple(MODELS[name] for name in chosen)


def chunks_sent(density: float, chunks: int) -> int:
    """Give the number of chunks that are sent."""
    return math.ceil(density * chunks - 1e-9)


def _model_of(elements: int) -> Model:
    """Divide `elements` among tensors of equal size, with a shorter tensor at the end of backpropagation."""
    length = -(-elements // _TENSORS)
    whole, rest = divmod(elements, length)
    shapes = ((rest,),) * (rest > 0) + ((length,),) * whole
    return Model(str(elements), f"{elements:,} elements", shapes)
