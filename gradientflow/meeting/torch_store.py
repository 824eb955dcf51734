"""PyTorch's store at MASTER_ADDR and MASTER_PORT, as ``init_process_group`` opens it."""

from __future__ import annotations

from datetime import timedelta
from types import ModuleType

from gradientflow._location import core
from gradientflow.errors import CommunicationError

from .plan import MeetingPlan
from .variables import split_address


def open_torch_store(plan: MeetingPlan, timeout: float) -> core.PythonStore:
    """Connect to the store, which ``torchrun`` or else rank 0 serves. Several users in a process share it.

    Returns
    -------
    gradientflow._core.Store
        Store of the core that uses PyTorch's store.

    Raises
    ------
    gradientflow.errors.CommunicationError
        If the store cannot be served, or reached in time.
    """
    import torch.distributed

    dist: ModuleType = torch.distributed  # its annotations lack names from C++
    host, port = split_address(plan.at[0], "MASTER_ADDR:MASTER_PORT")
    try:
        core.await_name(plan.at[0], timeout)
        store = dist.TCPStore(
            host,
            port,
            is_master=plan.serves,
            timeout=timedelta(seconds=timeout),
            wait_for_workers=False,
            multi_tenant=True,
        )
    except (RuntimeError, TimeoutError) as error:  # includes CommunicationError and torch.distributed.DistError
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        if "EADDRINUSE" in reason:
            reason += "; another rank 0, another job or another program serves there"
        message = f"the ranks cannot meet at PyTorch's store, at {plan.at[0]} (MASTER_ADDR and MASTER_PORT): {reason}"
        raise CommunicationError(message) from None  # the rest of PyTorch's message lists its calls in C++
    return core.PythonStore(store, f"PyTorch's store at {plan.at[0]}", plan.serves)
