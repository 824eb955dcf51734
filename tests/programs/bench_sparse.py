"""``gradientflow bench sparse`` with a small model: ``right``, or ``faulty`` where a rank gets a gradient of its own.

What follows are the command's own arguments.
"""

import sys
from typing import Any

import gradientflow as gf
from gradientflow.bench.core.shapes import MODELS, Model
from gradientflow.cli import main

MODELS["small"] = Model("small", "Small", ((3, 5), (1,), (200, 150), (7,), (40,), (64, 3, 3, 3)))

if sys.argv.pop(1) == "faulty":
    wait: Any = gf.SparseGradientPool.wait

    def wait_and_change(self: Any) -> None:
        wait(self)
        if self.density_at(0) < 0.5 and self.iteration == 3:
            begin = int(self.spans[0][0])
            self.memory.view("float32")[begin] += self.nbytes  # more than rounding explains

    gf.SparseGradientPool.wait = wait_and_change  # type: ignore[method-assign]

main()
