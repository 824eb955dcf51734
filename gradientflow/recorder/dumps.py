"""Files with the last calls of a process, written after an error that concerns other ranks.

A rank writes its file if a call finds that ranks made different calls, or fails because another rank is dead or silent;
if an exception ends its program; and if a SIGTERM ends it, as launchers do with ranks that are left over. The signal's
handler wakes a thread, so that a rank in an endless loop or in a blocking call writes its file, too.
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import signal
import stat
import sys
import tempfile
import threading
import time
from contextlib import suppress
from pathlib import Path
from types import TracebackType

from gradientflow._location import core
from gradientflow.annotations import JsonObject
from gradientflow.blocked_signals import signals_blocked
from gradientflow.errors import CommunicationError, GradientFlowError, MismatchError
from gradientflow.process_stat import stat_of

from . import entries as recorded
from .flight import write_flight_recording
from .job_name import job_name
from .private_file import write_privately

_KEPT_JOBS = 20  # in the folder for temporary files


def start(setting: str, size: int) -> None:
    """Know a communicator of `size` ranks with the setting ``dump``: "auto", "off" or a folder. The first counts."""
    global _recorder
    if setting == "off":
        return
    core.recorder.find_users_code_by(recorded.is_users)
    if size > 1 and (_recorder is None or not _recorder.is_of_this_process):
        _recorder = _Recorder(setting)


def dump(path: str | os.PathLike[str], reason: str = "asked", text: str = "") -> None:
    """Write the last calls of this process to a file of JSON lines, readable by this user only.

    Parameters
    ----------
    path : path
        The file, in a folder that exists.
    reason : str
        Cause of the report: a class of errors, or "asked".
    text : str
        Message of the error.
    """
    _write(Path(path), _report(reason, text))


class _Recorder:
    """The triggers of reports in this process, and their folder."""

    def __init__(self, setting: str) -> None:
        self._setting = setting
        self._process = os.getpid()
        self._breaks = 0
        self._next = 0.0  # earliest time of another report about a mismatch
        core.recorder.explain_errors_by(self._explain)
        self._hook, sys.excepthook = sys.excepthook, self._on_exception
        waker = os.eventfd(0, os.EFD_CLOEXEC) if hasattr(os, "eventfd") else -1
        if waker >= 0 and core.recorder.wake_at_end(waker):
            with signals_blocked():
                threading.Thread(
                    target=self._wait_for_end, args=(waker,), name="gradientflow recorder", daemon=True
                ).start()

    @property
    def is_of_this_process(self) -> bool:
        """False in a fork."""
        return self._process == os.getpid()

    def write(
        self,
        reason: str,
        text: str = "",
        stack: list[JsonObject] | None = None,
        exception: JsonObject | None = None,
    ) -> Path | None:
        """Write this rank's file; return the folder, or None if there is none."""
        report = _report(reason, text, stack, exception)
        if not self.is_of_this_process or report[0]["size"] < 2:
            return None
        with suppress(OSError):
            folder = self._folder(report[0]["job"])
            _write(folder / f"rank{report[0]['rank']}.jsonl", report)
            if self._setting != "auto":
                write_flight_recording(folder / f"torch_{report[0]['rank']}", report)
            return folder
        return None

    def _folder(self, job: str) -> Path:
        if self._setting != "auto":
            folder = Path(self._setting)
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            return folder
        root = Path(tempfile.gettempdir()) / f"gradientflow-{os.getuid()}"
        with suppress(FileExistsError):
            root.mkdir(mode=0o700)
        found = root.lstat()
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
            raise PermissionError(root)
        folder = root / job
        if not folder.exists():
            jobs = sorted(root.iterdir(), key=_time_of_change)
            for former in jobs[: 1 - _KEPT_JOBS]:
                shutil.rmtree(former, ignore_errors=True)
            folder.mkdir(mode=0o700, exist_ok=True)
        return folder

    def _explain(self, kind: str, text: str) -> str:
        """Return the text of an error, after a report if ranks differ or one is missing."""
        if kind == "MismatchError":
            is_new, self._next = time.monotonic() >= self._next, time.monotonic() + 1.0
        else:
            is_new, self._breaks = core.recorder.breaks() > self._breaks, core.recorder.breaks()
        folder = None
        with suppress(Exception):  # the error itself counts
            folder = self.write(kind, text) if is_new else None
        return text if folder is None else f"{text}; `gradientflow why {folder}` tells more"

    def _on_exception(self, kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        with suppress(Exception):
            stack = recorded.stack_of(trace)
            if not self._is_of_other_ranks(error):
                place = stack[-1] if stack else recorded.place(None, None)
                text = str(error) if isinstance(error, GradientFlowError) else ""
                self.write("exception", text, stack, {"exception": kind.__name__, **place})
            elif "gradientflow why" not in str(error):  # JAX has its own class for the core's errors
                self.write(kind.__name__, str(error), stack)
        self._hook(kind, error, trace)

    def _is_of_other_ranks(self, error: BaseException) -> bool:
        """Tell whether an exception, or one that caused it, comes from a failed call with other ranks."""
        seen: BaseException | None = error
        for _ in range(20):
            if seen is None:
                break
            if isinstance(seen, (CommunicationError, MismatchError)) or "the ranks made different" in str(seen):
                return True
            seen = seen.__cause__ or seen.__context__
        return core.recorder.breaks() > self._breaks

    def _wait_for_end(self, waker: int) -> None:
        os.eventfd_read(waker)
        with suppress(Exception):
            self.write("SIGTERM")
        core.recorder.end_by(signal.SIGTERM)


_recorder: _Recorder | None = None


def _report(
    reason: str, text: str, stack: list[JsonObject] | None = None, exception: JsonObject | None = None
) -> list[JsonObject]:
    """Return the lines of a report: a head, the calls, the stack, by default of the main thread, and an exception."""
    calls = recorded.calls()
    used = {call["communicator"] for call in calls}
    sources = recorded.communicators()
    largest = max(sources, key=lambda source: int(source["size"]), default={"size": 1, "job_rank": 0, "job": 0})
    head = {
        "gradientflow": "calls",
        "job": f"{largest['job']:08x}" if largest["job"] else job_name(os.environ),
        "rank": largest["job_rank"],
        "size": largest["size"],
        "host": platform.node(),
        "process": os.getpid(),
        "time": time.time(),
        "reason": reason,
        "text": text,
        "states": _states_of_ranks() if reason != "exception" else {},
        "communicators": [source for source in sources if source["communicator"] in used],
    }
    lines = [head, *calls, {"stack": recorded.main_stack() if stack is None else stack}]
    return lines if exception is None else [*lines, exception]


def _states_of_ranks() -> dict[str, str]:
    """Return the states of the processes on this host, by rank in the job: T is a stopped process."""
    processes: dict[int, int] = {}
    for source in core.recorder.sources():
        processes.update(zip(source["members"], source["pids"], strict=True))
    states = {}
    for rank, process in processes.items():
        if process != 0:
            with suppress(OSError):
                states[str(rank)] = stat_of(process)[0]
    return states


def _write(path: Path, report: list[JsonObject]) -> None:
    write_privately(path, "".join(json.dumps(line) + "\n" for line in report).encode())


def _time_of_change(path: Path) -> float:
    """Return the time of the last change; 0 if another rank has removed the folder."""
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0
