"""One rank of a job over TCP, told what to do on standard input: its addresses, then commands that it answers."""

from __future__ import annotations

import os
import sys
import time
from typing import Any

from native import tcp
from tcp_ranks import TOKEN

from gradientflow.errors import GradientFlowError


def rounds(endpoint: Any, count: int, size: int) -> str:
    """Exchange messages with all others, so many times, unless something happens."""
    others = [r for r in range(endpoint.size) if r != endpoint.rank]
    try:
        for number in range(count):
            receives = [endpoint.receive(r, 0, size) for r in others]
            mine = bytes([endpoint.rank]) * (size if number % 3 else number % (size + 1))
            sends = [endpoint.send(r, 0, mine) for r in others]
            for each in receives + sends:
                patience = 600
                while not each.wait(0.1):
                    for r, how in endpoint.dead():  # for one that has died another may have ended its rounds
                        return f"PeerError: rank {r} {how}"
                    patience -= 1
                    if patience == 0:
                        return f"stuck in round {number}"
            for r, each in zip(others, receives, strict=True):
                if each.data.strip(bytes([r])):
                    return "wrong bytes"
    except GradientFlowError as error:
        return f"{type(error).__name__}: {error}"
    return "done"


def wait_for(endpoint: Any, source: int) -> str:
    """Wait for a message that does not come."""
    try:
        endpoint.receive(source, 9, 1).wait(60)
    except GradientFlowError as error:
        return f"{type(error).__name__}: {error}"
    return "done"


def main(rank: int, host: str, options: dict[str, float]) -> None:
    """Answer one line with one line."""
    network = tcp.Network(address=host, **options)
    print(network.address, flush=True)
    endpoint = network.join(rank, sys.stdin.readline().split(), TOKEN)
    del network
    for line in sys.stdin:
        command, *arguments = line.split()
        if command == "rounds":
            outcome = rounds(endpoint, int(arguments[0]), int(arguments[1]))
            print(f"{time.time():.3f} {outcome}", flush=True)
        elif command == "await":
            outcome = wait_for(endpoint, int(arguments[0]))
            print(f"{time.time():.3f} {outcome}", flush=True)
        elif command == "gather":
            print(endpoint.allgather(b"%d" % endpoint.rank), flush=True)
        elif command == "fork":
            if os.fork() == 0:
                time.sleep(float(arguments[0]))
                os._exit(0)
            print("forked", flush=True)


if __name__ == "__main__":
    main(
        int(sys.argv[1]),
        sys.argv[2],
        {name: float(value) for name, value in (each.split("=") for each in sys.argv[3:])},
    )
