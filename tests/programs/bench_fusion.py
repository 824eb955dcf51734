"""``gradientflow bench fusion`` with a small model: ``right``, or ``faulty`` where copying forgets an element.

What follows are the command's own arguments.
"""

import sys
from typing import Any

from gradientflow.bench.core.shapes import MODELS, Model
from gradientflow.bench.fusion import contestants as fusion
from gradientflow.cli import main

MODELS["small"] = Model("small", "Small", ((3, 5), (1,), (200, 150), (7,), (40,), (64, 3, 3, 3)))

if sys.argv.pop(1) == "faulty":
    copy: Any = fusion.CopyFusion._copy

    def copy_all_but_one(self: Any, target: Any, source: Any, divisor: int = 1) -> None:
        copy(self, target[:-1], source[:-1], divisor)

    fusion.CopyFusion._copy = copy_all_but_one  # type: ignore[method-assign]

main()
