"""The process that keeps the store where the ranks of a job meet, so that it outlives every rank.

The launcher tells it, in lines of JSON, which ranks have ended for good: the others cannot meet without them.
"""

from __future__ import annotations

import json
import os
import sys

from gradientflow._location import load_core
from gradientflow.meeting.stores import TOKEN
from gradientflow.meeting.way import LACKS, OUTSIDE, PREFIX


def main() -> int:
    """Serve the store at the address that is given until the input ends."""
    store = load_core().TcpStore(sys.argv[1], True, token=os.environ.get(TOKEN, ""))
    for number, line in enumerate(sys.stdin):
        told = json.loads(line)
        why = f"{told['what']}, and the ranks cannot meet without it"
        store.compare_set(f"{PREFIX}/{LACKS}", None, why.encode())  # the first one stays
        for rank in told["ranks"]:
            store.set(f"{PREFIX}/{OUTSIDE}/{rank}", f"gone {number}".encode())
        store.fail_meeting(why)
    return 0


if __name__ == "__main__":
    sys.exit(main())
