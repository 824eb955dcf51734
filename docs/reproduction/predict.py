"""Predict the tables of the GradientFlow paper and the speed-ups of the SSD-SGD paper: see ../reproduction.md.

``python docs/reproduction/predict.py``, where the package is installed.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from gradientflow_paper import predict_tables
from rich.console import Console
from rich.table import Table
from ssd_sgd_paper import predict_speed_ups


def print_tables(console: Console) -> None:
    """Print those of the GradientFlow paper."""
    table = _table()
    for heading in ("model", "with"):
        table.add_column(heading, no_wrap=True)
    for heading in ("paper\nimages/s", "model\nimages/s", "error", ""):
        table.add_column(heading, justify="right", no_wrap=True)
    cells = predict_tables()
    for cell in cells:
        table.add_row(
            f"{cell.row.model}, {cell.row.cluster}",
            cell.column,
            f"{cell.images / (1 + cell.error):,.0f}",
            f"{cell.images:,.0f}",
            f"{cell.error:+.0%}",
            "fitted" if cell.fitted else "free",
        )
    console.print(table)
    _print_free(console, [cell.error for cell in cells if not cell.fitted])


def print_speed_ups(console: Console) -> None:
    """Print those of the SSD-SGD paper."""
    console.print("\nspeed-up of SSD-SGD over SSGD")
    table = _table()
    table.add_column("model", no_wrap=True)
    for heading in ("batch", "k", "paper", "model", "error", ""):
        table.add_column(heading, justify="right", no_wrap=True)
    rows = predict_speed_ups()
    for place, row in enumerate(rows):
        ratios = (f"{row.paper:.2f}", f"{row.predicted:.2f}", f"{row.error:+.0%}")
        table.add_row(row.model, str(row.batch), str(row.delay), *ratios, "free" if place else "fitted")
    console.print(table)
    _print_free(console, [row.error for row in rows[1:]])


def _table() -> Table:
    return Table(box=None, pad_edge=False)


def _print_free(console: Console, errors: Sequence[float]) -> None:
    sizes = np.abs(errors)
    console.print(f"free: median error {np.median(sizes):.0%}, worst {sizes.max():.0%}")


if __name__ == "__main__":
    print_tables(Console(highlight=False))
    print_speed_ups(Console(highlight=False))
