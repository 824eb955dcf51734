"""Server process of the store where the ranks of a job meet, so that the store outlives every rank.

    store_server ADDRESS          serves the store
    store_server ADDRESS WHY      replaces a server that has ended: refuses all processes, with the reason

Its input has lines of JSON in which the launcher names the ranks that have ended for good: without these ranks the
remaining ranks cannot meet.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping

from gradientflow._location import core
from gradientflow.errors import GradientFlowError
from gradientflow.meeting.plan import LACKS, OUTSIDE, PREFIX
from gradientflow.meeting.stores import TOKEN

_SECONDS = 20.0  # time in which this process's own store answers, even on a busy machine


def main() -> int:
    """Serve the store at the given address until the input ends; return 69 if this is impossible."""
    address, *reasons = sys.argv[1:]
    try:
        store = core.TcpStore(address, True, _SECONDS, os.environ.get(TOKEN, ""))
    except GradientFlowError as error:
        print(f"gradientflow: the ranks cannot meet at {address}: {error}", file=sys.stderr, flush=True)
        return os.EX_UNAVAILABLE
    for why in reasons:
        _refuse(store, why, {})
    for number, line in enumerate(sys.stdin):
        told = json.loads(line)
        why = f"{told['what']}, and the ranks cannot meet without it"
        _refuse(store, why, dict.fromkeys(told["ranks"], f"gone {number}"))
    return 0


def _refuse(store: core.Store, why: str, outside: Mapping[int, str]) -> None:
    """Tell all later processes why the ranks cannot meet, and which ranks are outside; the first reason is kept."""
    store.compare_set(f"{PREFIX}/{LACKS}", None, why.encode())
    for rank, said in outside.items():
        store.set(f"{PREFIX}/{OUTSIDE}/{rank}", said.encode())
    store.fail_meeting(why)


if __name__ == "__main__":
    sys.exit(main())
