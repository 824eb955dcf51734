"""DistributedDataParallel's built-in float16 hook on this backend.

The hook is written in C++, and expects the result of an allreduce as a C++ list of tensors, which a process group
written in Python cannot provide. PyTorch's Python hook of the same name does the same work.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel


def serve_builtin_hook(kind: type) -> None:
    """Make DistributedDataParallel, on process groups of a class, use the Python hook in place of the C++ hook."""
    ddp: Any = DistributedDataParallel  # a method of it is replaced
    ddp._register_builtin_comm_hook = _choosing(ddp._register_builtin_comm_hook, kind)


def _choosing(register: Callable[..., None], kind: type) -> Callable[..., None]:
    @functools.wraps(register)
    def wrapper(self: DistributedDataParallel, comm_hook_type: dist.BuiltinCommHookType) -> None:
        if comm_hook_type == dist.BuiltinCommHookType.FP16_COMPRESS and isinstance(self.process_group, kind):
            self.register_comm_hook(self.process_group, default_hooks.fp16_compress_hook)
            assert self.logger is not None
            self.logger._set_comm_hook_name(str(comm_hook_type))  # the requested name
        else:
            register(self, comm_hook_type)

    return wrapper
