"""Folders for temporary files, which go when their processes do, even killed ones."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

# Reads to the end of its input, which comes when no process holds the other end any more.
_SWEEP = 'read -r _; exec rm -rf -- "$1"'


class Scratch(NamedTuple):
    """A folder, and a file descriptor: a process that inherits it keeps the folder until it has ended."""

    path: str
    holder: int


@contextmanager
def scratch_folder(prefix: str = "gradientflow-") -> Iterator[Scratch]:
    """Make a folder that is removed when the block ends, or when this process does, however it ends.

    A process of its own waits for that, as one that is killed cannot remove anything.

    Parameters
    ----------
    prefix : str
        Begins its name, in the folder for temporary files.

    Yields
    ------
    Scratch
        The folder.
    """
    path = tempfile.mkdtemp(prefix=prefix)
    read, write = os.pipe()
    sweeper: subprocess.Popen[bytes] | None = None
    try:
        sweeper = subprocess.Popen(
            ["sh", "-c", _SWEEP, "sh", path],
            cwd="/",
            env={"PATH": os.defpath},
            stdin=read,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C is not for it
        )
        yield Scratch(path, write)
    finally:
        shutil.rmtree(path, ignore_errors=True)
        if sweeper is not None:
            sweeper.kill()
            sweeper.wait()
        os.close(read)
        os.close(write)


__all__ = ["Scratch", "scratch_folder"]
