"""One rank ends before all have met; the others say what they hear, twice.

Arguments: which, with what status, when, what the others call, and a file in which it says that it is about to come.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from pathlib import Path

import gradientflow as gf

victim, status, when, call = int(sys.argv[1]), int(sys.argv[2]), *sys.argv[3:5]
file = Path(sys.argv[5])
rank = int(os.environ["GRADIENTFLOW_RANK"])
if rank == victim and when == "before it has come":
    os._exit(status)
if rank == victim:
    file.with_suffix(".new").write_text(str(os.getpid()))
    file.with_suffix(".new").rename(file)
    threading.Timer(0.5, os._exit, (status,)).start()
elif when == "before others have come" and rank == 2:
    while not file.exists() or Path(f"/proc/{file.read_text()}").exists():
        time.sleep(0.02)


def meet() -> None:
    try:
        getattr(gf, call)()
    except gf.errors.PeerError as error:
        print(f"rank {rank}: {error}", flush=True)


meet()
meet()
