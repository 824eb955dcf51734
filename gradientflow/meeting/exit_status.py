"""Exit status by which a process tells its launcher that it could not reach its job."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from gradientflow.errors import ArgumentError, CommunicationError, MismatchError

if TYPE_CHECKING:
    import types

UNREACHED = os.EX_TEMPFAIL  # exit status known to the launcher


@contextmanager
def reaching() -> Iterator[None]:
    """Mark errors of the ``with`` block, which reaches the job: an uncaught marked error exits with `UNREACHED`.

    Such an error is no fault of the program: the network is down, or does not lead to the meeting point.
    """
    try:
        yield
    except MismatchError:  # the job was reached, and refused this process
        raise
    except (ArgumentError, CommunicationError) as error:
        error.__dict__["_unreached"] = True
        if not isinstance(sys.excepthook, _Hook):
            sys.excepthook = _Hook()
        raise


class _Hook:
    """Exception hook that exits with `UNREACHED` after a marked error, or an error caused by one."""

    def __init__(self) -> None:
        self._before = sys.excepthook

    def __call__(self, kind: type[BaseException], error: BaseException, traceback: types.TracebackType | None) -> None:
        self._before(kind, error, traceback)
        found: BaseException | None = error
        seen: list[BaseException] = []
        while found is not None and found not in seen:
            if "_unreached" in found.__dict__:
                sys.exit(UNREACHED)
            seen.append(found)
            found = found.__cause__ or found.__context__


__all__ = ["UNREACHED", "reaching"]
