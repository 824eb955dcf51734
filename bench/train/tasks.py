"""Models, each with its data."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor, nn

from .data import CHARACTERS, Array, Data, digits, library_text
from .perceptrons import is_perceptron, widths_of

_HELD_OUT_BATCH = 256
_GROUPS = 4  # groups of normalized channels
_BLOCKS = 9  # residual blocks of each width
_BEGINNING = 0.1  # initial scale of a residual block's addition; otherwise, many blocks would not learn


class CharacterLSTM(nn.Module):
    """Predicts the next character after each character of a window."""

    def __init__(self, embedding: int = 64, hidden: int = 256) -> None:
        super().__init__()
        self.embedding = nn.Embedding(CHARACTERS, embedding)
        self.lstm = nn.LSTM(embedding, hidden, batch_first=True)
        self.output = nn.Linear(hidden, CHARACTERS)

    def forward(self, inputs: Tensor) -> Tensor:
        """Give a score for every character at every position; the characters are the second axis."""
        scores: Tensor = self.output(self.lstm(self.embedding(inputs))[0])
        return scores.transpose(1, 2)


def mlp() -> nn.Module:
    """Make the perceptron 784-2048-2048-10: 5.8 million parameters."""
    return nn.Sequential(
        nn.Flatten(), nn.Linear(784, 2048), nn.ReLU(), nn.Linear(2048, 2048), nn.ReLU(), nn.Linear(2048, 10)
    )


class Widened(nn.Module):
    """Repeats the pixels of images up to a width."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self._width = width

    def forward(self, images: Tensor) -> Tensor:
        """Give the pixels of each image, repeated up to the width."""
        pixels = images.flatten(1)
        return pixels.repeat(1, -(-self._width // pixels.shape[1]))[:, : self._width]


def perceptron_of(widths: list[int]) -> nn.Module:
    """Make a perceptron whose layers have these inputs and outputs."""
    layers = [nn.Linear(inputs, outputs) for inputs, outputs in pairwise(widths)]
    between = (module for layer in layers for module in (layer, nn.ReLU()))
    return nn.Sequential(Widened(widths[0]), *list(between)[:-1])


def cnn() -> nn.Module:
    """Make a small convolutional network for images of 8 x 8 pixels: 151,306 parameters."""
    return nn.Sequential(
        nn.Unflatten(1, (1, 8)),
        nn.Conv2d(1, 32, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(32, 64, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(1024, 128),
        nn.ReLU(),
        nn.Linear(128, 10),
    )


class Narrow(nn.Module):
    """A model with 16-bit parameters, activations and gradients; its scores are float32."""

    def __init__(self, model: nn.Module, dtype: torch.dtype) -> None:
        super().__init__()
        self.model = model.to(dtype)
        self._dtype = dtype

    def forward(self, inputs: Tensor) -> Tensor:
        """Give the scores of the model as float32."""
        scores: Tensor = self.model(inputs.to(self._dtype) if inputs.is_floating_point() else inputs)
        return scores.float()


class ResidualBlock(nn.Module):
    """Two convolutions and the shortcut to which they add (He et al., 2016).

    Channels are normalized in groups, not over the batch, so that the mean of the ranks' gradients equals the gradient
    of one process with all samples.
    """

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        last = nn.GroupNorm(_GROUPS, outputs)
        nn.init.constant_(last.weight, _BEGINNING)
        self.body = nn.Sequential(
            nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False),
            nn.GroupNorm(_GROUPS, outputs),
            nn.ReLU(),
            nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False),
            last,
        )
        self.shortcut: nn.Module = nn.Identity()
        if inputs != outputs:
            projection = nn.Conv2d(inputs, outputs, 1, stride, bias=False)
            self.shortcut = nn.Sequential(projection, nn.GroupNorm(_GROUPS, outputs))

    def forward(self, inputs: Tensor) -> Tensor:
        """Add the convolutions to the shortcut."""
        return torch.relu(self.body(inputs) + self.shortcut(inputs))


def resnet() -> nn.Module:
    """Make ResNet-56 for images of 8 x 8 pixels: 855,482 parameters in 173 tensors."""
    widths = (16, 32, 64)
    layers: list[nn.Module] = [
        nn.Unflatten(1, (1, 8)),
        nn.Conv2d(1, widths[0], 3, padding=1, bias=False),
        nn.GroupNorm(_GROUPS, widths[0]),
        nn.ReLU(),
    ]
    features = widths[0]
    for width in widths:
        for block in range(_BLOCKS):
            layers.append(ResidualBlock(features, width, 2 if block == 0 and width != features else 1))
            features = width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(features, 10))


@dataclass(frozen=True)
class Task:
    """A model and its data.

    Attributes
    ----------
    name : str
        The name on the command line.
    build : callable
        Makes the model, with parameters drawn from PyTorch's generator.
    data : Data
        Its data.
    learning_rate : float
        A learning rate that suits the model.
    classes : int
        The number of different targets.
    """

    name: str
    build: Callable[[], nn.Module]
    data: Data
    learning_rate: float
    classes: int
    loss: Callable[[Tensor, Tensor], Tensor] = field(default_factory=nn.CrossEntropyLoss)

    def model(self, seed: int, precision: str = "float32") -> nn.Module:
        """Make the model with the initial parameters of a seed."""
        torch.manual_seed(seed)
        model = self.build()
        return model if precision == "float32" else Narrow(model, getattr(torch, precision))

    def samples(self, rows: Array) -> tuple[Tensor, Tensor]:
        """Give samples to train on, with their targets."""
        return torch.from_numpy(self.data.inputs[rows]), torch.from_numpy(self.data.targets[rows])

    def random_samples(self, count: int, seed: list[int]) -> tuple[Tensor, Tensor]:
        """Give random samples."""
        random = np.random.default_rng(seed)
        inputs, targets = self.data.inputs, self.data.targets
        shape = (count, *inputs.shape[1:])
        values = (
            random.random(shape, np.float32) if inputs.dtype.kind == "f" else random.integers(self.classes, size=shape)
        )
        labels = random.integers(self.classes, size=(count, *targets.shape[1:]))
        return torch.from_numpy(values), torch.from_numpy(labels)

    @torch.no_grad()
    def evaluate(self, model: nn.Module) -> tuple[float, float]:
        """Give the loss, and the share of right answers, on the held-out samples."""
        loss, right = 0.0, 0
        inputs, targets = torch.from_numpy(self.data.held_out_inputs), torch.from_numpy(self.data.held_out_targets)
        for start in range(0, len(inputs), _HELD_OUT_BATCH):
            wanted = targets[start : start + _HELD_OUT_BATCH]
            scores = model(inputs[start : start + _HELD_OUT_BATCH])
            loss += float(self.loss(scores, wanted)) * wanted.numel()
            right += int((scores.argmax(1) == wanted).sum())
        return loss / targets.numel(), right / targets.numel()


def load_task(name: str) -> Task:
    """Make a model's task, with its data."""
    if name == "mlp":
        return perceptron(digits(28))
    if name == "cnn":
        return Task(name, cnn, digits(8), 0.05, 10)
    if name == "resnet":
        return Task(name, resnet, digits(8), 0.05, 10)
    if is_perceptron(name):
        return Task(name, partial(perceptron_of, widths_of(name)), digits(8), 0.05, 10)
    return Task(name, CharacterLSTM, library_text(), 1.0, CHARACTERS)


def perceptron(data: Data) -> Task:
    """Make the task of the perceptron with existing data: digits of 28 pixels a side."""
    return Task("mlp", mlp, data, 0.05, 10)
