"""GradientFlow: collectives and gradient communication for data-parallel training, over MPI or TCP."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from ._location import build_info, use_installed_package

if not use_installed_package():
    __version__: str = build_info()["version"]
    __all__ = [
        "Communicator",
        "Config",
        "GradientPool",
        "Handle",
        "ParameterServer",
        "Request",
        "SparseGradientPool",
        "TopKGradientPool",
        "__version__",
        "errors",
        "init",
        "join",
        "metrics",
        "optimizers",
        "policies",
        "spawn",
        "strategies",
        "training",
    ]

    if TYPE_CHECKING:
        from . import errors, metrics, optimizers, policies, strategies, training
        from .communicator import Communicator
        from .config import Config
        from .handle import Handle
        from .job import init
        from .joining import join
        from .launch.spawn import spawn
        from .pools.gradient import GradientPool
        from .pools.sparse import SparseGradientPool
        from .pools.top_k import TopKGradientPool
        from .request import Request
        from .server.parameter_server import ParameterServer
    else:
        _MODULES = {
            "Communicator": "communicator",
            "Config": "config",
            "GradientPool": "pools.gradient",
            "Handle": "handle",
            "ParameterServer": "server.parameter_server",
            "Request": "request",
            "SparseGradientPool": "pools.sparse",
            "TopKGradientPool": "pools.top_k",
            "init": "job",
            "join": "joining",
            "spawn": "launch.spawn",
        }

        def __getattr__(name: str) -> object:
            """Import a name when it is first used, so that a program waits only for imports that it needs (PEP 562)."""
            if name not in __all__:
                raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
            module = importlib.import_module(f"{__name__}.{_MODULES.get(name, name)}")
            value = getattr(module, name) if name in _MODULES else module
            globals()[name] = value
            return value

        def __dir__() -> list[str]:
            """List all public names, imported yet or not."""
            return sorted({*globals(), *__all__})
