"""Ranks of tests, forked from a server that has imported everything, in place of ranks that import it themselves.

    python forked_ranks.py NUMBER mpi|plain MODULE ...             the fork server
    python -I -S fork_server.py SOCKET mpi|plain PROGRAM ...       the proxy: started in place of python PROGRAM ...

The number is that of the listening socket, a file that the server inherits: connections before it is ready wait. The
fork calls MPI_Init under the environment of the job. A `plain` fork has nothing of MPI, and a `plain` server is for
machines without MPI. The server has begun neither MPI nor threads. It ends with the process that holds the other end
of its input.
"""

from __future__ import annotations

import contextlib
import os
import socket
import sys

FORKED_RANKS = __file__
TAG = "GRADIENTFLOW_TEST_JOB"  # a variable of the environment of every process of a job
UNTAGGED = "-" * 32  # value in the fork server, as long as a tag


def become_rank(arguments: list[str], environment: dict[bytes, bytes], folder: str, cores: list[int]) -> None:
    """Be what python would be that had been started with these arguments, under this environment."""
    import ctypes
    from pathlib import Path

    from gradientflow import _location
    from gradientflow.launch.fork_server import become

    # /proc shows the environment that a process was started with, in its memory: there stands the tag.
    libc = ctypes.CDLL(None)
    libc.getenv.restype = ctypes.c_void_p
    ctypes.memmove(libc.getenv(TAG.encode()), environment.get(TAG.encode(), UNTAGGED.encode()), len(UNTAGGED))
    _location.FOLDER = Path(folder)
    kind, *arguments = arguments
    if kind == "mpi":
        os.environb.clear()
        os.environb.update(environment)
        from mpi4py import MPI

        MPI.Init_thread(MPI.THREAD_MULTIPLE)
    else:
        for name in ("mpi4py.MPI", "mpi4py"):
            sys.modules.pop(name, None)
    become(arguments, environment, folder, cores)


def main() -> None:
    number, kind, *modules = sys.argv[1:]
    import gc
    import importlib

    if kind == "mpi":
        import mpi4py

        mpi4py.rc.initialize = False
        mpi4py.rc.finalize = True
    # At the end of each fork it would report that its types, which are frozen below, have not been freed.
    sys.modules["triton"] = None  # type: ignore[assignment]
    for name in modules:
        with contextlib.suppress(ImportError):  # a program that needs it says so itself
            importlib.import_module(name)
    import gradientflow
    from gradientflow._location import load_core
    from gradientflow.launch.fork_server import ForkServer

    for name in gradientflow.__all__:  # each of which is imported when it is first used
        getattr(gradientflow, name)
    if kind == "mpi":
        from gradientflow.mpi_library import load_mpi

        load_mpi()
    load_core()
    gc.collect()
    gc.freeze()  # their pages stay shared, and collections of the forks stay short
    threads = os.listdir("/proc/self/task")
    assert "jax" not in modules or len(threads) == 1, f"a fork would lack {len(threads) - 1} threads of the imports"
    if task := ForkServer(socket.socket(fileno=int(number)), lambda listening: listening.accept()[0]).serve():
        become_rank(*task)


if __name__ == "__main__":
    main()
