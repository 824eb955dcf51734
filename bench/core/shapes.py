"""The gradient tensors of well-known networks: the shapes of their parameters, in the order of the layers.

Backpropagation produces the gradients in the opposite order, the last layer's first. Convolutions are written as
``(outputs, inputs of a group, height, width)``, as most frameworks hold them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

Shape = tuple[int, ...]
Layers = Iterator[Shape]


@dataclass(frozen=True)
class Model:
    """The shapes of a network's parameters, for exchanging its gradients.

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


def _convolution(inputs: int, outputs: int, kernel: int, groups: int = 1, *, bias: bool = True) -> Layers:
    yield outputs, inputs // groups, kernel, kernel
    if bias:
        yield (outputs,)


def _normalisation(features: int) -> Layers:
    yield (features,)  # the scale
    yield (features,)  # the shift


def _linear(inputs: int, outputs: int) -> Layers:
    yield outputs, inputs
    yield (outputs,)


def _resnet50() -> Layers:
    """Bottleneck blocks, 3 + 4 + 6 + 3 of them (He et al., 2016)."""

    def normalised(inputs: int, outputs: int, kernel: int) -> Layers:
        yield from _convolution(inputs, outputs, kernel, bias=False)
        yield from _normalisation(outputs)

    yield from normalised(3, 64, 7)
    features = 64
    for width, blocks in ((64, 3), (128, 4), (256, 6), (512, 3)):
        for block in range(blocks):
            yield from normalised(features, width, 1)
            yield from normalised(width, width, 3)
            yield from normalised(width, 4 * width, 1)
            if block == 0:  # the shortcut changes the number of features as well
                yield from normalised(features, 4 * width, 1)
            features = 4 * width
    yield from _linear(features, 1000)


def _alexnet() -> Layers:
    """With batch normalisation after every convolution, as in the GradientFlow paper (26 tensors, 60.9 M)."""
    features = 3
    for outputs, kernel, groups in ((96, 11, 1), (256, 5, 2), (384, 3, 1), (384, 3, 2), (256, 3, 2)):
        yield from _convolution(features, outputs, kernel, groups)
        yield from _normalisation(outputs)
        features = outputs
    for inputs, outputs in ((features * 6 * 6, 4096), (4096, 4096), (4096, 1000)):
        yield from _linear(inputs, outputs)


def _vgg16() -> Layers:
    """In configuration D of Simonyan and Zisserman (2015)."""
    features = 3
    for outputs, convolutions in ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3)):
        for _ in range(convolutions):
            yield from _convolution(features, outputs, 3)
            features = outputs
    for inputs, outputs in ((features * 7 * 7, 4096), (4096, 4096), (4096, 1000)):
        yield from _linear(inputs, outputs)


def _mlp() -> Layers:
    """Make the perceptron that ``gradientflow bench train`` trains."""
    for inputs, outputs in ((784, 2048), (2048, 2048), (2048, 10)):
        yield from _linear(inputs, outputs)


def _gpt2() -> Layers:
    """GPT-2 small: a transformer of 12 layers, whose output layer shares the weights of the embedding."""
    width, vocabulary, positions = 768, 50257, 1024
    yield vocabulary, width
    yield positions, width
    for _ in range(12):
        yield from _normalisation(width)
        yield from _linear(width, 3 * width)  # queries, keys and values
        yield from _linear(width, width)
        yield from _normalisation(width)
        yield from _linear(width, 4 * width)
        yield from _linear(4 * width, width)
    yield from _normalisation(width)


def _model(name: str, title: str, layers: Callable[[], Layers]) -> Model:
    return Model(name, title, tuple(layers()))


MODELS = {
    model.name: model
    for model in (
        _model("resnet50", "ResNet-50", _resnet50),
        _model("alexnet", "AlexNet", _alexnet),
        _model("vgg16", "VGG-16", _vgg16),
        _model("gpt2", "GPT-2 small", _gpt2),
        _model("mlp", "perceptron", _mlp),
    )
}
