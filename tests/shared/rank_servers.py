"""The servers from which a worker's ranks are forked, and which programs have to be started by themselves."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from forked_ranks import FORKED_RANKS, TAG, UNTAGGED
from jax_jobs import takes_jax
from jobs import PROGRAMS, outside_environment
from needs_mpi import WITHOUT_MPI

from gradientflow.launch import fork_server

# Read by Python, the loader and mpi4py before a program begins: with other values than the server's, no fork.
_READ_AT_LOAD = re.compile(r"PYTHON\w+|LD_\w+|GLIBC_TUNABLES|OMP_NUM_THREADS|MALLOC_\w+|MPI4PY_\w+")

_BY_THEMSELVES = {"lifetime"}  # about how interpreters begin and end

_IMPORTS = re.compile(r"^(?:import|from) ([\w.]+)(?: import ([\w, ]+))?", re.MULTILINE)
# Under torchrun gf.init() imports PyTorch, too.
_TAKES_TORCH = re.compile(
    r"^\s*(import|from) (torch|gradientflow\.(torch|bench\.train))\b|\bTORCHELASTIC_", re.MULTILINE
)


class RankServers:
    """One server for programs with PyTorch and one for those without, started when they are first needed."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="gradientflow-ranks-", dir="/tmp")  # sockets: short
        self._servers: dict[bool, subprocess.Popen[bytes]] = {}

    def command(self, program: str | Path, env: Mapping[str, str], *, mpi: bool = True) -> list[str]:
        """Write what runs a file, or tests/programs/<program>.py, as a rank, in place of Python.

        With `mpi` as a rank of a job of MPI; without, as a process that has nothing of MPI.
        """
        file = program if isinstance(program, Path) else PROGRAMS / f"{program}.py"
        own = {name for name, value in env.items() if os.environ.get(name) != value}
        if program in _BY_THEMSELVES or any(map(_READ_AT_LOAD.fullmatch, own)):
            return [sys.executable, str(file)]
        kind = "mpi" if mpi and not WITHOUT_MPI else "plain"
        return [sys.executable, "-I", "-S", fork_server.__file__, self._socket(_takes_torch(file)), kind, str(file)]

    def close(self) -> None:
        """End the servers, and the ranks that are left."""
        for server in self._servers.values():
            assert server.stdin is not None
            server.stdin.close()
        for server in self._servers.values():
            server.wait()
        self._folder.cleanup()

    def _socket(self, takes_torch: bool) -> str:
        path = Path(self._folder.name, "torch" if takes_torch else "numpy")
        if takes_torch not in self._servers:
            kind = "plain" if WITHOUT_MPI else "mpi"
            with socket.socket(socket.AF_UNIX) as listening:
                listening.bind(str(path))
                listening.listen(256)
                self._servers[takes_torch] = subprocess.Popen(
                    [sys.executable, FORKED_RANKS, str(listening.fileno()), kind, *_imported(takes_torch)],
                    stdin=subprocess.PIPE,
                    pass_fds=[listening.fileno()],
                    env={**outside_environment(), TAG: UNTAGGED},
                    start_new_session=True,
                )
        return str(path)


def _takes_torch(program: Path) -> bool:
    return _TAKES_TORCH.search(program.read_text(encoding="utf-8")) is not None


def _imported(takes_torch: bool) -> list[str]:
    """List what the programs with PyTorch, or those without it, import at their beginning, and names that may be it."""
    own = {file.stem for folder in (PROGRAMS, Path(__file__).parent) for file in folder.glob("*.py")}
    found = {"torch._dynamo"} if takes_torch else set()  # it takes a second of an optimizer's first step
    for program in PROGRAMS.glob("*.py"):
        if _takes_torch(program) == takes_torch and not takes_jax(program.stem):
            for module, names in _IMPORTS.findall(program.read_text(encoding="utf-8")):
                if module.partition(".")[0] not in own | ({"mpi4py"} if WITHOUT_MPI else set()):
                    found |= {module, *(f"{module}.{name.strip()}" for name in names.split(",") if name.strip())}
    return sorted(found)
