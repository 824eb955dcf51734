"""Metrics in files of TensorBoard, a folder for each rank."""

from __future__ import annotations

from pathlib import Path

from gradientflow.errors import ArgumentError

from .registry import Source, Values


class TensorBoard:
    """A run of TensorBoard in a folder of all ranks' runs. Its curves are named by source and metric."""

    def __init__(self, folder: str, rank: int) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise ArgumentError(
                f"GRADIENTFLOW_METRICS: tensorboard:{folder} needs PyTorch and the package tensorboard, and {error}: "
                "pip install 'gradientflow[torch,metrics]'"
            ) from error
        self._folder = Path(folder, f"rank{rank}")
        try:
            self._writer = SummaryWriter(str(self._folder))
        except OSError as error:
            raise ArgumentError(f"GRADIENTFLOW_METRICS: {self._folder} cannot be made: {error}") from error

    def write(self, source: Source, values: Values) -> None:
        """Add a point to each curve, at the number of the step."""
        counters = ("gradientflow_steps_total", "gradientflow_calls_total", "gradientflow_pushes_total")
        step = int(next((values[name] for name in counters if name in values), 0))
        for name, value in values.items():
            self._writer.add_scalar(f"{source.name}/{name}", value, step)
        self._writer.flush()

    def close(self) -> None:
        """Close the files."""
        self._writer.close()

    def __str__(self) -> str:
        """Return the folder."""
        return str(self._folder)


__all__ = ["TensorBoard"]
