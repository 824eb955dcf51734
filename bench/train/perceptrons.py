"""Perceptrons whose gradients have a given number of bytes, in layers of equal or very unequal size."""

from __future__ import annotations

import math

from ..core.plan import PlanError, parse_size

SHAPES = ("even", "front", "back")

_CLASSES = 10
_LAYERS = 8  # number of layers before the layer of the classes
_LEAST = 64 << 10
_WIDE = 32  # inputs or outputs of an uneven perceptron's large layer, over the width of its other layers


def is_perceptron(name: str) -> bool:
    """Tell if a model's name means a perceptron of a given size, such as ``even-5M``."""
    shape, dash, _ = name.partition("-")
    return shape in SHAPES and bool(dash)


def widths_of(name: str) -> list[int]:
    """Give the inputs of each layer of a perceptron, and the outputs of the last.

    The layers of ``even`` are equal. In ``front`` most gradients belong to the first layer, so they are ready last; in
    ``back`` to the layer before the classes.

    Raises
    ------
    PlanError
        If the size is invalid, or too small for the layers.
    """
    shape, _, text = name.partition("-")
    size = parse_size(text)
    if size < _LEAST:
        raise PlanError(f"a perceptron has gradients of {_LEAST >> 10}K or more: {name} is too small")
    layers = _LAYERS if shape == "even" else _LAYERS - 1 + _WIDE  # number of layers of width times width elements
    width = round(math.sqrt(size / 4 / layers))
    widths = [width] * (_LAYERS + 1)
    if shape != "even":
        widths[0 if shape == "front" else _LAYERS] *= _WIDE
    return [*widths, _CLASSES]
