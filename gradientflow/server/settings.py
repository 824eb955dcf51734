"""Settings of a push in the form that the core takes."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from gradientflow.arguments import checked_list, checked_nonnegative
from gradientflow.errors import ArgumentError

_FIELDS = ("rate", "momentum", "weight_decay", "trust")


class SettingRows:
    """Converter of settings to rows of numbers, one for all tensors or one for each. Remembers the last rows.

    Parameters
    ----------
    tensors : int
        Number of tensors.
    """

    def __init__(self, tensors: int) -> None:
        self._tensors = tensors
        self._last: tuple[object, npt.NDArray[np.float32]] = (None, np.empty(0, np.float32))

    def rows(self, settings: object) -> npt.NDArray[np.float32]:
        """Check settings, and return a row for each of them.

        Raises
        ------
        gradientflow.errors.ArgumentError
            If a value is out of range, or the number of settings is wrong.
        gradientflow.errors.ArgumentTypeError
            If a value is not a number.
        """
        if isinstance(settings, tuple) and settings == self._last[0]:
            return self._last[1]  # unchanged settings are checked once
        each = [settings] if hasattr(settings, "rate") else checked_list("settings", settings, "Settings")
        numbers = [[checked_nonnegative(name, getattr(one, name, None)) for name in _FIELDS] for one in each]
        if len(each) not in (1, self._tensors) or not each:
            message = f"settings are one for all tensors or one for each of the {self._tensors}, not {len(each)}"
            raise ArgumentError(message)
        rows = np.array(numbers, np.float32)
        if isinstance(settings, tuple) and hasattr(settings, "rate"):
            self._last = (settings, rows)
        return rows


__all__ = ["SettingRows"]
