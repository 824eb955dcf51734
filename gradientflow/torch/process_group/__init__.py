"""The process group of the backend "gradientflow": PyTorch's collectives on a GradientFlow communicator."""

from __future__ import annotations

from .create import create
from .ddp_hooks import serve_builtin_hook
from .group import ProcessGroup
from .profiling import mark_asynchronous

serve_builtin_hook(ProcessGroup)
mark_asynchronous()

__all__ = ["ProcessGroup", "create"]
