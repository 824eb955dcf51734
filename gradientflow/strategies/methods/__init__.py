"""The strategies of the library, a file for each method. This is the only list of them."""

from __future__ import annotations

from .auto import Auto
from .by_policy import ASGD, DSSP, SSGD, SSP, ElasticBSP
from .csc import CSC
from .dense import Dense
from .dgc import DGC
from .diloco import DiLoCo
from .hpsgd import HPSGD
from .lags import LAGS
from .local_sgd import LocalSGD
from .power_sgd import PowerSGD
from .psgd import PSGD
from .random_k import RandomK
from .slgs import SLGS
from .sparse_loco import SparseLoCo
from .ssd_sgd import SSDSGD
from .top_k import TopK

__all__ = [
    "ASGD",
    "CSC",
    "DGC",
    "DSSP",
    "HPSGD",
    "LAGS",
    "PSGD",
    "SLGS",
    "SSDSGD",
    "SSGD",
    "SSP",
    "Auto",
    "Dense",
    "DiLoCo",
    "ElasticBSP",
    "LocalSGD",
    "PowerSGD",
    "RandomK",
    "SparseLoCo",
    "TopK",
]
