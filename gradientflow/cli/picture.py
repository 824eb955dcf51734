"""Files of pictures that matplotlib draws, which only the plot modules import."""

from __future__ import annotations

import importlib.util
from typing import Any

from gradientflow.errors import ArgumentError


def require_matplotlib() -> None:
    """Raise unless matplotlib is installed."""
    if importlib.util.find_spec("matplotlib") is None:
        raise ArgumentError("a picture needs matplotlib, which is not installed: pip install matplotlib")


def save_figure(figure: Any, path: str, dpi: int) -> None:
    """Write a figure of matplotlib to a file, whose ending chooses the format.

    Raises
    ------
    gradientflow.errors.ArgumentError
        If it cannot be written.
    """
    try:
        figure.savefig(path, dpi=dpi)
    except (OSError, ValueError) as error:
        raise ArgumentError(f"{path} cannot be drawn: {error}") from error
