"""Well-known models as tables of layers: the shapes of their tensors, and the work of each layer."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from gradientflow.errors import ArgumentError

from .computation import Computation


class Layer(NamedTuple):
    """A layer.

    Attributes
    ----------
    shapes : tuple of tuples of int
        Shapes of the layer's tensors, in the order of the forward pass.
    products : float
        Number of multiplications in the layer's forward pass for one sample.
    """

    shapes: tuple[tuple[int, ...], ...]
    products: float


Layers = Iterable[Layer]


def convolution(inputs: int, outputs: int, kernel: int, side: int, bias: bool = False) -> Layer:
    """Return a convolution whose output has `side` rows and columns."""
    weight = (outputs, inputs, kernel, kernel)
    return Layer((weight, (outputs,)) if bias else (weight,), math.prod(weight) * side * side)


def normalization(channels: int, elements: int) -> Layer:
    """Return a normalization with a weight and a bias per channel, over `elements` elements of each channel."""
    return Layer(((channels,), (channels,)), 4.0 * channels * elements)


def linear(inputs: int, outputs: int, positions: int = 1) -> Layer:
    """Return a product with a matrix, and a bias, at `positions` positions."""
    return Layer(((outputs, inputs), (outputs,)), float(inputs * outputs * positions))


def alexnet() -> Iterator[Layer]:
    """AlexNet (Krizhevsky et al., 2012), in one tower, as in torchvision: 61.1 million parameters."""
    yield convolution(3, 64, 11, 55, bias=True)
    yield convolution(64, 192, 5, 27, bias=True)
    yield convolution(192, 384, 3, 13, bias=True)
    yield convolution(384, 256, 3, 13, bias=True)
    yield convolution(256, 256, 3, 13, bias=True)
    yield linear(256 * 6 * 6, 4096)
    yield linear(4096, 4096)
    yield linear(4096, 1000)


def vgg16() -> Iterator[Layer]:
    """VGG-16 (Simonyan and Zisserman, 2014): 138.4 million parameters."""
    inputs = 3
    for width, number, side in ((64, 2, 224), (128, 2, 112), (256, 3, 56), (512, 3, 28), (512, 3, 14)):
        for _ in range(number):
            yield convolution(inputs, width, 3, side, bias=True)
            inputs = width
    yield linear(512 * 7 * 7, 4096)
    yield linear(4096, 4096)
    yield linear(4096, 1000)


def resnet50() -> Iterator[Layer]:
    """ResNet-50 (He et al., 2016): 25.6 million parameters."""

    def normalized(inputs: int, outputs: int, kernel: int, side: int) -> Iterator[Layer]:
        yield convolution(inputs, outputs, kernel, side)
        yield normalization(outputs, side * side)

    yield from normalized(3, 64, 7, 112)
    inputs = 64
    for width, blocks, side in ((64, 3, 56), (128, 4, 28), (256, 6, 14), (512, 3, 7)):
        for block in range(blocks):
            first = block == 0 and width > 64  # the 3 x 3 convolution has the stride
            yield from normalized(inputs, width, 1, side * (2 if first else 1))
            yield from normalized(width, width, 3, side)
            yield from normalized(width, 4 * width, 1, side)
            if block == 0:
                yield from normalized(inputs, 4 * width, 1, side)
            inputs = 4 * width
    yield linear(2048, 1000)


def _transformer(layers: int, width: int, positions: int) -> Iterator[Layer]:
    attention = 2.0 * positions * positions * width  # scores, and the mean of values
    for _ in range(layers):
        yield normalization(width, positions)
        yield linear(width, 3 * width, positions)
        yield linear(width, width, positions)._replace(products=float(width * width * positions) + attention)
        yield normalization(width, positions)
        yield linear(width, 4 * width, positions)
        yield linear(4 * width, width, positions)


def gpt2() -> Iterator[Layer]:
    """GPT-2 small (Radford et al., 2019), with 1,024 positions: 124.4 million parameters."""
    width, positions, words = 768, 1024, 50_257
    # The embedding is also the last matrix, so its gradient is final only at the end of backpropagation.
    yield Layer(((words, width),), 0.0)
    yield Layer(((positions, width),), 0.0)
    yield from _transformer(12, width, positions)
    yield normalization(width, positions)._replace(products=float(words * width * positions))


def bert() -> Iterator[Layer]:
    """BERT base (Devlin et al., 2019), with 512 positions: 109.5 million parameters."""
    width, positions = 768, 512
    yield Layer(((30_522, width), (positions, width), (2, width)), 0.0)
    yield normalization(width, positions)
    yield from _transformer(12, width, positions)
    yield linear(width, width)


def perceptron() -> Iterator[Layer]:
    """Perceptron of the benchmarks, 784-2048-2048-10: 5.8 million parameters."""
    for inputs, outputs in ((784, 2048), (2048, 2048), (2048, 10)):
        yield linear(inputs, outputs)


def lstm() -> Iterator[Layer]:
    """Character model of the benchmarks: an LSTM of 256 cells over 64 positions."""
    yield Layer(((128, 64),), 0.0)
    cells = ((1024, 64), (1024, 256), (1024,), (1024,))
    yield Layer(cells, 64.0 * sum(math.prod(each) for each in cells))
    yield linear(256, 128, 64)


NETWORKS: dict[str, Callable[[], Iterator[Layer]]] = {
    "alexnet": alexnet,
    "bert": bert,
    "gpt2": gpt2,
    "lstm": lstm,
    "perceptron": perceptron,
    "resnet50": resnet50,
    "vgg16": vgg16,
}


def layers_of(name: str) -> list[Layer]:
    """Return the layers of a model, in the order of the forward pass.

    Raises
    ------
    gradientflow.errors.ArgumentError
        If there is no table of this name.
    """
    if name not in NETWORKS:
        raise ArgumentError(f"there are tables of {', '.join(NETWORKS)}, not of {name!r}")
    return list(NETWORKS[name]())


def computation_of(layers: Layers, seconds: float, backward_seconds: float | None = None) -> Computation:
    """Return a step of a model: its tensors share backpropagation as its layers share the products.

    Parameters
    ----------
    layers : iterable of Layer
        Layers in the order of the forward pass.
    seconds : float
        Duration of the whole step without communication.
    backward_seconds : float, optional
        Duration of backpropagation; by default two thirds of the step.
    """
    shapes, shares = [], []
    for layer in reversed(list(layers)):
        elements = [math.prod(shape) for shape in layer.shapes]
        for shape, count in zip(reversed(layer.shapes), reversed(elements), strict=True):
            shapes.append(shape)
            shares.append(layer.products * count / max(1, sum(elements)))
    return Computation.of(shapes, shares, seconds, backward_seconds)


__all__ = ["NETWORKS", "Layer", "computation_of", "convolution", "layers_of", "linear", "normalization"]
