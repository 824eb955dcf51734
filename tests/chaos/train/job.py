"""Training runs, in some of which ranks are killed and started again."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gradientflow.bench.train.data import digits
from gradientflow.launch import module_command, scratch_folder

from ranks import rank_command

_PATIENCE = 120.0  # seconds


@dataclass
class Death:
    """A rank that was killed.

    Attributes
    ----------
    at : float
        When, in seconds since the first step.
    ready : float or None
        Seconds that the process that came in its place took for its imports and data, if it came.
    processor : float or None
        Seconds of them in which it had a processor.
    back : float or None
        Seconds until that had made its first step.
    """

    at: float
    ready: float | None = None
    processor: float | None = None
    back: float | None = None


@dataclass
class Training:
    """A run.

    Attributes
    ----------
    seconds : float
        How long it took, from its first step.
    points : list of (float, int, float, int)
        Seconds since the first step, samples since the point before, their loss on rank 0, and the ranks then.
    deaths : list of Death
        Of its ranks.
    """

    seconds: float
    points: list[tuple[float, int, float, int]] = field(default_factory=list)
    deaths: list[Death] = field(default_factory=list)

    @property
    def samples_per_second(self) -> float:
        """Of all ranks."""
        return sum(samples for _, samples, _, _ in self.points) / self.seconds


def run(
    ranks: int, batch: int, strategy: str, seconds: float, kill_every: float | None, seed: int, preload: str
) -> Training:
    """Train for so long, and kill a rank at intervals.

    Parameters
    ----------
    ranks : int
        How many.
    batch : int
        Samples of a rank in a step.
    strategy : str
        How they are synchronized.
    seconds : float
        How long, from the first step.
    kill_every : float or None
        Seconds between two deaths; None for none.
    seed : int
        Of who dies.
    preload : str
        The modules that processes have when they start, separated by commas.
    """
    with scratch_folder() as (folder, _):
        data = Path(folder, "digits.npz")
        digits(28).save(data)
        return _run(ranks, [str(batch), strategy, str(data)], seconds, kill_every, random.Random(seed), preload)


def _run(
    ranks: int, arguments: list[str], seconds: float, kill_every: float | None, chosen: random.Random, preload: str
) -> Training:
    said: list[dict[str, Any]] = []
    command = rank_command("train.rank", arguments)
    options = ["-n", str(ranks), "--transport", "tcp", "--min-ranks", "1", "--restart", "1000"]
    options += ["--preload", preload] if preload else []
    launch = module_command("gradientflow.cli", ["run", *options, "--", *command])
    with subprocess.Popen(launch, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        reader = threading.Thread(target=_read, args=(process, said), daemon=True)
        reader.start()
        killed: list[tuple[int, float]] = []
        try:
            _await(lambda: len(_pids(said, "takes_part")) == ranks, process)
            start = time.monotonic()
            for number in range(1, int(seconds / kill_every) + 1 if kill_every else 1):
                assert kill_every is not None
                time.sleep(max(0.0, start + number * kill_every - time.monotonic()))
                living = sorted(_pids(said, "takes_part") - {pid for pid, _ in killed})
                if len(living) > 1 and number * kill_every < seconds:
                    victim = chosen.choice(living)
                    os.kill(victim, signal.SIGKILL)
                    killed.append((victim, time.monotonic()))
            time.sleep(max(0.0, start + seconds - time.monotonic()))
        finally:
            process.terminate()
        process.wait()
        reader.join(_PATIENCE)
    return figures(said, start, seconds, killed)


def figures(said: list[dict[str, Any]], start: float, seconds: float, killed: list[tuple[int, float]]) -> Training:
    """Make a run of what its ranks have said.

    Parameters
    ----------
    said : list of dict
        Each with the time and the process.
    start, seconds : float
        When the first step was made, and how long the run is.
    killed : list of (int, float)
        The processes, and when.
    """
    points = [(line["at"] - start, line["samples"], line["loss"], line["size"]) for line in said if "samples" in line]
    found = Training(seconds, [point for point in points if 0 < point[0] <= seconds])
    newcomers = [line for line in said if "ready" in line and line["at"] > start]
    for (_, at), line in zip(killed, newcomers, strict=False):
        took_part = [each["at"] for each in said if "takes_part" in each and each["pid"] == line["pid"]]
        back = took_part[0] - at if took_part else None
        found.deaths.append(Death(at - start, line["ready"], line["processor"], back))
    found.deaths += [Death(at - start) for _, at in killed[len(newcomers) :]]
    return found


def _pids(said: list[dict[str, Any]], what: str) -> set[int]:
    return {line["pid"] for line in said if what in line}


def _read(process: subprocess.Popen[str], said: list[dict[str, Any]]) -> None:
    assert process.stdout is not None
    said.extend(json.loads(line) for line in process.stdout)


def _await(holds: Callable[[], bool], process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + _PATIENCE
    while not holds():
        if time.monotonic() > deadline or process.poll() is not None:
            raise RuntimeError("the ranks have not begun to train")
        time.sleep(0.01)
