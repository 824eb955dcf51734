"""Ranks that serve only: the last ones of the job, as many as the first argument says."""

from __future__ import annotations

import os
import signal
import sys
import time
from typing import Any

import numpy as np
from support import RANK, SIZE, raises, run

import gradientflow as gf
from gradientflow.errors import ArgumentError, GradientFlowError, PeerError
from gradientflow.server_rank import ServerRanks, serve
from gradientflow.strategies import Settings

SERVERS = int(sys.argv[1])
HOW = sys.argv[2]
WORKERS = SIZE - SERVERS
LATE = 30.0


def draw(*seed: int) -> list[np.ndarray]:
    random = np.random.default_rng(seed)
    return [random.standard_normal(shape).astype(np.float32) for shape in [(40, 7), (0,), (333,)]]


def work(comm: gf.Communicator) -> None:
    """Two parameter servers at once, and a third one later."""
    assert comm.size == WORKERS
    with raises(ArgumentError, "servers"):
        gf.ParameterServer(comm, draw(0), servers=SERVERS + 1)
    for policies in (("bsp", "asp"), ("bsp",)):
        servers = [gf.ParameterServer(comm, draw(0), policy) for policy in policies]
        expected = draw(0)
        weights = draw(1)
        for step in range(4):
            pushes = [draw(2, step, rank) for rank in range(WORKERS)]
            for server in servers:
                places = server.gradients() if step % 2 else [np.empty_like(each) for each in pushes[RANK]]
                for place, each in zip(places, pushes[RANK], strict=True):
                    place[...] = each
                server.push(Settings(0.5), gradients=places)
            for i, each in enumerate(expected):
                total = pushes[0][i]
                for push in pushes[1:]:
                    total = total + push[i]
                expected[i] = each - np.float32(0.5) * (total / np.float32(WORKERS))
            servers[0].pull_into(weights)
            assert all(np.array_equal(a, b) for a, b in zip(weights, expected, strict=True))
            pull = servers[0].pull()
            assert all(np.array_equal(pull.weights(i), each) for i, each in enumerate(expected))
        for server in servers:
            assert server.servers == SERVERS
            server.finish(weights)
            server.close()


def unknown(comm: gf.Communicator) -> None:
    """A policy whose class the servers do not know."""

    class Local(gf.policies.BSP):
        name = "bsp"

    with raises(GradientFlowError, "Local"):
        gf.ParameterServer(comm, draw(0), Local())
    work(comm)


def left(comm: gf.Communicator) -> None:
    """A parameter server that nobody closes."""
    gf.ParameterServer(comm, draw(0)).push(Settings(1.0), gradients=draw(1)).wait(LATE)


def die(comm: gf.Communicator) -> None:
    server = gf.ParameterServer(comm, draw(0))
    begin = time.monotonic()
    with raises(PeerError, f"rank {WORKERS}"):
        while time.monotonic() < begin + LATE:
            server.push(Settings(1.0), gradients=draw(1)).wait(LATE)
    print(f"rank {RANK} knows", flush=True)
    os._exit(0)


def main() -> None:
    everyone = gf.init()
    comm = everyone.split(0 if RANK < WORKERS else None)
    if comm is None:
        if HOW == "die" and RANK == WORKERS:
            from threading import Timer

            Timer(2.0, lambda: os.kill(os.getpid(), signal.SIGKILL)).start()
        try:
            serve(everyone, WORKERS)
        except PeerError:
            assert HOW == "die"
            os._exit(0)
        print(f"rank {RANK} has served", flush=True)
        everyone.close()
        return
    comm.server_ranks = ServerRanks(everyone, WORKERS)
    ways: dict[str, Any] = {"work": work, "unknown": unknown, "left": left, "die": die}
    ways[HOW](comm)
    comm.close()


if __name__ == "__main__":
    run(main)
