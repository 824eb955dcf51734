"""GradientFlow: collectives and gradient communication for data-parallel training, launched by mpirun."""

from __future__ import annotations

from ._location import build_info, use_installed_package

if not use_installed_package():
    from . import errors, optimizers, policies, strategies, training
    from .communicator import Communicator
    from .config import Config
    from .handle import Handle
    from .job import init
    from .parameter_server import ParameterServer
    from .pool import GradientPool
    from .request import Request
    from .sparse_pool import SparseGradientPool
    from .top_k_pool import TopKGradientPool

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
        "optimizers",
        "policies",
        "strategies",
        "training",
    ]
