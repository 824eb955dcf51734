"""A communication hook for DistributedDataParallel, which averages a bucket in one pass."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed

dist: Any = torch.distributed  # its annotations leave out what it takes from C++


def mean_hook(state: Any, bucket: Any) -> Any:
    """Average a bucket of gradients over the ranks: a communication hook of ``DistributedDataParallel``.

    By default DDP divides the gradients first, with ``gradient_as_bucket_view=True`` in a pass of its own, and then has
    them added up. With this hook the mean is one call.

    Parameters
    ----------
    state : torch.distributed.ProcessGroup, optional
        The group whose ranks train together; by default all.
    bucket : torch.distributed.GradBucket
        The bucket, of DDP.

    Returns
    -------
    torch.futures.Future
        Of the bucket's tensor, with the means.

    Examples
    --------
    ::

        model = DistributedDataParallel(model, gradient_as_bucket_view=True)
        model.register_comm_hook(None, gradientflow.torch.mean_hook)
    """
    gradients = bucket.buffer()
    work = dist.all_reduce(gradients, dist.ReduceOp.AVG, state, async_op=True)
    if not work.is_completed():
        return work.get_future().then(lambda done: done.value()[0])
    work.wait()
    future: Any = torch.futures.Future(devices=[gradients.device] if gradients.is_cuda else [])
    future.set_result(gradients)
    return future


mean_hook.__annotations__.clear()  # PyTorch wants types there, not text
