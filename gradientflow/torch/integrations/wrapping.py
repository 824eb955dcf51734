"""A DistributedOptimizer over the ranks of a trainer, however its processes were started."""

from __future__ import annotations

import itertools
import logging
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import _get_default_store

from gradientflow.communicator import Communicator
from gradientflow.job import init
from gradientflow.strategies import Strategy
from gradientflow.torch.optimizer import DistributedOptimizer

logger = logging.getLogger("gradientflow")
_numbers = itertools.count()
_wrapped: WeakKeyDictionary[torch.nn.Module, DistributedOptimizer] = WeakKeyDictionary()


def wrap(
    optimizer: torch.optim.Optimizer,
    model: torch.nn.Module,
    strategy: Strategy | str,
    fused: bool | None,
    kind: type[DistributedOptimizer] = DistributedOptimizer,
) -> DistributedOptimizer:
    """Wrap an optimizer, and log what to expect of the strategy. Collective.

    Previous trainers may have wrapped an optimizer of this model, which is closed here: they may save it until then.
    """
    if model in _wrapped:
        close(_wrapped.pop(model))
    wrapped = kind(optimizer, model, _communicator(), strategy=strategy, fused=fused)
    _wrapped[model] = wrapped
    explanation = wrapped.explain()
    if wrapped.comm.rank == 0:
        logger.info("%s", explanation)
    return wrapped


def is_current(wrapped: DistributedOptimizer, model: torch.nn.Module) -> bool:
    """Tell whether no other trainer has wrapped an optimizer of the model since."""
    return _wrapped.get(model) is wrapped


def close(wrapped: DistributedOptimizer) -> None:
    """Close an optimizer and its communicator. Closing twice is harmless. Collective."""
    wrapped.close()
    wrapped.comm.close()


def _communicator() -> Communicator:
    """Make a communicator of the ranks of the default group, of any backend, or without a group of the job's ranks.

    Some launchers tell rank and number of ranks to the group only.
    """
    if not dist.is_initialized():
        return init()
    store = dist.PrefixStore(f"gradientflow/integrations/{next(_numbers)}", _get_default_store())
    return init(store=store, rank=dist.get_rank(), size=dist.get_world_size())


__all__ = ["wrap"]
