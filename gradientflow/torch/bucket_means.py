"""A communication hook for DistributedDataParallel that averages a bucket in one pass."""

from __future__ import annotations

import torch
import torch.distributed as dist


def mean_hook(state: dist.ProcessGroup | None, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """Average a bucket of gradients over the ranks: a communication hook of ``DistributedDataParallel``.

    By default DDP first divides the gradients, with ``gradient_as_bucket_view=True`` in a separate pass, and then sums
    them. With this hook one call computes the mean.

    Parameters
    ----------
    state : torch.distributed.ProcessGroup, optional
        Group of the ranks that train together; by default all ranks.
    bucket : torch.distributed.GradBucket
        DDP's bucket.

    Returns
    -------
    torch.futures.Future
        Future of the bucket's tensor, which then holds the means.

    Examples
    --------
    ::

        model = DistributedDataParallel(model, gradient_as_bucket_view=True)
        model.register_comm_hook(None, gradientflow.torch.mean_hook)
    """
    gradients = bucket.buffer()
    work: dist.Work = dist.all_reduce(gradients, dist.ReduceOp.AVG, state, async_op=True)
    if not work.is_completed():
        means = work.get_future().then(lambda done: done.value()[0])
        if hasattr(means, "raise_after_backward"):  # a future of the process group
            means.raise_after_backward(gradients)
        return means
    work.wait()
    future: torch.futures.Future[torch.Tensor] = torch.futures.Future(
        devices=[gradients.device] if gradients.is_cuda else []
    )
    future.set_result(gradients)
    return future


mean_hook.__annotations__.clear()  # PyTorch expects types there, not text
