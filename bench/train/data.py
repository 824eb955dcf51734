"""Data sets: scikit-learn's digits, and the source text of Python's standard library.

Every rank makes the same data, from its installed packages.
"""

from __future__ import annotations

import hashlib
import sysconfig
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ..core.plan import PlanError

Array = np.ndarray

CHARACTERS = 98  # printable ASCII, tab, line end, and a last one for the rest
WINDOW = 32  # characters in a sample of the language model

_HELD_OUT_DIGITS = 360
_TEXT_BYTES = 2 << 20
_HELD_OUT_WINDOWS = 512


@dataclass(frozen=True)
class Data:
    """Samples to train on, and held-out samples to validate on.

    Attributes
    ----------
    inputs, targets : array
        Samples, one for each index of the first axis.
    held_out_inputs, held_out_targets : array
        Held-out samples, one for each index of the first axis.
    """

    inputs: Array
    targets: Array
    held_out_inputs: Array
    held_out_targets: Array

    def digest(self) -> str:
        """Give a hash of the data."""
        arrays = (self.inputs, self.targets, self.held_out_inputs, self.held_out_targets)
        return hashlib.sha256(b"".join(array.tobytes() for array in arrays)).hexdigest()

    def save(self, path: Path) -> None:
        """Write the data to a file, for processes that should not have to make it."""
        np.savez(path, **vars(self))

    @classmethod
    def load(cls, path: Path) -> Data:
        """Read the data from a file that `save` has written."""
        with np.load(path) as arrays:
            return cls(**arrays)


class SampleOrder:
    """The samples of each step, in whole batches; each epoch has a new random order.

    Parameters
    ----------
    samples : int
        The number of samples.
    batch : int
        The samples of a step, of all ranks together.
    seed : int
        The seed; equal seeds give equal orders.
    """

    def __init__(self, samples: int, batch: int, seed: int) -> None:
        if batch > samples:
            raise PlanError(
                f"a step of all ranks takes {batch} samples, and there are {samples}: use a smaller --batch"
            )
        self.steps_per_epoch = samples // batch
        self._samples, self._batch, self._seed = samples, batch, seed
        self._epoch = -1
        self._order: NDArray[np.int64] = np.empty(0, np.int64)

    def rows(self, step: int) -> NDArray[np.int64]:
        """Give the samples of a step, beginning with rank 0's."""
        epoch, place = divmod(step, self.steps_per_epoch)
        if epoch != self._epoch:
            self._order = np.random.default_rng([self._seed, epoch]).permutation(self._samples)
            self._epoch = epoch
        return self._order[place * self._batch : (place + 1) * self._batch]


def digits(width: int = 8) -> Data:
    """Give the 1797 handwritten digits, of which 360 are held out: images with values from 0 to 1, and their classes.

    Images of more than 8 pixels a side are interpolated from images of 8.
    """
    from sklearn.datasets import load_digits

    bunch = load_digits()
    images = (bunch.images / 16).astype(np.float32)
    if width != images.shape[1]:
        to_width = _interpolation(images.shape[1], width)
        images = to_width @ images @ to_width.T
    order = np.random.default_rng(0).permutation(len(images))
    held_out, rest = order[:_HELD_OUT_DIGITS], order[_HELD_OUT_DIGITS:]
    classes = bunch.target.astype(np.int64)
    return Data(images[rest], classes[rest], images[held_out], classes[held_out])


def library_text() -> Data:
    """Give windows of the standard library's source text, and for every character the next character.

    The text consists of the modules beside ``os.py``, in the order of their names, up to 2 MiB. Windows from its end
    are held out.
    """
    parts, size = [], 0
    for path in sorted(Path(sysconfig.get_path("stdlib")).glob("*.py")):
        parts.append(path.read_bytes())
        size += len(parts[-1])
        if size >= _TEXT_BYTES:
            break
    codes = encode(b"".join(parts)[:_TEXT_BYTES])
    windows = (len(codes) - 1) // WINDOW
    if windows <= _HELD_OUT_WINDOWS:
        raise PlanError("this Python comes without the source text of its library, which --model lstm learns from")
    inputs = codes[: windows * WINDOW].reshape(windows, WINDOW)
    targets = codes[1 : windows * WINDOW + 1].reshape(windows, WINDOW)
    rest = windows - _HELD_OUT_WINDOWS
    return Data(inputs[:rest], targets[:rest], inputs[rest:], targets[rest:])


def encode(text: bytes) -> NDArray[np.int64]:
    """Give characters as numbers: tab 0, line end 1, printable ASCII from 2 on, other characters 97."""
    table = np.full(256, CHARACTERS - 1, np.int64)
    table[[9, 10]] = 0, 1
    table[32:127] = np.arange(2, 97)
    codes: NDArray[np.int64] = table[np.frombuffer(text, np.uint8)]
    return codes


def _interpolation(width: int, wider: int) -> NDArray[np.float32]:
    """Give the matrix that interpolates linearly between pixel centers, and repeats the outermost."""
    centers = (np.arange(wider) + 0.5) * width / wider - 0.5
    pixels = np.arange(width)
    rows = [np.interp(centers, pixels, unit) for unit in np.eye(width)]
    return np.stack(rows, axis=1).astype(np.float32)
