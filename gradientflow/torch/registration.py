"""Registration of the backend "gradientflow" with PyTorch.

PyTorch calls `register` during its own import, because the installed package lists it under ``torch.backends``. So
nothing heavy is imported here, and MPI is not touched before a process group is made. The functions import PyTorch,
because its import may be only halfway done when this module is imported.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import parse_qs, urlsplit

from .names import BACKEND

if TYPE_CHECKING:
    from .process_group.rendezvous import GroupArguments


def register() -> None:
    """Register the backend with ``torch.distributed``. Registering twice is harmless."""
    import torch.distributed as dist

    if not dist.is_available() or BACKEND in dist.Backend.backend_list:
        return
    dist.Backend.register_backend(BACKEND, _create, extended_api=True, devices=["cpu", "cuda"])
    distributed = dist.distributed_c10d
    dist.init_process_group = distributed.init_process_group = _finding_ranks(distributed.init_process_group)


def _create(options: object, backend_options: object) -> Any:
    from .process_group import create

    return create(options, backend_options)


def _finding_ranks(init_process_group: Callable[..., None]) -> Callable[..., None]:
    """Wrap ``init_process_group``: for this backend, the job provides rank, number of ranks and store."""
    signature = inspect.signature(init_process_group)

    @functools.wraps(init_process_group)
    def wrapper(*args: object, **kwargs: object) -> None:
        given = signature.bind(*args, **kwargs).arguments
        if _is_meant(given.get("backend")):
            given.update(_found(cast("GroupArguments", given)))
        init_process_group(**given)

    return wrapper


def _is_meant(backend: object) -> bool:
    """Tell if a backend, such as "gradientflow" or "cpu:gradientflow,cuda:nccl", is or includes this one."""
    return BACKEND in [part.rpartition(":")[2] for part in str(backend).lower().split(",")]


def _found(given: GroupArguments) -> GroupArguments:
    """Return the arguments of ``init_process_group`` that the job provides, given the caller's."""
    from torch.distributed.constants import default_pg_timeout

    from .process_group.rendezvous import Rendezvous, is_left_to_pytorch, meet_before_pytorch

    url = urlsplit(given.get("init_method") or "env://")
    url_says = not {"rank", "world_size"}.isdisjoint(parse_qs(url.query))
    if is_left_to_pytorch(given, url_says=url_says):
        if not url_says and url.scheme == "env" and given.get("store") is None:
            meet_before_pytorch(given)
        return {}
    rendezvous = Rendezvous(given.get("rank", -1), given.get("world_size", -1))
    found: GroupArguments = {"rank": rendezvous.place.rank, "world_size": rendezvous.place.size}
    if given.get("store") is None and url.scheme == "env":
        found["store"] = rendezvous.make_store(given.get("timeout") or default_pg_timeout)
        found["init_method"] = None
    return found
