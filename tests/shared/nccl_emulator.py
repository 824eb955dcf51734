"""Builds an emulated NCCL on top of the emulated CUDA, to test what needs NCCL where there is no device."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from cuda_emulator import EMULATOR as CUDA

SOURCE = CUDA.parent / "nccl" / "nccl.cpp"
NAME = "libnccl_emulated.so.2"


def build(folder: Path, cuda_library: Path) -> Path:
    """Compile the emulator into a library in `folder`.

    Parameters
    ----------
    folder : Path
        Where it goes.
    cuda_library : Path
        The emulated CUDA part of the library, which it is linked to.

    Returns
    -------
    Path
        The library, for GRADIENTFLOW_NCCL_LIBRARY.
    """
    made = folder / f"{NAME}.new"  # in its place all at once
    command = [
        os.environ.get("CXX", "g++"),
        "-std=c++20",
        "-O1",
        "-fPIC",
        "-shared",
        "-w",
        "-pthread",
        f"-Wl,-soname,{NAME}",
    ]
    command += [f"-I{CUDA}", str(SOURCE), "-o", str(made)]
    command += [str(cuda_library), f"-Wl,-rpath,{cuda_library.parent}", "-Wl,--no-undefined"]
    command += ["-Wl,--allow-shlib-undefined"]
    command += ["-Wl,-Bsymbolic"]  # its own functions, and not those of an NCCL that has been loaded globally
    subprocess.run(command, check=True)
    return made.rename(folder / NAME)
