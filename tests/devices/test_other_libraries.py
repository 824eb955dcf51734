"""Another CUDA runtime and another NCCL in the process, as PyTorch brings them: nothing of ours is taken for theirs.

The loader looks for a function first among what was loaded globally, so a function that several libraries export is
found there, unless a library is linked so that it finds its own.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import cuda_emulator
import nccl_emulator
import pytest

import gradientflow
from gradientflow._location import build_info

PROGRAM = """
import ctypes, sys
others = [ctypes.CDLL(path, ctypes.RTLD_GLOBAL) for path in sys.argv[1:]]
assert all(library[name]() == 46 for library, name in zip(others, ["cudaGetDeviceCount", "ncclCommDestroy"]))

import numpy, gradientflow as gf
from gradientflow import _core
from gradientflow.bench.core.native import load_kernels
from gradientflow.bench.core.nccl import NcclPeer
from gradientflow.device import asarray

print(_core.device.count(), "devices")
x = asarray(numpy.full(1000, 3.0, numpy.float32))
with gf.init() as comm:
    handle = comm.allreduce_async(x, algorithm="nccl")
    print(handle.wait().get().sum(), handle.path)
    peer = NcclPeer(comm)  # whose calls wait, by the calls that do not
    print(peer._trouble)
    peer.close()
address = x.__cuda_array_interface__["data"][0]
load_kernels("cuda").reduce([address], [address, address], 1000, "float32", "sum", 1).run()
print(x.get().sum())
"""


def build_other(folder: Path, name: str, functions: set[str]) -> Path:
    """Compile a library in which each of these functions does nothing but return an error."""
    source, library = folder / f"{name}.c", folder / name
    source.write_text("".join(f"int {function}(void) {{ return 46; }}\n" for function in sorted(functions)))
    subprocess.run([os.environ.get("CC", "cc"), "-shared", "-fPIC", "-o", str(library), str(source)], check=True)
    return library


@pytest.mark.usefixtures("native")
def test_the_emulators_find_their_own_functions(
    tmp_path: Path, cuda_devices: int, emulated_cuda: Path, emulated_nccl: Path
) -> None:
    """Emulated devices are found, NCCL's calls and a kernel run on them."""
    if cuda_devices > 0:
        pytest.skip("there is a CUDA device")
    cuda = set(re.findall(r"\b(cuda[A-Z]\w+)\(", (cuda_emulator.EMULATOR / "cuda_runtime.h").read_text()))
    nccl = set(re.findall(r"\b(nccl[A-Z]\w+)\(", nccl_emulator.SOURCE.read_text()))
    assert {"cudaSetDevice", "cudaMalloc", "cudaGetErrorString"} < cuda
    assert {"ncclCommInitRankConfig", "ncclCommDestroy"} < nccl
    others = [build_other(tmp_path, "libcudart.so.13", cuda), build_other(tmp_path, "libnccl.so.2", nccl)]
    libraries = {"GRADIENTFLOW_CUDA_LIBRARY": str(emulated_cuda), "GRADIENTFLOW_NCCL_LIBRARY": str(emulated_nccl)}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *map(str, others)],
        env={**os.environ, **libraries},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["1 devices", "3000.0 nccl", "None", "6000.0"]


def dynamic_symbols(library: Path) -> str:
    """What a library has for the loader, or wants of it: a letter for the kind of symbol, and its name."""
    command = ["nm", "--dynamic", "--format=posix", str(library)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def test_the_runtime_inside_of_the_library_is_for_it_alone() -> None:
    """CUDA's runtime is linked into the library: it is not looked for among others', nor found by others."""
    if not build_info()["cuda"]:
        pytest.skip("built without CUDA")
    library = Path(gradientflow.__file__).parent / "lib" / "libgradientflow_cuda.so"
    symbols = dynamic_symbols(library)
    assert re.search(r"^gradientflow_cuda_runtime T", symbols, re.MULTILINE)
    assert not re.findall(r"^(?:__)?cu(?:da)?[A-Z]\w*", symbols, re.MULTILINE)
