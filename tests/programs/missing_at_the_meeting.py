"""One rank ends before all have met; the others say what they hear, twice.

Arguments: which, with what status, when, and what the others call.
"""

from __future__ import annotations

import os
import sys
import threading
import time

import gradientflow as gf

victim, status, when, call = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4]
rank = int(os.environ["GRADIENTFLOW_RANK"])
if rank == victim and when == "before it has come":
    os._exit(status)
if rank == victim:
    threading.Timer(0.5, os._exit, (status,)).start()
elif when == "before others have come" and rank == 2:
    time.sleep(2)


def meet() -> None:
    try:
        getattr(gf, call)()
    except gf.errors.PeerError as error:
        print(f"rank {rank}: {error}", flush=True)


meet()
meet()
