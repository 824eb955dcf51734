"""One rank ends before all have met; the others say what they hear. Arguments: which, when, and what they call."""

from __future__ import annotations

import os
import sys
import threading
import time

import gradientflow as gf

victim, when, call = int(sys.argv[1]), sys.argv[2], sys.argv[3]
rank = int(os.environ["GRADIENTFLOW_RANK"])
if rank == victim and when == "before it has come":
    os._exit(9)
if rank == victim:
    threading.Timer(0.5, os._exit, (9,)).start()
elif when == "before others have come" and rank == 2:
    time.sleep(2)
try:
    getattr(gf, call)()
except gf.errors.PeerError as error:
    print(f"rank {rank}: {error}", flush=True)
