"""Contestants: a model, its optimizer, and the communication of a step.

A training step is the same for all of them: zero the gradients, loss, backward, optimizer step.
"""

from __future__ import annotations

import contextlib
import hashlib
import sys
from collections.abc import Iterable, Iterator
from functools import partial
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.distributed
from numpy.typing import NDArray
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

from gradientflow.annotations import TensorLike

from .entry import DDP_ALONE, Entry, Optimizer
from .tasks import Task

if TYPE_CHECKING:
    from gradientflow.communicator import Communicator
    from gradientflow.server.parameter_server import ParameterServer
    from gradientflow.strategies import Synchronizer

dist: ModuleType = torch.distributed

_LEAST_POWERSGD_ITERATION = 2  # the first iteration that compresses; PyTorch allows no earlier one


class Contestant:
    """One way to train, with its own parameters and optimizer state.

    Parameters
    ----------
    entry : Entry
        The description of the contestant.
    task : Task
        The model and its data.
    seed : int
        Seed of the initial parameters.
    optimizer : Optimizer
        The optimizer that makes the steps.
    comm : Communicator
        The ranks; construction is collective. DDP needs PyTorch's default process group.

    Attributes
    ----------
    entry : Entry
        The given description.
    model : torch.nn.Module
        The model itself.
    module : callable
        The function of the forward pass: the model, or DDP around it.
    optimizer : object
        The optimizer that makes the step.
    """

    def __init__(self, entry: Entry, task: Task, seed: int, optimizer: Optimizer, comm: Communicator) -> None:
        self.entry = entry
        self.model = task.model(seed, entry.precision)
        self.module = self.model
        self.optimizer: Any = torch.optim.SGD(self.model.parameters(), optimizer.learning_rate, optimizer.momentum)
        self._steps: Iterator[int] = iter(())
        if entry.strategy is not None:
            import gradientflow.torch as gft

            fused = True if entry.fused or entry.precision != "float32" else None
            on_failure = "continue" if entry.survives else "raise"
            self.optimizer = gft.DistributedOptimizer(
                self.optimizer, self.model, comm, strategy=entry.strategy, fused=fused, on_failure=on_failure
            )
            self._steps = self.optimizer.steps(sys.maxsize)
        elif entry.contestant == "mpi":
            self.optimizer = MpiOptimizer(self.optimizer, self.model, comm)
        elif entry.needs_ddp:
            self.module = _data_parallel(self.model, entry)

    def begin(self) -> None:
        """Begin a step."""
        if self.entry.survives:
            next(self._steps)
        self.optimizer.zero_grad()

    def gradient(self) -> NDArray[np.float32]:
        """Copy the gradients of all parameters into one array."""
        return _flat(parameter.grad for parameter in self.model.parameters())

    def parameters(self) -> NDArray[np.float32]:
        """Copy all parameters into one array."""
        return _flat(self.model.parameters())

    def digest(self) -> str:
        """Give a hash of the parameters' bits."""
        return hashlib.sha256(self.parameters().tobytes()).hexdigest()

    def bytes_reported(self) -> int | None:
        """Give the bytes that this rank sent in messages in the last step, if the library counts them."""
        sent: int | None = None if self.entry.strategy is None else self.optimizer.bytes_sent
        return sent

    def backward(self) -> contextlib.AbstractContextManager[None]:
        """Give the context in which the backward pass runs."""
        return contextlib.nullcontext() if self.entry.overlaps else self.optimizer.no_sync()

    @property
    def synchronizer(self) -> Synchronizer | None:
        """The synchronizer of our strategy; None for other contestants, and if one rank needs none."""
        found: Synchronizer | None = None if self.entry.strategy is None else self.optimizer.synchronizer
        return found

    def bookkeeping_seconds(self) -> float | None:
        """Give this rank's time to select the gradients to send in the last step; None if all are sent."""
        return None if self.synchronizer is None else self.synchronizer.withheld().bookkeeping_seconds

    def residuals(self) -> NDArray[np.float32]:
        """Copy this rank's residuals of all parameters into one array, with zeros for missing residuals."""
        flat = [np.zeros(parameter.numel(), np.float32) for parameter in self.model.parameters()]
        residuals = () if self.synchronizer is None else self.synchronizer.withheld().residuals
        if self.synchronizer is not None and len(residuals):
            by_name = dict(zip(self.synchronizer.layout.names, residuals, strict=True))
            flat = [np.asarray(by_name[name], np.float32).reshape(-1) for name, _ in self.model.named_parameters()]
        return np.concatenate(flat)

    @property
    def decay(self) -> float:
        """The factor on residuals in each step; 0 if gradients that are not applied are lost."""
        return 1.0 if self.synchronizer is None else self.synchronizer.withheld().decay

    @property
    def server(self) -> ParameterServer | None:
        """The parameter server, if there is one."""
        return getattr(self.synchronizer, "server", None)

    def finish(self) -> None:
        """End training: afterwards the parameters are equal on all ranks. Collective."""
        if self.entry.strategy is not None:
            self.optimizer.finish()

    def close(self) -> None:
        """Release its resources. Collective."""
        if self.entry.strategy is not None:
            self.optimizer.close()
        elif self.entry.contestant == "ddp-gradientflow":
            dist.destroy_process_group(self.module.process_group)


