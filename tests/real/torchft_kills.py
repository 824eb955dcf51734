"""Replicas of torchft that are killed and come back, over our process group and over torchft's Gloo, in turns.

``python torchft_kills.py --kills 20`` prints for each: the seconds from a kill to the survivors' next step and to the
return of the replica, and the steps that survivors have dropped. A replica dies inside of a collective or between two.
The program fails unless all replicas end with the same bits.
"""

from __future__ import annotations

import argparse
import hashlib
import http.server
import importlib
import logging
import multiprocessing as mp
import os
import signal
import statistics
import sys
import threading
import time
import warnings
from dataclasses import dataclass, field
from datetime import timedelta
from multiprocessing.connection import Connection, wait
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import nn

import gradientflow.torch  # noqa: F401  # before the fork, so that replicas begin at once

os.environ.setdefault("RUST_LOG", "error")
torchft: Any = importlib.import_module("torchft")
coordination: Any = importlib.import_module("torchft.coordination")

BACKENDS = ("gradientflow", "gloo")
KINDS = ("inside", "between")
REPLICAS, STEADY_STEPS, LAST_STEPS = 3, 5, 30
LATE = 300.0  # seconds
# Seconds for which a lighthouse takes a dead replica for healthy. A quorum has more than half of the healthy replicas:
# two survivors and two dead would wait for a replica that comes back.
FORGOTTEN = 5.0
fork: Any = mp.get_context("fork")


class Step(NamedTuple):
    """A step that a replica has made."""

    number: int
    is_committed: bool
    replicas: int
    at: float  # seconds, of the clock that all processes share


def die(told: Connection) -> None:
    told.send(time.monotonic())
    os.kill(os.getpid(), signal.SIGKILL)


