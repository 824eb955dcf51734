"""Hand objects over: arrays arrive as they are, and large ones are copied nowhere."""

from __future__ import annotations

import tracemalloc

import numpy as np

import gradientflow as gf
from gradientflow.training.handover import hand_over

LARGE = 1 << 22


def objects() -> list[object]:
    """Give arrays of all kinds."""
    fixed = np.arange(5)
    fixed.flags.writeable = False
    strided = np.arange(12.0).reshape(3, 4)
    return [np.zeros((0, 3), np.float32), np.array(2.5), fixed, strided[:, ::2], np.asfortranarray(strided), b"text"]


def main() -> None:
    """Run on every rank."""
    with gf.init(transport="tcp") as comm:
        is_first = comm.rank == 0
        found = hand_over(comm, objects() if is_first else None)
        for mine, theirs in zip(objects(), found, strict=True):
            np.testing.assert_array_equal(mine, theirs, strict=True)
        assert hand_over(comm, "nothing but text" if is_first else None) == "nothing but text"

        large = np.arange(LARGE) if is_first else None
        tracemalloc.start()
        array = hand_over(comm, {"large": large} if is_first else None)["large"]
        _, most = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert (array == np.arange(LARGE)).all()
        array += 1  # it can be written to
        arrays = round(most / array.nbytes, 1)
        assert arrays == (0 if is_first else 1), arrays


if __name__ == "__main__":
    main()
