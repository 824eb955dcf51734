"""Ranks for a single call of a function: processes of this machine, over TCP and node memory."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from gradientflow.errors import ArgumentError, ArgumentTypeError, PeerError

from .command import module_command
from .environment import asked_binding
from .jax_rank import jax_program
from .scratch import scratch_folder
from .spawned import CALL, CallOutcome, EndedError, dump, read_outcome
from .tcp import GRACE_SECONDS, job_here, tcp_command

_Result = TypeVar("_Result")

_REPORT = "report"
_ENDING_SECONDS = GRACE_SECONDS + 10.0  # longer than the launcher takes to end all ranks


def spawn(function: Callable[..., _Result], ranks: int, *args: object, jax: bool = False) -> list[_Result]:
    """Call a function on new ranks of this machine, and return the results of all ranks.

    The ranks are processes, and form a job over TCP and node memory: `gradientflow.init` in the function returns their
    communicator. Their output goes to this process's output. They end with this process, however it ends. If an
    exception, such as that of Ctrl-C, leaves `spawn`, the ranks have already ended: they got a SIGTERM and 30 seconds.

    Parameters
    ----------
    function : callable
        Function to call, on every rank with the same arguments. It is sent by cloudpickle, so it may be defined in a
        notebook, in the program itself or in another function. Objects that it uses from ``__main__`` are copied.
    ranks : int
        Number of ranks to start.
    *args
        The arguments.
    jax : bool, default False
        True to give the ranks the environment of ``gradientflow run --jax``.

    Returns
    -------
    list
        Results of the function, by rank.

    Raises
    ------
    Exception
        Exception raised by the function on a rank. Its cause names the rank, and has the traceback. After a failure,
        the surviving ranks have three seconds to notice it, and are then ended.
    gradientflow.errors.PeerError
        If a rank has ended by other means, for example killed by a signal.
    gradientflow.errors.ArgumentError
        If the function, its arguments or its result cannot be sent to another process.
    """
    if not callable(function):
        raise ArgumentTypeError(f"spawn calls a function, and {function!r} is none")
    with scratch_folder("gradientflow-spawn-") as (folder, _):
        program = module_command(f"{__package__}.spawned", [folder])
        job = job_here(ranks, jax_program(program) if jax else program, bind=asked_binding())
        try:
            call = dump((function, args))
        except Exception as error:
            raise ArgumentError(f"the function or its arguments cannot be sent to another process: {error}") from error
        Path(folder, CALL).write_bytes(dump((sys.path, call)))
        report = Path(folder, _REPORT)
        status = _run(tcp_command(job, parent=os.getpid(), report=str(report)))
        ended = _read_report(report)
        outcomes = [read_outcome(folder, rank) for rank in range(ranks)]
        _raise_first(outcomes, ended)
        if status != 0:
            raise PeerError(f"the launcher of the ranks has ended with exit status {status}")
        return [_result(outcome, rank) for rank, outcome in enumerate(outcomes)]


def _result(outcome: CallOutcome, rank: int) -> Any:
    try:
        return outcome.result()
    except Exception as error:
        message = f"what rank {rank} has returned cannot be loaded here: {type(error).__name__}: {error}"
        raise ArgumentError(message) from error


def _run(command: list[str]) -> int:
    """Run the launcher to its end. It ends with this process; an exception here ends it and its ranks.

    A second exception, as from a second Ctrl-C, ends the ranks at once.
    """
    launcher = subprocess.Popen(command, stdin=subprocess.DEVNULL)
    try:
        return launcher.wait()
    except BaseException:
        launcher.send_signal(signal.SIGTERM)
        try:
            with contextlib.suppress(subprocess.TimeoutExpired):
                launcher.wait(_ENDING_SECONDS)
        finally:
            launcher.kill()
            launcher.wait()
        raise


def _read_report(path: Path) -> dict[int, str]:
    """Return the ranks that failed before the launcher ended any rank, in order, each with the way it ended."""
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    return {rank: each["how"] for each in map(json.loads, lines) for rank in each["ranks"]}


def _raise_first(outcomes: list[CallOutcome], ended: dict[int, str]) -> None:
    """Raise the cause if the job has failed. Errors that only follow from the loss of another rank come last."""
    missing = [rank for rank, outcome in enumerate(outcomes) if not outcome.has_come]
    for rank in filter(ended.get, missing):
        raise PeerError(f"rank {rank} {ended[rank]} before the function returned")
    failed = [(outcome, rank) for rank, outcome in enumerate(outcomes) if outcome.error is not None]
    if failed:
        outcome, rank = min(failed, key=lambda each: (isinstance(each[0].error, PeerError), each[0].time))
        assert outcome.error is not None
        raise outcome.error from EndedError(rank, outcome.traceback)
    for rank in missing:
        raise PeerError(f"rank {rank} has ended before the function returned")
    for rank, how in ended.items():
        raise PeerError(f"rank {rank} {how} after the function had returned")