def replica(backend: str, number: int, lighthouse: str, told: Connection) -> None:
    """Train until the last step that `told` names; it also says how to die, and hears of each step."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    logging.disable(logging.ERROR)
    warnings.simplefilter("ignore")
    http.server.BaseHTTPRequestHandler.log_message = lambda *_: None
    torch.set_num_threads(1)
    torch.manual_seed(number)
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    group: Any
    if backend == "gradientflow":
        empty = {"store": dist.HashStore(), "rank": 0, "world_size": 1, "enable_reconfigure": True}
        dist.init_process_group("gradientflow", **empty)
        group = dist.group.WORLD
    else:
        group = torchft.ProcessGroupGloo(timeout=timedelta(seconds=60))
    network = nn.Sequential(nn.Linear(256, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 10))
    inner = torch.optim.SGD(network.parameters(), lr=0.01, momentum=0.9)

    def load(state: Any) -> None:
        network.load_state_dict(state[0])
        inner.load_state_dict(state[1])

    manager = torchft.Manager(
        pg=group,
        load_state_dict=load,
        state_dict=lambda: (network.state_dict(), inner.state_dict()),
        min_replica_size=1,
        replica_id=f"replica{number}",
        lighthouse_addr=lighthouse,
        store_addr="127.0.0.1",
        store_port=store.port,
        rank=0,
        world_size=1,
    )
    allreduce, fate, last = manager.allreduce, "", -1

    def deadly(*arguments: Any, **options: Any) -> Any:
        if fate == "inside":
            threading.Timer(0.003, die, [told]).start()
        return allreduce(*arguments, **options)

    manager.allreduce = deadly
    model = torchft.DistributedDataParallel(manager, network)
    optimizer = torchft.Optimizer(manager, inner)
    while (step := manager.current_step()) != last:
        if told.poll():
            message = told.recv()
            fate, last = (message, last) if isinstance(message, str) else (fate, message)
        if fate == "between":
            die(told)
        x = torch.randn(8, 256, generator=torch.Generator().manual_seed(REPLICAS * step + number))
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
        is_committed = manager.current_step() > step
        told.send(Step(manager.current_step(), is_committed, manager.num_participants(), time.monotonic()))
    told.send(hashlib.sha256(b"".join(each.numpy().tobytes() for each in network.state_dict().values())).hexdigest())
    told.recv()  # until all have ended, so that no replica is missed
    os._exit(0)


def serve(join_timeout: int, told: Connection) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    server = coordination.LighthouseServer(bind="[::]:0", min_replicas=1, join_timeout_ms=join_timeout)
    told.send(server.address())
    told.recv()
    os._exit(0)


def begin(function: Any, *arguments: Any) -> tuple[Any, Connection]:
    """Fork a process, which ends with this one."""
    ours, theirs = fork.Pipe()
    process = fork.Process(target=function, args=(*arguments, theirs), daemon=True)
    process.start()
    theirs.close()
    return process, ours


@dataclass
class Kill:
    """The steps around the death of a replica."""

    at: float
    survivors: list[list[Step]] = field(default_factory=list)
    back: float = 0.0

    @property
    def pause(self) -> float:
        """Seconds until all survivors have made a step without the replica."""
        return max(next(step.at for step in steps if step.is_committed) for steps in self.survivors) - self.at

    @property
    def dropped(self) -> int:
        return max(sum(not step.is_committed for step in steps) for steps in self.survivors)


class Replicas:
    """All replicas of a backend, and the lighthouse."""

    def __init__(self, backend: str, join_timeout: int) -> None:
        self._backend = backend
        self._lighthouse, self._told = begin(serve, join_timeout)
        self._address = self._told.recv()
        self._pipes = [self._begin(number) for number in range(REPLICAS)]
        self._killed_at = 0.0

    def _begin(self, number: int) -> Connection:
        return begin(replica, self._backend, number, self._address)[1]

    def _next(self, *, since: float) -> tuple[int, Any]:
        """Wait for a message of any replica; None if it has died."""
        pipe: Any = next(iter(wait(self._pipes, timeout=since + LATE - time.monotonic())), None)
        if pipe is None:
            raise TimeoutError(f"{self._backend}: replicas took longer than {LATE:.0f} s")
        try:
            return self._pipes.index(pipe), pipe.recv()
        except (EOFError, ConnectionResetError):
            return self._pipes.index(pipe), None

    def settle(self) -> int:
        """Wait until all have made some steps together and the dead are forgotten; return the latest step."""
        steps, begun, latest = [0] * REPLICAS, time.monotonic(), 0
        while min(steps) < STEADY_STEPS or time.monotonic() < self._killed_at + FORGOTTEN:
            number, step = self._next(since=begun)
            steps[number] = steps[number] + 1 if step.is_committed and step.replicas == REPLICAS else 0
            latest = step.number
        return latest

    def kill(self, victim: int, kind: str) -> Kill:
        """Kill a replica, start it again, and wait until it takes part."""
        self._pipes[victim].send(kind)
        begun, kill, steps = time.monotonic(), Kill(0.0), [list[Step]() for _ in range(REPLICAS)]
        while not kill.back:
            number, message = self._next(since=begun)
            if message is None:
                if number != victim or kill.at == 0.0:
                    raise ChildProcessError(f"{self._backend}: replica {number} has died by itself")
                self._pipes[victim] = self._begin(victim)
            elif isinstance(message, float):
                kill.at = self._killed_at = message
            elif number != victim:
                steps[number].append(message)
            elif kill.at and message.is_committed and message.replicas == REPLICAS:
                kill.back = message.at - kill.at
        kill.survivors = [
            [
                step
                for step in steps[number]
                if step.at > kill.at and (step.replicas < REPLICAS or not step.is_committed)
            ]
            for number in range(REPLICAS)
            if number != victim
        ]
        return kill

    def end(self) -> list[str]:
        """Let all make the same last step, and return the digests of their weights."""
        last = self.settle() + LAST_STEPS
        for pipe in self._pipes:
            pipe.send(last)
        digests, begun = [""] * REPLICAS, time.monotonic()
        while not all(digests):
            number, message = self._next(since=begun)
            if isinstance(message, str):
                digests[number] = message
        for pipe in (*self._pipes, self._told):
            pipe.send(None)
        return digests


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=20, help="kills of replicas over each process group")
    parser.add_argument("--per-turn", type=int, default=4, help="kills before the other process group has its turn")
    parser.add_argument("--join-timeout", type=int, default=100, help="ms for which a quorum waits for a replica")
    arguments = parser.parse_args()
    kills: dict[tuple[str, str], list[Kill]] = {(backend, kind): [] for backend in BACKENDS for kind in KINDS}
    for first in range(0, arguments.kills, arguments.per_turn):
        for backend in BACKENDS:
            replicas = Replicas(backend, arguments.join_timeout)
            for number in range(first, min(first + arguments.per_turn, arguments.kills)):
                replicas.settle()
                kind = KINDS[number % len(KINDS)]
                kill = replicas.kill(number % REPLICAS, kind)
                kills[backend, kind].append(kill)
                line = f"{kill.pause:.2f} s to the next step, {kill.dropped} dropped, back after {kill.back:.2f} s"
                print(f"{backend}, {kind}: {line}", file=sys.stderr, flush=True)
            digests = replicas.end()
            if len(set(digests)) > 1:
                raise SystemExit(f"{backend}: replicas have different weights")
    print("| process group | a replica dies | kills | next step after | at most | dropped steps | back after |")
    print("|---|---|---:|---:|---:|---:|---:|")
    for (backend, kind), found in kills.items():
        if found:
            pauses, backs = [kill.pause for kill in found], [kill.back for kill in found]
            dropped = sum(kill.dropped for kill in found)
            place = "inside of a collective" if kind == "inside" else "between two"
            print(
                f"| {backend} | {place} | {len(found)} | {statistics.median(pauses):.2f} s | {max(pauses):.2f} s "
                f"| {dropped} | {statistics.median(backs):.2f} s |"
            )


if __name__ == "__main__":
    main()
