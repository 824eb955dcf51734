"""Builds the CUDA part of the library against an emulated CUDA, to test what needs a device where there is none."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory

from gradientflow._location import PACKAGE
from gradientflow.bench.core.native import cache_folder

ROOT = Path(__file__).resolve().parents[2]
EMULATOR = ROOT / "tests" / "emulators" / "cuda"
NAME = "libgradientflow_cuda_emulated.so"

FLAGS = ["-std=c++20", "-O1", "-fPIC", "-ffp-contract=off", "-w", "-U_FORTIFY_SOURCE", f"-I{EMULATOR}"]


def folder_of_emulators(core: Path) -> Path:
    """Give the folder in the user's cache for libraries of just these sources, compiler and core."""
    key = hashlib.sha256(repr([FLAGS, core]).encode())
    key.update(subprocess.run([_compiler(), "--version"], capture_output=True, check=True).stdout)
    kernels = ROOT / "kernels"
    for source in sorted([*kernels.rglob("*.h*"), *kernels.rglob("*.cu*"), *EMULATOR.parent.rglob("*.*")]):
        key.update(source.read_bytes())
    folder = cache_folder() / f"emulators-{key.hexdigest()[:20]}"
    folder.mkdir(exist_ok=True)
    return folder


def _compiler() -> str:
    return os.environ.get("CXX", "g++")


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
    folder.mkdir(parents=True, exist_ok=True)
    sources = [*sorted((ROOT / "kernels" / "compute" / "cuda").glob("*.cu")), EMULATOR / "runtime.cpp"]

    with TemporaryDirectory() as objects, ThreadPoolExecutor(os.cpu_count()) as pool:

        def compile_one(source: Path) -> str:
            target = f"{objects}/{source.name}.o"
            subprocess.run([_compiler(), "-x", "c++", *FLAGS, "-c", str(source), "-o", target], check=True)
            return target

        made = folder / f"{NAME}.new"  # in its place all at once
        linking = [f"-Wl,-soname,{NAME}", f"-L{core}", "-lgradientflow", f"-Wl,-rpath,{core}", "-pthread"]
        linking += ["-Wl,--no-undefined", "-Wl,--allow-shlib-undefined"]
        subprocess.run([_compiler(), "-shared", "-o", str(made), *pool.map(compile_one, sources), *linking], check=True)
    return made.rename(folder / NAME)


if __name__ == "__main__":
    print(build(Path(sys.argv[1]), PACKAGE / "lib"))
