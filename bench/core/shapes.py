"""Gradient tensors of well-known networks: the shapes of their parameters, in the order of the layers.

Backpropagation produces the gradients in the opposite order, the last layer's first. Convolutions are written as
``(outputs, inputs of a group, height, width)``, as in most frameworks.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from gradientflow.model.networks import Layer, convolution, layers_of, linear, normalization

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Model:
    """The shapes of a network's parameters, to exchange its gradients.

    Attributes
    ----------
    name : str
        The name on the command line and in results.
    title : str
        The name in text.
    shapes : tuple of tuple of int
        The shapes of its parameters, in the order of the layers.
    """

    name: str
    title: str
    shapes: tuple[Shape, ...]

    @property
    def parameters(self) -> int:
        """The number of parameters."""
        return sum(math.prod(shape) for shape in self.shapes)

    @property
    def gradients(self) -> tuple[Shape, ...]:
        """The shapes of the gradients in the order in which backpropagation produces them."""
        return self.shapes[::-1]


def _alexnet() -> Iterator[Layer]:
    """AlexNet with batch normalization after every convolution, as in the GradientFlow paper (26 tensors, 60.9 M)."""
    features = 3
    for outputs, kernel, groups in ((96, 11, 1), (256, 5, 2), (384, 3, 1), (384, 3, 2), (256, 3, 2)):
        yield convolution(features // groups, outputs, kernel, side=1, bias=True)
        yield normalization(outputs, elements=1)
        features = outputs
    for inputs, outputs in ((features * 6 * 6, 4096), (4096, 4096), (4096, 1000)):
        yield linear(inputs, outputs)


def _model(name: str, title: str, layers: Iterable[Layer]) -> Model:
    return Model(name, title, tuple(shape for layer in layers for shape in layer.shapes))


MODELS = {
    model.name: model
    for model in (
        _model("resnet50", "ResNet-50", layers_of("resnet50")),
        _model("alexnet", "AlexNet", _alexnet()),
        _model("vgg16", "VGG-16", layers_of("vgg16")),
        _model("gpt2", "GPT-2 small", layers_of("gpt2")),
        _model("mlp", "perceptron", layers_of("perceptron")),
    )
}
