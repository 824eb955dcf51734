"""Program of a rank of `gradientflow.spawn`: calls the function, and writes its outcome to a file.

The folder holds the call, and gets the outcome of each rank. All files are pickles, which only processes of one user
exchange here.
"""

from __future__ import annotations

import io
import os
import pickle
import sys
import time
import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cloudpickle

from gradientflow.errors import ArgumentError

CALL = "call"


class EndedError(Exception):
    """Cause of an exception raised on a rank: names the rank, and has its traceback."""

    def __init__(self, rank: int, text: str) -> None:
        super().__init__(f"rank {rank} raised it:\n\n{text}")


@dataclass(frozen=True)
class CallOutcome:
    """Outcome of the call on a rank.

    Attributes
    ----------
    has_come : bool
        True if the function has returned or raised an exception.
    value : bytes
        Its result, pickled.
    error : BaseException, optional
        Exception that it raised.
    traceback : str
        Traceback of the exception.
    time : float
        Time of the outcome, by the machine's clock.
    """

    has_come: bool = False
    value: bytes = b""
    error: BaseException | None = None
    traceback: str = ""
    time: float = 0.0

    def result(self) -> Any:
        """Return the result of the function."""
        return pickle.loads(self.value) if self.value else None


def dump(value: object) -> bytes:
    """Pickle a value, including functions and classes that another process cannot import."""
    file = io.BytesIO()
    cloudpickle.dump(value, file)
    return file.getvalue()


def read_outcome(folder: str, rank: int) -> CallOutcome:
    """Return the outcome of a rank; an empty one if the rank has not written it."""
    try:
        has_value, data, text, moment = pickle.loads(Path(folder, str(rank)).read_bytes())
    except (OSError, EOFError, pickle.UnpicklingError):  # the rank ended before or while writing
        return CallOutcome()
    if has_value:
        return CallOutcome(has_come=True, value=data, time=moment)
    return CallOutcome(has_come=True, error=pickle.loads(data), traceback=text, time=moment)


def main() -> int:
    """Call the function; return the exit status."""
    folder, rank = sys.argv[1], int(os.environ["GRADIENTFLOW_RANK"])
    sys.argv[1:] = []
    text, has_value = "", False
    try:
        data, has_value = _call(Path(folder, CALL), rank), True
    except Exception as error:
        moment, text = time.monotonic(), "".join(traceback.format_exception(error))
        data = _dump_error(error)
    else:
        moment = time.monotonic()
    Path(folder, str(rank)).write_bytes(pickle.dumps((has_value, data, text, moment)))
    return 0 if has_value else 1


def _call(path: Path, rank: int) -> bytes:
    """Call the function, and return its pickled result."""
    sys.path[:], call = pickle.loads(path.read_bytes())
    try:
        function, args = pickle.loads(call)
    except Exception as error:
        message = f"rank {rank} cannot load the function or its arguments: {type(error).__name__}: {error}"
        raise ArgumentError(message) from error
    returned = function(*args)
    try:
        return dump(returned)
    except Exception as error:
        message = f"what rank {rank} returns, a {type(returned).__name__}, cannot be sent to another process: {error}"
        raise ArgumentError(message) from error


def _dump_error(error: Exception) -> bytes:
    """Pickle an exception. If it cannot be pickled and loaded again, pickle a RuntimeError with its text."""
    try:
        data = dump(error)
        pickle.loads(data)
    except Exception:
        return pickle.dumps(RuntimeError(f"{type(error).__name__}: {error}"))
    return data


if __name__ == "__main__":
    sys.exit(main())
