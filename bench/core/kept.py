"""What has been measured so far, in a file, so that a run that was stopped can go on."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gradientflow.whole_file import whole_file

from .plan import PlanError

if TYPE_CHECKING:
    from gradientflow.communicator import Communicator


class Kept:
    """The parts of a measurement that are done. Each is a line of JSON, written as soon as it is there.

    Parameters
    ----------
    comm : Communicator
        The ranks, which make one together; rank 0 reads and writes.
    path : str or None
        The file, which need not be there yet; None to keep nothing.
    conditions : mapping of str to str
        What has to be the same for parts to belong together: the plan, the machine, the libraries.

    Attributes
    ----------
    sittings : list of str
        When measuring began and went on.

    Raises
    ------
    PlanError
        On rank 0, if the file is something else, or was written under other conditions, or cannot be written: what
        was kept before is there still. It ends the job.
    """

    def __init__(self, comm: Communicator, path: str | None, conditions: Mapping[str, str]) -> None:
        self.sittings: list[str] = []
        self._parts: dict[str, Any] = {}
        self._path = Path(path) if path is not None and comm.rank == 0 else None
        if self._path is not None:
            self._open(self._path, dict(conditions))
        self.sittings, self._parts = comm.mpi.bcast((self.sittings, self._parts), 0)

    def part(self, name: str, measure: Callable[[], Any]) -> Any:
        """Return a part of the measurement: as it was kept, on all ranks alike, or else as it is measured now.

        Parameters
        ----------
        name : str
            Which part.
        measure : callable
            Gives it as what JSON can hold; all ranks together.
        """
        if name not in self:
            self._parts[name] = measure()
            self._write({"part": name, "values": self._parts[name]})
        return self._parts[name]

    def __contains__(self, name: str) -> bool:
        """Tell whether a part is done."""
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
        self.sittings = [record["began"] for record in records if "began" in record]
        with _told(path), whole_file(path) as file:  # without the beginning of a line that was never ended
            file.write("".join(json.dumps(record) + "\n" for record in records).encode())

    def _write(self, record: Mapping[str, Any]) -> None:
        if self._path is None:
            return
        with _told(self._path), self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(record, default=float) + "\n")
            file.flush()
            os.fsync(file.fileno())


@contextmanager
def _told(path: Path) -> Iterator[None]:
    """Say of a file that cannot be written, for example on a full disk, that what is in it stays."""
    try:
        yield
    except OSError as error:
        raise PlanError(f"{path} cannot be written, and holds what was kept before: {error}") from error


def _read(path: Path) -> list[dict[str, Any]]:
    """Give the lines of a file, less a last one that was cut off; none where there is no file, or an empty one."""
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
