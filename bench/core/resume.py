"""Finished parts of a measurement in a file, from which an interrupted run can be resumed."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING

from gradientflow.annotations import JsonObject, JsonValue
from gradientflow.whole_file import whole_file

from .objects import from_root
from .plan import PlanError

if TYPE_CHECKING:
    from gradientflow.communicator import Communicator


class ResumeFile:
    """The finished parts of a measurement, each a line of JSON that is written as soon as the part is measured.

    Parameters
    ----------
    comm : Communicator
        The ranks; construction is collective. Rank 0 reads and writes.
    path : str or None
        The file, which need not exist yet; None to keep nothing.
    conditions : mapping of str to str
        The conditions that all parts must share: the plan, the machine, the libraries.

    Attributes
    ----------
    started_at : list of str
        The times at which the measurement began and was resumed.

    Raises
    ------
    PlanError
        On rank 0, if the file has other content, was written under other conditions, or cannot be written; earlier
        parts stay in the file. It ends the job.
    """

    def __init__(self, comm: Communicator, path: str | None, conditions: Mapping[str, str]) -> None:
        self.started_at: list[str] = []
        self._parts: JsonObject = {}
        self._path = Path(path) if path is not None and comm.rank == 0 else None
        if self._path is not None:
            self._open(self._path, dict(conditions))
        self.started_at, self._parts = from_root(comm, (self.started_at, self._parts))

    def part(self, name: str, measure: Callable[[], object]) -> JsonValue:
        """Return a part of the measurement from the file, equal on all ranks, or measure it. Collective.

        Parameters
        ----------
        name : str
            The name of the part.
        measure : callable
            Measures the part, and returns it as JSON data. Collective.
        """
        if name not in self:
            self._parts[name] = measure()
            self._write({"part": name, "values": self._parts[name]})
        return self._parts[name]

    def __contains__(self, name: str) -> bool:
        """Tell if a part is finished."""
        return name in self._parts

    def _open(self, path: Path, conditions: dict[str, str]) -> None:
        records = _read(path)
        if records:
            before = records[0]["conditions"]
            for name in before.keys() | conditions.keys():
                was, now = before.get(name), conditions.get(name)
                if was != now:
                    raise PlanError(
                        f"{path} holds what was measured with {name} {was}, and now that is {now}: make it the same, "
                        "or give --resume another file"
                    )
        else:
            records = [{"conditions": conditions}]
        for record in records:
            if "part" in record:
                self._parts[record["part"]] = record["values"]
        records.append({"began": datetime.now(timezone.utc).isoformat(timespec="seconds")})
        self.started_at = [record["began"] for record in records if "began" in record]
        with _told(path), whole_file(path) as file:  # drops an incomplete last line
            file.write("".join(json.dumps(record) + "\n" for record in records).encode())

    def _write(self, record: Mapping[str, object]) -> None:
        if self._path is None:
            return
        with _told(self._path), self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(record, default=float) + "\n")
            file.flush()
            os.fsync(file.fileno())


@contextmanager
def _told(path: Path) -> Iterator[None]:
    """Turn a failed write, for example on a full disk, into an error which says that the file keeps its content."""
    try:
        yield
    except OSError as error:
        raise PlanError(f"{path} cannot be written, and holds what was kept before: {error}") from error


def _read(path: Path) -> list[JsonObject]:
    """Give the complete lines of a file; none if the file is missing or empty."""
    refusal = PlanError(f"{path} is no file that --resume has written: give it another one")
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except FileNotFoundError:
        return []
    except (OSError, UnicodeDecodeError):
        raise refusal from None
    try:
        records = [json.loads(line) for line in lines[:-1]]
    except ValueError:
        raise refusal from None
    if not records and lines == [""]:
        return []
    if not all(isinstance(record, dict) for record in records) or not records or "conditions" not in records[0]:
        raise refusal
    return records
