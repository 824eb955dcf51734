"""A rank of ``python tests/chaos join``: it trains, and dies as the last rank until there were enough newcomers.

Its arguments are the bytes of weights and momentum, how many ranks join, and the strategy. Some steps after each join
every rank prints a line of JSON: its times, and the checksums of what it has then.
"""

from __future__ import annotations

import json
import os
import signal
import statistics
import sys
import time
from collections import deque

import numpy as np

import gradientflow as gf
from gradientflow.bench.core.process import age
from gradientflow.optimizers import SGD  # before others wait
from gradientflow.strategies import as_strategy
from gradientflow.training import ArrayLoop

from .replay import MOMENTUM, RATE, checksum, factor, pattern, places, split

_SETTLED = {True: 5, False: 2}  # periods from a join to what is told of it, and to the next death
_COMPUTING = 0.02  # seconds of each step in which a rank that trains by itself needs no core


def main() -> None:
    """Train until so many newcomers have come."""
    count, joins, strategy = int(sys.argv[1]) // 8, int(sys.argv[2]), as_strategy(sys.argv[3])
    period = getattr(strategy, "period", 1)  # steps
    end_of_life = 1 + period * _SETTLED[period == 1]
    seen = int(os.environ["GRADIENTFLOW_RESTARTS"])  # joins: all before were those of the same rank
    values = pattern(count)
    weights = split(values.copy() if seen == 0 else np.zeros_like(values))
    directions = split(values)
    own: dict[str, float] = {"ready": age()}
    knock = time.monotonic()
    comm = gf.join()
    own["let_in"] = time.monotonic() - knock
    full, history, durations, is_joined = comm.size, list[tuple[int, int]](), list[float](), False
    last = deque[float](maxlen=period)  # durations
    with ArrayLoop(comm, weights, strategy, on_failure="continue", min_ranks=1) as training:
        optimizer = SGD(training, weights, RATE, MOMENTUM)
        end = time.monotonic()
        for step in training.steps(sys.maxsize):
            now = training.membership
            if training.changed and now.joined:
                if now.rank in now.joined:
                    end = time.monotonic()
                    own["state"] = end - knock - own["let_in"]
                else:
                    seen += 1
                durations, is_joined = [], True
            elif len(durations) == end_of_life and now.rank == full - 1:
                os.kill(os.getpid(), signal.SIGKILL)
            for index, direction in enumerate(directions):
                np.multiply(direction, np.float32(factor(step, now.rank, now.size)), out=training.gradients[index])
                training.ready(index)
            time.sleep(_COMPUTING * (period > 1))
            training.wait()
            optimizer.step()
            before, end = end, time.monotonic()
            if training.membership.dropped:
                continue
            durations.append(end - before)
            last.append(end - before)
            if not durations[1:]:
                first = sum(last) if now.rank not in now.joined else durations[0]
            if not history or history[-1][1] != now.size:
                history.append((step, now.size))
            if len(durations) == end_of_life and is_joined:
                sums = checksum(weights), checksum(optimizer.state_dict()["momentum"])
                usual = statistics.median(sum(durations[i : i + period]) for i in range(1, end_of_life, period))
                found = {"join": seen, "first": first, "usual": usual, "steps": step + 1, "sums": sums}
                found |= {"rank": now.rank, "sample": np.concatenate(weights)[places(count)].tolist()}
                mine = {**own, "newcomer": True} if now.rank == full - 1 else {"history": history, "newcomer": False}
                print(json.dumps({**found, **mine}), flush=True)
                if seen == joins:
                    break


if __name__ == "__main__":
    main()
