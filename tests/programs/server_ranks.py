"""Ranks that serve only: the last ones of the job, as many as the first argument says."""

from __future__ import annotations

import os
import signal
import sys
import time
from threading import Timer
from typing import Any

import numpy as np
from support import RANK, SIZE, raises, run, scaled

import gradientflow as gf
from gradientflow.errors import ArgumentError, GradientFlowError, PeerError
from gradientflow.server import ServerRanks, serve
from gradientflow.strategies import Settings

SERVERS = int(sys.argv[1])
HOW = sys.argv[2]
WORKERS = SIZE - SERVERS
LATE = scaled(30.0)
DEAD = {"worker-dies": WORKERS - 1, "server-dies": WORKERS}.get(HOW)


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
    """Another rank dies, one that serves or the last one that works: it is named."""
    server = gf.ParameterServer(comm, draw(0), "asp")
    begin = time.monotonic()
    with raises(PeerError, f"rank {DEAD}"):
        while time.monotonic() < begin + LATE:
            server.push(Settings(1.0), gradients=draw(1)).wait(LATE)
            if RANK == DEAD and server.statistics().rounds > 10:
                os.kill(os.getpid(), signal.SIGKILL)
    print(f"rank {RANK} knows", flush=True)


def main() -> None:
    work_or_serve()
    if DEAD is not None:
        os._exit(0)  # ending MPI without one of its ranks may hang


def work_or_serve() -> None:
    everyone = gf.init()
    comm = everyone.split(0 if RANK < WORKERS else None)
    if comm is None:
        if DEAD == RANK:
            Timer(2.0, lambda: os.kill(os.getpid(), signal.SIGKILL)).start()
        try:
            serve(everyone, WORKERS)
        except PeerError as error:
            assert HOW == "worker-dies", error  # noqa: PT017
            assert f"rank {DEAD} has died" in str(error), error  # noqa: PT017
            print(f"rank {RANK} knows", flush=True)
            return
        print(f"rank {RANK} has served", flush=True)
        everyone.close()
        return
    comm.server_ranks = ServerRanks(everyone, WORKERS)
    ways: dict[str, Any] = {"work": work, "unknown": unknown, "left": left}
    ways.get(HOW, die)(comm)
    comm.close()


if __name__ == "__main__":
    run(main)
