"""What a process tells the launcher that has started it, when it could not reach its job."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from gradientflow.errors import ArgumentError, CommunicationError, MismatchError

if TYPE_CHECKING:
    import types

UNREACHED = os.EX_TEMPFAIL  # exit status; the launcher knows it


@contextmanager
def reaching() -> Iterator[None]:
    """Reach the job inside the block: the program that ends by an error of the block ends with `UNREACHED`.

    Such an end is none of the program's: the network is down, or does not lead to where the ranks meet.
    """
    try:
        yield
    except MismatchError:  # the job was reached, and refuses this process
        raise
    except (ArgumentError, CommunicationError) as error:
        error.__dict__["_unreached"] = True
        if not isinstance(sys.excepthook, _Hook):
            sys.excepthook = _Hook()
        raise


class _Hook:
    """Has the program end with `UNREACHED` by errors that are marked, or that these have led to."""

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
