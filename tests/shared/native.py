"""Functions of the core that Python's interface does not have, one module for each C++ file that makes them callable.

The first to import this compiles them, side by side: see bench/core/native.py.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from gradientflow.bench.core.native import SOURCES, build_native, load_native

OWN = Path(__file__).resolve().parents[1] / "native"

FILES = [
    *(SOURCES / name for name in ("compute.cpp", "cuda.cpp")),
    *(OWN / name for name in ("collective.cpp", "meeting.cpp", "mpi.cpp", "recovery.cpp", "tcp.cpp")),
]

with ThreadPoolExecutor() as pool:
    list(pool.map(build_native, FILES))

modules: list[Any] = [load_native(file) for file in FILES]
compute, cuda, collective, meeting, mpi, recovery, tcp = modules
