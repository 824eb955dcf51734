"""Strategies: descriptions, which `bind` turns into synchronizers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Literal

from gradientflow.communicator import Communicator
from gradientflow.description import Description
from gradientflow.errors import ArgumentError

from .explanation import Explanation, Subject, measure
from .layout import Layout
from .synchronizer import Synchronizer


class Strategy(Description, ABC):
    """When the ranks send which gradients or weights. A description: parameters, and nothing that runs.

    A subclass keeps each argument of its constructor in an attribute of the same name. From these come `settings`,
    the comparison between ranks, and the words in which a strategy is named: ``csc(density=0.1)``.

    Attributes
    ----------
    name : str
        The name in ``csc(density=0.1)``; by default that of the class.
    gradients : {"mean", "local", "consumed"}
        The gradients that the step gets: means, the same on all ranks; the rank's own; or none, since they were sent
        already. In the last case clipping, `torch.amp.GradScaler` and closures come too late, and are refused, as are
        optimizers other than momentum SGD and LARS.
    step : {"any", "core"}
        Who can make the step: any optimizer, or only the core's kernels.
    rate_in_momentum : bool
        Whether the core's momentum SGD has the learning rate in the momentum, as in the GradientFlow paper.
    takes_momentum : bool
        Whether the optimizer may have a momentum.
    everywhere : bool
        Whether the core's step changes every weight, or only those whose gradients were sent.
    writes_weights : bool
        Whether the strategy itself writes weights, outside of an optimizer's step.
    shares_weights : bool
        Whether the ranks of a node train on one copy of the weights and of the optimizer's state, in
        `Synchronizer.shared`: each rank makes the core's step on one slice. Gradients are what `gradients` says only in
        the step; before it they are the rank's own, and must not be changed.
    works_on_host : bool
        Whether it works in memory of the host only. Gradients on a CUDA device are then copied to the host, and means
        back to the device; so are weights, if it writes them.
    alone_is_identity : bool
        Whether it changes nothing with one rank, so that it can be left out. Only such strategies go with
        `torch.amp.GradScaler`, which changes the scale of gradients by itself.
    averages : bool
        Whether all gradients and residuals are either applied as means or stay residuals, so that nothing is lost
        except by `Synchronizer.decay`. Benchmarks check it.
    warmup : int
        Iterations until the amount sent is final.
    period : int
        Iterations after which the pattern of exchanges repeats.
    follows_order : bool
        Whether it gains by a layout in the actual order of backpropagation. Once that order is known, the strategy is
        bound again.
    """

    gradients: Literal["mean", "local", "consumed"] = "mean"
    step: Literal["any", "core"] = "any"
    rate_in_momentum: bool = False
    takes_momentum: bool = True
    everywhere: bool = True
    writes_weights: bool = False
    shares_weights: bool = False
    works_on_host: bool = False
    alone_is_identity: bool = False
    averages: bool = False
    warmup: int = 0
    period: int = 1
    follows_order: bool = False

    @classmethod
    def typical(cls, steps: int) -> Strategy:
        """Return a strategy with arguments that suit training of about so many steps, for comparisons of all."""
        return cls()

    @abstractmethod
    def bind(self, comm: Communicator, layout: Layout) -> Synchronizer:
        """Make the synchronizer for these tensors. Collective: the same strategy and layout on all ranks.

        Parameters
        ----------
        comm : Communicator
            Whose ranks take part.
        layout : Layout
            The tensors.
        """

    def explain(
        self,
        comm: Communicator,
        parameters: int,
        *,
        dtype: str = "float32",
        device: str | int = "cpu",
        compute_seconds: float | None = None,
        backward_seconds: float | None = None,
    ) -> Explanation:
        """Measure the link, and predict what a step sends and its gain over dense float32. Collective.

        Parameters
        ----------
        comm : Communicator
            Whose ranks take part.
        parameters : int
            Number of parameters of the model.
        dtype : {"float32", "float16", "bfloat16"}
            Of the gradients.
        device : str or int
            Where the gradients are, as in `gradientflow.GradientPool`.
        compute_seconds : float, optional
            Seconds of a step without communication. If not given, the gain is that of communication alone.
        backward_seconds : float, optional
            The part of `compute_seconds` that can hide communication; by default two thirds of it.

        Raises
        ------
        gradientflow.errors.ArgumentError
            If a number is negative, or the strategy does not say what it sends.
        """
        found = measure(comm, self._subject(parameters, dtype, device), compute_seconds, backward_seconds)
        return self._predicted(comm, found)

    def explain_layout(self, comm: Communicator, layout: Layout, **times: float | None) -> Explanation:
        """Do the same as `explain` for the tensors of a layout, with its widest dtype. Collective.

        Parameters
        ----------
        comm, **times
            As in `explain`.
        layout : Layout
            The tensors.
        """
        return self.explain(comm, sum(layout.counts), dtype=layout.widest, device=layout.device, **times)

    def _predicted(self, comm: Communicator, found: Explanation) -> Explanation:
        """Adapt the explanation measured for `_subject` to the strategy; by default it stays as it is. Collective."""
        return found

    def _subject(self, parameters: int, dtype: str, device: str | int) -> Subject:
        """Return the subject to explain: the strategy with so many parameters."""
        message = f"{self.name} does not say what it sends: it has no explain() of its own"
        raise ArgumentError(message)


__all__ = ["Strategy"]
