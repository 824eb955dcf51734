"""Functions of the core that Python's interface does not have, one module for each C++ file that makes them callable.

The first to import this compiles them, side by side: see bench/core/native.py.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from gradientflow.bench.core.native import SOURCES, build_native, load_native

_OWN = [
    Path(__file__).resolve().parents[1] / "native" / f"{name}.cpp"
    for name in ("collective", "meeting", "mpi", "recovery", "tcp")
]

with ThreadPoolExecutor() as pool:
    built = [pool.submit(build_native, *files) for files in ([SOURCES / "cuda.cpp"], [SOURCES / "compute.cpp"], _OWN)]
    library = [each.result() for each in built][-1]

compute, cuda = (load_native(SOURCES / name) for name in ("compute.cpp", "cuda.cpp"))
modules: list[Any] = [load_native(file, library) for file in _OWN]
collective, meeting, mpi, recovery, tcp = modules