class MpiOptimizer:
    """Averages each gradient with ``MPI_Allreduce`` after the backward pass, last layer first, and makes the step.

    Parameters
    ----------
    optimizer : torch.optim.Optimizer
        The optimizer that makes the step.
    model : torch.nn.Module
        The model that it trains.
    comm : Communicator
        The ranks.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, model: nn.Module, comm: Communicator) -> None:
        self._optimizer, self._comm = optimizer, comm.mpi
        self._parameters: list[TensorLike] = list(model.parameters())[::-1]
        self.zero_grad = optimizer.zero_grad

    def step(self) -> None:
        """Make a step with the mean gradients of all ranks."""
        from mpi4py import MPI

        for parameter in self._parameters:
            gradient = parameter.grad.numpy()
            self._comm.Allreduce(MPI.IN_PLACE, gradient)
            gradient /= self._comm.size
        self._optimizer.step()


def _data_parallel(model: nn.Module, entry: Entry) -> nn.Module:
    """Wrap a model in DistributedDataParallel, with its defaults except for views of the buckets."""
    wrapped = partial(DistributedDataParallel, model, gradient_as_bucket_view=entry.views)
    if entry.contestant == "ddp-gradientflow":
        from gradientflow.torch.registration import register

        register()  # needed if PyTorch has not registered it by itself
        return wrapped(process_group=dist.new_group(backend="gradientflow"))
    if entry.approximation_rank is not None:
        # One bucket: with several, hooks call Gloo from its threads, in orders that differ between ranks: a deadlock.
        megabytes = sum(parameter.nbytes for parameter in model.parameters()) / 2**20 + 1
        module = wrapped(bucket_cap_mb=megabytes)
        state = powerSGD_hook.PowerSGDState(None, entry.approximation_rank, _LEAST_POWERSGD_ITERATION)
        module.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
        return module
    module = wrapped()
    if entry.contestant == DDP_ALONE:
        module.register_comm_hook(None, _as_it_is)
    if entry.contestant == "ddp-gloo-fp16":
        module.register_comm_hook(None, default_hooks.fp16_compress_hook)
    return module


def _as_it_is(_: object, bucket: Any) -> torch.futures.Future[torch.Tensor]:
    future: torch.futures.Future[torch.Tensor] = torch.futures.Future()
    future.set_result(bucket.buffer())
    return future


_as_it_is.__annotations__.clear()  # PyTorch expects types there, not text


def _flat(tensors: Iterable[TensorLike]) -> NDArray[np.float32]:
    flat: NDArray[np.float32] = torch.cat([tensor.detach().reshape(-1).float() for tensor in tensors]).numpy()
    return flat
