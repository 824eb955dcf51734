"""What benchmarks show of their figures: tables as a terminal has them, and pictures."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from rich.text import Text

ENVIRONMENT: dict[str, Any] = {
    **dict.fromkeys(("cpu", "memory_GiB", "gradientflow", "mpi", "python", "numpy", "kernel"), "x"),
    **dict.fromkeys(("nodes", "hosts"), 1),
    **dict.fromkeys(("ranks", "ranks_on_this_node", "ranks_on_this_machine", "ranks_per_host"), 3),
    "cores": 2,
    "link_rate": None,
}


def rendered(layout: Any, results: Sequence[Any], *, with_cpu: bool | None = None, **options: Any) -> str:
    """Return the table that a console with these options shows."""
    file = io.StringIO()
    shown = {} if with_cpu is None else {"with_cpu": with_cpu}
    layout.print(results, Console(file=file, no_color=True, **options), **shown)
    return Text.from_ansi(file.getvalue()).plain


def check_picture(draw: Callable[..., Any], results: Sequence[Any], path: Path) -> None:
    """Check that a picture of the results is drawn."""
    pytest.importorskip("matplotlib")
    from gradientflow.bench.core.plot import save_plot

    save_plot(str(path), draw, results, ENVIRONMENT)
    assert path.read_text().startswith("<?xml") if path.suffix == ".svg" else path.stat().st_size > 1000
