"""Temporary folders that are removed when their processes end, even when they are killed."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

# Shell script that reads until no process holds the writing end of its input, and then removes the folder.
_SWEEP = 'read -r _; exec rm -rf -- "$1"'


class Scratch(NamedTuple):
    """A folder and a file descriptor; a process that inherits the descriptor keeps the folder until it ends."""

    path: str
    holder: int


@contextmanager
def scratch_folder(prefix: str = "gradientflow-") -> Iterator[Scratch]:
    """Make a folder that is removed at the end of the ``with`` block or of this process, whatever ends it.

    A helper process removes the folder of a killed process, which cannot remove it.

    Parameters
    ----------
    prefix : str
        Prefix of its name, in the folder for temporary files.

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
            start_new_session=True,  # Ctrl-C must not end it
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
