"""The strategies of the library, one file each. This is the only list of them."""

from __future__ import annotations

from .asgd import ASGD
from .auto import Auto
from .csc import CSC
from .dense import Dense
from .dgc import DGC
from .diloco import DiLoCo
from .dssp import DSSP
from .elastic_bsp import ElasticBSP
from .hpsgd import HPSGD
from .lags import LAGS
from .local_sgd import LocalSGD
from .power_sgd import PowerSGD
from .psgd import PSGD
from .random_k import RandomK
from .slgs import SLGS
from .sparse_loco import SparseLoCo
from .ssd_sgd import SSDSGD
from .ssgd import SSGD
from .ssp import SSP
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
