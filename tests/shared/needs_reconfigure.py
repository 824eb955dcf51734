"""Tests of what PyTorch has since 2.14: with an older one they are skipped, with the reason."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

needs_reconfigure = pytest.mark.skipif(
    not hasattr(torch._C._distributed_c10d, "ReconfigureOptions"),
    reason=f"needs PyTorch 2.14, whose groups can get other members: this is {torch.__version__}",
)
