"""Metrics of process groups."""

from __future__ import annotations

import torch.distributed as dist

from gradientflow.errors import ArgumentTypeError
from gradientflow.metrics.registry import Values

from .names import BACKEND
from .process_group.group import ProcessGroup


def metrics(group: dist.ProcessGroup | None = None, across_ranks: bool = False) -> Values:
    """Return the metrics of a process group, by name; see `gradientflow.metrics`.

    Parameters
    ----------
    group : torch.distributed.ProcessGroup, optional
        A group of the backend "gradientflow"; by default the group of all ranks.
    across_ranks : bool, default False
        True for metrics of all ranks together. Collective then.

    Raises
    ------
    gradientflow.errors.ArgumentTypeError
        If the group has another backend.
    """
    found = dist.group.WORLD if group is None else group
    if not isinstance(found, ProcessGroup):
        raise ArgumentTypeError(f"group is a process group of the backend {BACKEND}, not {found!r}")
    return found.metrics(across_ranks)


__all__ = ["metrics"]
