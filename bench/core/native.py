"""The compiled kernels one by one, as the benchmarks and the tests call them."""

from __future__ import annotations

import importlib
from types import ModuleType

from gradientflow._location import load_core


def load_kernels() -> ModuleType:
    """Load the module ``gradientflow._core_testing``, whose kernels the package itself uses through its core."""
    load_core()  # or says what is wrong with MPI
    return importlib.import_module("gradientflow._core_testing")
