"""Says what it was started with, and ends in the way it is told to: for how ranks are started."""

from __future__ import annotations

import atexit
import os
import signal
import sys
import time
import weakref

from support import run


class Kept:
    """Lives until the interpreter takes the module apart."""


def main() -> None:
    if how == "told":
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(9))
    print(sys.argv[1:], __name__, os.getcwd(), sorted(os.sched_getaffinity(0)), os.environ["SAID"], flush=True)
    if how == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if how == "exit":
        sys.exit(7)
    if how in ("sleeps", "told"):
        time.sleep(1000)


how = sys.argv[1]
kept = Kept()
weakref.finalize(kept, print, "finalized", flush=True)
atexit.register(print, "at exit", flush=True)
if how == "raises":
    raise ValueError(how)
run(main) if how == "plain" else main()
