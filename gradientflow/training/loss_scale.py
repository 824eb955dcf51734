"""The loss scale of mixed-precision training, which keeps small gradients of 16 bits from vanishing."""

from __future__ import annotations

import math
import numbers
import weakref

from gradientflow.annotations import State, StateDict
from gradientflow.arguments import checked_float, checked_int, checked_mapping
from gradientflow.errors import ArgumentError, ArgumentTypeError

_LARGEST = 2.0**24
_SMALLEST = 2.0**-24


class LossScale:
    """The factor that multiplies the loss before backpropagation. The step divides the gradients by it.

    (GradientFlow paper, section 2.5, and its reference 29.) All ranks see the same mean gradients, bit for bit. So all
    ranks skip the same steps and change the scale alike, without communication.

    Parameters
    ----------
    initial : float, default 2**16
        The initial scale: a power of two, so that scaling does not round.
    dynamic : bool, default True
        True to halve the scale when a gradient is infinite or NaN, and to double it after `growth_interval` successive
        steps with finite gradients.
    growth_interval : int, default 2000
        See `dynamic`.

    Attributes
    ----------
    value : float
        The current scale.
    overflows : int
        Steps that were skipped because a gradient was infinite or NaN.

    Raises
    ------
    gradientflow.errors.ArgumentError
        If `initial` is not a power of two from 2**-24 to 2**24, or `growth_interval` is less than 1.
    """

    def __init__(self, initial: float = 2.0**16, dynamic: bool = True, growth_interval: int = 2000) -> None:
        self.dynamic = dynamic
        self.growth_interval = checked_int("growth_interval", growth_interval, 1)
        self.value = _checked(initial)
        self.overflows = 0
        self._good_steps = 0
        self._owner: weakref.ref[object] | None = None

    def bind(self, optimizer: object) -> None:
        """Reserve the scale for one optimizer as long as this optimizer exists: each of its steps may change the scale.

        Raises
        ------
        gradientflow.errors.ArgumentError
            If the scale is reserved for another optimizer.
        """
        owner = None if self._owner is None else self._owner()
        if owner is not None and owner is not optimizer:
            raise ArgumentError("a LossScale is for one optimizer: give each one of its own")
        self._owner = weakref.ref(optimizer)

    def release(self) -> None:
        """End the reservation."""
        self._owner = None

    @classmethod
    def of(cls, scale: LossScale | float | str | None) -> LossScale | None:
        """Convert a `loss_scale` argument: None, a number for a static scale, "dynamic", or a LossScale.

        Raises
        ------
        gradientflow.errors.ArgumentError
            If the number or text is invalid.
        gradientflow.errors.ArgumentTypeError
            If `scale` is something else.
        """
        if scale is None or isinstance(scale, LossScale):
            return scale
        if scale == "dynamic":
            return cls()
        if isinstance(scale, numbers.Real) and not isinstance(scale, bool):
            return cls(float(scale), dynamic=False)
        message = f"loss_scale is None, a number, 'dynamic' or a LossScale, not {scale!r}"
        raise ArgumentError(message) if isinstance(scale, str) else ArgumentTypeError(message)

    def update(self, overflowed: bool) -> None:
        """Update the scale after a step; all ranks pass the same argument."""
        if overflowed:
            self.overflows += 1
            self._good_steps = 0
            if self.dynamic:
                self.value = max(_SMALLEST, self.value / 2)
            return
        self._good_steps += 1
        if self.dynamic and self._good_steps == self.growth_interval:
            self._good_steps = 0
            self.value = min(_LARGEST, self.value * 2)

    def state_dict(self) -> StateDict:
        """Return the scale, the count of overflows, and the steps since the last overflow or growth."""
        return {"value": self.value, "overflows": self.overflows, "good_steps": self._good_steps}

    def load_state_dict(self, state: State) -> None:
        """Load a state."""
        if not {"value", "overflows", "good_steps"} <= set(checked_mapping("a state", state)):
            raise ArgumentError("this is not the state of a LossScale")
        self.value = _checked(state["value"])
        self.overflows = int(state["overflows"])
        self._good_steps = int(state["good_steps"])

    def __repr__(self) -> str:
        """Return the scale, and the settings of its changes."""
        return f"LossScale({self.value:g}, dynamic={self.dynamic}, growth_interval={self.growth_interval})"


def _checked(scale: float) -> float:
    scale = checked_float("a loss scale", scale)
    if not _SMALLEST <= scale <= _LARGEST or math.frexp(scale)[0] != 0.5:
        raise ArgumentError(f"a loss scale is a power of two from 2**-24 to 2**24, not {scale!r}")
    return float(scale)


__all__ = ["LossScale"]
