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
from jobs import PROGRAMS, outside_environment, python_command

# Read by Python and the loader before a program begins: with other values than the server's it cannot be forked.
_READ_AT_LOAD = re.compile(r"PYTHON\w+|LD_\w+|GLIBC_TUNABLES|OMP_NUM_THREADS|MALLOC_\w+")

_BY_THEMSELVES = {"lifetime"}  # about how interpreters begin and end

_MODULES = ("numpy", "gradientflow")
_TORCH_MODULES = (*_MODULES, "torch", "torch.distributed", "gradientflow.torch")
_TAKES_TORCH = re.compile(r"^(import|from) (torch|gradientflow\.torch)\b", re.MULTILINE)


class RankServers:
    """One server for programs with PyTorch and one for those without, started when they are first needed."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="gradientflow-ranks-", dir="/tmp")  # sockets: short
        self._servers: dict[tuple[str, ...], subprocess.Popen[bytes]] = {}

    def command(self, program: str, env: Mapping[str, str]) -> list[str]:
        """Write what runs tests/programs/<program>.py as a rank, in place of Python."""
        file = PROGRAMS / f"{program}.py"
        own = {name for name, value in env.items() if os.environ.get(name) != value}
        if program in _BY_THEMSELVES or any(map(_READ_AT_LOAD.fullmatch, own)):
            return python_command(program)
        modules = _TORCH_MODULES if _TAKES_TORCH.search(file.read_text(encoding="utf-8")) else _MODULES
        return [sys.executable, "-I", "-S", FORKED_RANKS, self._socket(modules), str(file)]

    def close(self) -> None:
        """End the servers, and the ranks that are left."""
        for server in self._servers.values():
            assert server.stdin is not None
            server.stdin.close()
        for server in self._servers.values():
            server.wait()
        self._folder.cleanup()

    def _socket(self, modules: tuple[str, ...]) -> str:
        path = Path(self._folder.name, str(len(modules)))
        if modules not in self._servers:
            with socket.socket(socket.AF_UNIX) as listening:
                listening.bind(str(path))
                listening.listen(256)
                self._servers[modules] = subprocess.Popen(
                    [sys.executable, FORKED_RANKS, str(listening.fileno()), *modules],
                    stdin=subprocess.PIPE,
                    pass_fds=[listening.fileno()],
                    env={**outside_environment(), TAG: UNTAGGED},
                    start_new_session=True,
                )
        return str(path)
