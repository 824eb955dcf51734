"""The process that keeps the store where the ranks of a job meet, so that it outlives every rank."""

from __future__ import annotations

import os
import signal
import sys

from gradientflow._location import load_core
from gradientflow.meeting.stores import TOKEN


def main() -> int:
    """Serve the store at the address that is given until this process is ended, as its launcher does."""
    store = load_core().TcpStore(sys.argv[1], True, token=os.environ.get(TOKEN, ""))
    while store:
        signal.pause()
    return 0


if __name__ == "__main__":
    sys.exit(main())
