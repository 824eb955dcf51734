"""Descriptions of a parameter server's optimizers."""

from __future__ import annotations

from typing import ClassVar

from gradientflow.arguments import checked_float, checked_instance
from gradientflow.description import Description, Parser
from gradientflow.errors import ArgumentError


class ServerOptimizer(Description):
    """Description of an optimizer, by which servers update weights.

    Attributes
    ----------
    arrays : tuple of str
        Names of the arrays that a server has for each tensor.
    counts : tuple of str
        Names of the whole numbers that a server has for each tensor.
    rate_in_momentum : bool
        True if the momentum contains the learning rates of earlier rounds.
    """

    arrays: ClassVar[tuple[str, ...]] = ("weights", "momentum")
    counts: ClassVar[tuple[str, ...]] = ()
    rate_in_momentum: bool = False

    @property
    def native(self) -> tuple[str | float, ...]:
        """The arguments of the core."""
        return (self.name, self.rate_in_momentum)


class SGD(ServerOptimizer):
    """Momentum SGD, with weight decay.

    Parameters
    ----------
    rate_in_momentum : bool, default False
        True if the momentum includes the learning rate, as in the SSD-SGD paper; False for `torch.optim.SGD`'s
        momentum.
    """

    name = "sgd"

    def __init__(self, rate_in_momentum: bool = False) -> None:
        self.rate_in_momentum = checked_instance("rate_in_momentum", rate_in_momentum, bool)


class LARS(ServerOptimizer):
    """Momentum SGD with a local learning rate for each tensor whose settings have a trust coefficient."""

    name = "lars"
    rate_in_momentum = True


class Adam(ServerOptimizer):
    """Adam like `torch.optim.Adam`, with weight decay in the gradient. Settings have no momentum.

    Parameters
    ----------
    beta1, beta2 : float
        Decay rates of the running means of gradients and of their squares, from 0 to below 1.
    eps : float
        Term added to the denominator, from 1e-37 to 1e37.
    """

    name = "adam"
    arrays = ("weights", "exp_avg", "exp_avg_sq")
    counts = ("updates",)

    def __init__(self, beta1: float = 0.9, beta2: float = 0.999, eps: float = 1e-8) -> None:
        self.beta1, self.beta2, self.eps = (
            checked_float("beta1", beta1),
            checked_float("beta2", beta2),
            checked_float("eps", eps),
        )
        for name in ("beta1", "beta2"):
            if not 0 <= getattr(self, name) < 1:
                raise ArgumentError(f"{name} is from 0 to below 1, not {getattr(self, name)}")
        if not 1e-37 <= self.eps <= 1e37:  # well inside the range of float32
            raise ArgumentError(f"eps is from 1e-37 to 1e37, not {self.eps}")

    @property
    def native(self) -> tuple[str | float, ...]:
        """The arguments of the core."""
        return (*super().native, self.beta1, self.beta2, self.eps)


_PARSER: Parser[ServerOptimizer] = Parser(ServerOptimizer, "optimizer", (Adam, LARS, SGD), runs_files=False)


def as_server_optimizer(optimizer: object) -> ServerOptimizer:
    """Return an optimizer given as an object or in words.

    Raises
    ------
    gradientflow.errors.ArgumentError
        If the words cannot be parsed.
    gradientflow.errors.ArgumentTypeError
        If `optimizer` is neither words nor an optimizer.
    """
    return _PARSER.given(optimizer)


__all__ = ["LARS", "SGD", "Adam", "ServerOptimizer", "as_server_optimizer"]
