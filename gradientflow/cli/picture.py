"""Picture files drawn by matplotlib, which only the plot modules import."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from gradientflow.errors import ArgumentError


def require_matplotlib() -> None:
    """Raise unless matplotlib is installed."""
    if importlib.util.find_spec("matplotlib") is None:
        raise ArgumentError("a picture needs matplotlib, which is not installed: pip install matplotlib")


@contextmanager
def picture(path: str, width: float, height: float, dpi: int) -> Iterator[Any]:
    """Yield a figure of this size in inches, then write it to a file, whose ending chooses the format.

    Raises
    ------
    gradientflow.errors.ArgumentError
        If the file cannot be written.
    """
    import matplotlib as mpl
    from matplotlib.figure import Figure

    with mpl.rc_context({"font.size": 9, "axes.spines.top": False, "axes.spines.right": False}):
        figure = Figure(figsize=(width, height), layout="constrained")
        yield figure
        try:
            figure.savefig(path, dpi=dpi)
        except (OSError, ValueError) as error:
            raise ArgumentError(f"{path} cannot be drawn: {error}") from error
