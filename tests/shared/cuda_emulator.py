"""Builds the CUDA part of the library against an emulated CUDA, to test what needs a device where there is none."""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
EMULATOR = ROOT / "tests" / "emulators" / "cuda"
NAME = "libgradientflow_cuda_emulated.so"

FLAGS = ["-std=c++20", "-O1", "-g", "-fPIC", "-ffp-contract=off", "-w", "-U_FORTIFY_SOURCE", f"-I{EMULATOR}"]


def build(folder: Path, core: Path) -> Path:
    """Compile the kernels and the emulator as C++ into a library in `folder`.

    Parameters
    ----------
    folder : Path
        Where it goes.
    core : Path
        The folder of libgradientflow.so.

    Returns
    -------
    Path
        The library, for GRADIENTFLOW_CUDA_LIBRARY.
    """
    compiler = os.environ.get("CXX", "g++")
    folder.mkdir(parents=True, exist_ok=True)
    sources = [*sorted((ROOT / "kernels" / "compute" / "cuda").glob("*.cu")), EMULATOR / "runtime.cpp"]

    def compile_one(source: Path) -> Path:
        target = folder / f"{source.stem}{source.suffix[1:]}.o"
        subprocess.run([compiler, "-x", "c++", *FLAGS, "-c", str(source), "-o", str(target)], check=True)
        return target

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        objects = list(pool.map(compile_one, sources))
    library = folder / NAME
    made = folder / f"{NAME}.new"  # in its place all at once
    linking = [f"-Wl,-soname,{NAME}", f"-L{core}", "-lgradientflow", f"-Wl,-rpath,{core}", "-pthread"]
    linking += ["-Wl,--no-undefined", "-Wl,--allow-shlib-undefined"]
    subprocess.run([compiler, "-shared", "-o", str(made), *map(str, objects), *linking], check=True)
    made.rename(library)
    return library


if __name__ == "__main__":
    from gradientflow._location import PACKAGE

    print(build(Path(sys.argv[1]), PACKAGE / "lib"))
