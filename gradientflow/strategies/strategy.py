"""What a strategy is: a description, which `bind` turns into the thing that runs."""

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
    """When and what the ranks send, of gradients or of weights. A description: parameters, and nothing that runs.

    A subclass keeps each argument of its constructor in an attribute of the same name. From these come `settings`,
    the comparison between ranks, and the words in which a strategy is named: ``csc(density=0.1)``.

    Attributes
    ----------
    name : str
        In words; by default the name of the class.
    gradients : {"mean", "local", "consumed"}
        What gradients are after a backward pass: the same on all ranks; the rank's own; or sent already, so that
        clipping, `torch.amp.GradScaler` and closures, which come too late, are refused, and so are other optimizers
        than momentum SGD and LARS.
    step : {"any", "core"}
        Who can make the step: any optimizer, or only the core's kernels.
    rate_in_momentum : bool
        Whether the core's momentum SGD has the learning rate in the momentum, as the GradientFlow paper has it.
    takes_momentum : bool
        Whether the optimizer may have a momentum.
    everywhere : bool
        Whether the core's step changes every weight, or only those of gradients that were sent.
    writes_weights : bool
        Whether weights are written outside of the step.
    shares_weights : bool
        Whether the ranks of a node train on one copy of the weights and of what the optimizer keeps, in
        `Synchronizer.shared`: each rank makes the core's step on a slice of them. What `gradients` says is true in the
        step alone: before it they are the rank's own, and must not be changed.
    works_on_host : bool
        Whether it knows memory of the host alone. Gradients of a CUDA device are then copied down to it, and what comes
        of them up: means, and weights if it writes them.
    alone_is_identity : bool
        Whether with one rank it changes nothing, so that it can be left out. Only such ones go with
        `torch.amp.GradScaler`, which changes the scale of gradients by itself.
    averages : bool
        Whether what the ranks bring, gradients and residuals, is applied as its mean or stays residual, so that nothing
        is lost but by `Synchronizer.decay`. Benchmarks check it.
    warmup : int
        Iterations after which it sends what it goes on sending.
    period : int
        Iterations after which what it does repeats.
    follows_order : bool
        Whether it gains by a layout in the order in which backpropagation really comes to the tensors; it is bound
        again then, once that is known.
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
        """Return one with arguments that suit training of about so many steps, for comparisons of all strategies."""
        return cls()

    @abstractmethod
    def bind(self, comm: Communicator, layout: Layout) -> Synchronizer:
        """Make what synchronises the ranks with these tensors. Collective: the same strategy and layout on all ranks.

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
        """Measure the link, and tell what a step will send and what gain over dense float32 to expect. Collective.

        Parameters
        ----------
        comm : Communicator
            Whose ranks take part.
        parameters : int
            How many the model has.
        dtype : {"float32", "float16", "bfloat16"}
            Of the gradients.
        device : str or int
            Where they are, as in `gradientflow.GradientPool`.
        compute_seconds : float, optional
            What a step takes without communication. Without it the gain is that of communication alone.
        backward_seconds : float, optional
            The part of it in which communication can hide; by default two thirds of it.

        Raises
        ------
        gradientflow.errors.ArgumentError
            If a number is negative, or the strategy does not say what it sends.
        """
        found = measure(comm, self._subject(parameters, dtype, device), compute_seconds, backward_seconds)
        return self._predicted(comm, found)

    def explain_layout(self, comm: Communicator, layout: Layout, **times: float | None) -> Explanation:
        """Do the same as `explain` for the tensors of a layout, whose widest dtype counts. Collective.

        Parameters
        ----------
        comm, **times
            As in `explain`.
        layout : Layout
            The tensors.
        """
        return self.explain(comm, sum(layout.counts), dtype=layout.widest, device=layout.device, **times)

    def _predicted(self, comm: Communicator, found: Explanation) -> Explanation:
        """Return what is to be expected, from what `_subject` has led to: that, by default. Collective."""
        return found

    def _subject(self, parameters: int, dtype: str, device: str | int) -> Subject:
        """Return what is to be explained: what the strategy sends of so many parameters."""
        message = f"{self.name} does not say what it sends: it has no explain() of its own"
        raise ArgumentError(message)


__all__ = ["Strategy"]
