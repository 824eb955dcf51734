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
from jax_jobs import TAKES_JAX
from jobs import PROGRAMS, outside_environment
from needs_mpi import WITHOUT_MPI

from gradientflow.launch import fork_server
from gradientflow.launch.jax_rank import jax_variables

# Read by Python, the loader, mpi4py and JAX before a program begins: with other values than the server's, no fork.
_READ_AT_LOAD = re.compile(
    r"PYTHON\w+|LD_\w+|GLIBC_TUNABLES|OMP_NUM_THREADS|MALLOC_\w+|MPI4PY_\w+|JAX_\w+|XLA_FLAGS|MPITRAMPOLINE_\w+"
)

_BY_THEMSELVES = {"lifetime", "jax_start"}  # about how interpreters begin and end, and how JAX finds its job

_IMPORTS = re.compile(r"^(?:import|from) ([\w.]+)(?: import ([\w, ]+))?", re.MULTILINE)
# Under torchrun gf.init() imports PyTorch, too.
_TAKES_TORCH = re.compile(
    r"^\s*(import|from) (torch|gradientflow\.(torch|bench\.train))\b|\bTORCHELASTIC_", re.MULTILINE
)


class RankServers:
    """A server for programs with PyTorch, one for those with JAX, and one for the rest, started when first needed."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="gradientflow-ranks-", dir="/tmp")  # sockets: short
        self._servers: dict[str, subprocess.Popen[bytes]] = {}

    def command(self, program: str | Path, env: Mapping[str, str], *, mpi: bool = True) -> list[str]:
        """Write what runs a file, or tests/programs/<program>.py, as a rank, in place of Python.

        With `mpi` as a rank of a job of MPI; without, as a process that has nothing of MPI.
        """
        file = program if isinstance(program, Path) else PROGRAMS / f"{program}.py"
        own = {name for name, value in env.items() if os.environ.get(name) != value}
        if program in _BY_THEMSELVES or any(map(_READ_AT_LOAD.fullmatch, own)):
            return [sys.executable, str(file)]
        framework = _framework(file)
        if framework == "jax":
            mpi = env.get("GRADIENTFLOW_TRANSPORT") != "tcp"
        kind = "mpi" if mpi and not WITHOUT_MPI else "plain"
        return [sys.executable, "-I", "-S", fork_server.__file__, self._socket(framework), kind, str(file)]

    def close(self) -> None:
        """End the servers, and the ranks that are left."""
        for server in self._servers.values():
            assert server.stdin is not None
            server.stdin.close()
        for server in self._servers.values():
            server.wait()
        self._folder.cleanup()

    def _socket(self, framework: str) -> str:
        path = Path(self._folder.name, framework)
        if framework not in self._servers:
            kind = "plain" if WITHOUT_MPI else "mpi"
            with socket.socket(socket.AF_UNIX) as listening:
                listening.bind(str(path))
                listening.listen(256)
                self._servers[framework] = subprocess.Popen(
                    [sys.executable, FORKED_RANKS, str(listening.fileno()), kind, *_imported(framework)],
                    stdin=subprocess.PIPE,
                    pass_fds=[listening.fileno()],
                    env=outside_environment()
                    | {"OPENBLAS_NUM_THREADS": "1", TAG: UNTAGGED}
                    | (jax_variables({}) if framework == "jax" else {}),
                    start_new_session=True,
                )
        return str(path)


def _framework(program: Path) -> str:
    text = program.read_text(encoding="utf-8")
    return "jax" if TAKES_JAX.search(text) else "torch" if _TAKES_TORCH.search(text) else "numpy"


def _imported(framework: str) -> list[str]:
    """List what the programs with a framework import at their beginning, and names that may be it."""
    own = {file.stem for folder in (PROGRAMS, Path(__file__).parent) for file in folder.glob("*.py")}
    found = {"torch._dynamo"} if framework == "torch" else set()  # it takes a second of an optimizer's first step
    for program in PROGRAMS.glob("*.py"):
        if _framework(program) == framework:
            for module, names in _IMPORTS.findall(program.read_text(encoding="utf-8")):
                if module.partition(".")[0] not in own | ({"mpi4py"} if WITHOUT_MPI else set()):
                    found |= {module, *(f"{module}.{name.strip()}" for name in names.split(",") if name.strip())}
    return sorted(found)
