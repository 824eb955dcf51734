"""LARS: momentum SGD with a separate learning rate for every layer."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from gradientflow.annotations import ParameterGroup
from gradientflow.errors import ArgumentError

if TYPE_CHECKING:
    from torch.optim.optimizer import ParamsT


class LARS(torch.optim.Optimizer):
    """Layer-wise adaptive rate scaling, for large batches.

    A parameter moves in proportion to its own norm (GradientFlow paper, section 4.2)::

        local = trust * |w| / (|g| + weight_decay * |w|)      1 where a norm is 0
        v = momentum * v + lr * local * (g + weight_decay * w)
        w = w - v

    LARS works by itself, like any other optimizer. In a `DistributedOptimizer`, kernels of the core make its step.

    Parameters
    ----------
    params : iterable
        Parameters, or parameter groups.
    lr : float
        The learning rate.
    momentum : float, default 0.9
        At least 0, and less than 1.
    weight_decay : float, default 0.0
        L2 penalty.
    trust : float, default 0.001
        The trust coefficient. In a step with a learning rate of 1, a parameter moves by this part of its norm. With 0 a
        group uses `lr` itself, as is usual for biases and the parameters of normalizations.

    Examples
    --------
    >>> import gradientflow.torch as gft
    >>> optimizer = gft.LARS(model.parameters(), lr=2.0, weight_decay=5e-4)
    """

    def __init__(
        self,
        params: ParamsT,
        lr: float,
        momentum: float = 0.9,
        weight_decay: float = 0.0,
        trust: float = 0.001,
    ) -> None:
        super().__init__(params, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay, "trust": trust})

    def add_param_group(self, param_group: dict[str, object]) -> None:
        """Add a parameter group; missing settings get the defaults."""
        settings = {**self.defaults, **param_group}
        for name in ("lr", "weight_decay", "trust"):
            if not settings[name] >= 0:
                raise ArgumentError(f"{name} is a number of 0 or more, not {settings[name]!r}")
        if not 0 <= settings["momentum"] < 1:
            raise ArgumentError(f"momentum is from 0 up to 1, not {settings['momentum']!r}")
        super().add_param_group(param_group)

    @torch.no_grad()
    def step(self, closure: Callable[[], object] | None = None) -> Any:
        """Make a step.

        Parameters
        ----------
        closure : callable, optional
            Function that evaluates the model again and returns the loss.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._update(parameter, group)
        return loss

    def _update(self, parameter: torch.Tensor, group: ParameterGroup) -> None:
        gradient = parameter.grad
        decay, rate = group["weight_decay"], group["lr"]
        if group["trust"] > 0:
            # Float64 can hold the squares of all float32 values, without overflow or underflow.
            weight_norm, gradient_norm = (
                torch.linalg.vector_norm(tensor, dtype=torch.float64) for tensor in (parameter, gradient)
            )
            local = rate * group["trust"] * weight_norm / (gradient_norm + decay * weight_norm)
            local = local.clamp(max=torch.finfo(torch.promote_types(parameter.dtype, torch.float32)).max)
            rate = torch.where((weight_norm > 0) & (gradient_norm > 0), local, rate)
        change = rate * (gradient + decay * parameter)
        if group["momentum"] != 0:
            state = self.state[parameter]
            if "momentum_buffer" not in state:
                state["momentum_buffer"] = torch.zeros_like(parameter)
            change = state["momentum_buffer"].mul_(group["momentum"]).add_(change)
        parameter.sub_(change)


__all__ = ["LARS"]
