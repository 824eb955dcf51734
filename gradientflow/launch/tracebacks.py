"""Tracebacks in the output of ranks: equal ones are shown once, and without the frames inside of this package.

Launchers load this file by its path: it imports nothing of the package.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping

_PACKAGE = re.escape(os.fsencode(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
_RANK = rb"(?:\[rank\d+\]: )?"  # written by PyTorch's process groups
_FIRST_LINE = rb"^" + _RANK + rb"(?:Traceback \(most recent call last\):|  File \"[^\n]*\", line \d+)\n"
_BEGIN = re.compile(_FIRST_LINE, re.MULTILINE)
_WHOLE = re.compile(
    _FIRST_LINE + rb"(?:" + _RANK + rb"  [^\n]*\n)+" + _RANK + rb"(?!\[rank\d+\]: )[^ \n][^\n]*\n",
    re.MULTILINE,
)
_FRAME = rb"(?:" + _RANK + rb"  File \"" + _PACKAGE + rb"/[^\n]*\n(?:" + _RANK + rb"    [^\n]*\n)*)"
_INNER = re.compile(_FRAME + rb"+(?=" + _RANK + rb"gradientflow\.errors\.(?!InternalError))")


def begin_of_traceback(lines: bytes) -> int:
    """Return where the first traceback begins; -1 without one."""
    found = _BEGIN.search(lines)
    return -1 if found is None else found.start()


def shortened(text: bytes) -> bytes:
    """Leave out the innermost frames if they are inside of this package, and their error reports no bug of it."""
    return text if os.environ.get("GRADIENTFLOW_DEBUG") == "on" else _INNER.sub(b"", text)


def merged(texts: Mapping[int, bytes]) -> list[tuple[list[int], bytes]]:
    """Merge texts of ranks that begin with equal tracebacks.

    Parameters
    ----------
    texts : mapping of int to bytes
        Texts by rank.

    Returns
    -------
    list of (list of int, bytes)
        Ranks, and lines that they have in common. A rank's own lines follow the lines that it shares.
    """
    same: dict[bytes, list[int]] = {}
    for rank in sorted(texts):
        same.setdefault(traceback_in(texts[rank]), []).append(rank)
    found = []
    for traceback, ranks in same.items():
        if not traceback:
            found += [([rank], texts[rank]) for rank in ranks]
            continue
        common = _common_lines([_plain(texts[rank]) for rank in ranks]) if len(ranks) > 1 else 0
        if common:
            found.append((ranks, b"".join(_plain(texts[ranks[0]]).splitlines(keepends=True)[:common])))
        for rank in ranks:
            if rest := b"".join(texts[rank].splitlines(keepends=True)[common:]):
                found.append(([rank], rest))
    return found


def traceback_in(text: bytes) -> bytes:
    """Return a text up to the end of its last whole traceback, without PyTorch's name of the rank."""
    ends = [found.end() for found in _WHOLE.finditer(text)]
    return _plain(text[: ends[-1]]) if ends else b""


def named(ranks: Iterable[int]) -> bytes:
    """Return words for ranks in ascending order, such as ``ranks 0-3, 6``."""
    runs: list[list[int]] = []
    for rank in ranks:
        if runs and runs[-1][-1] == rank - 1:
            runs[-1][1:] = [rank]
        else:
            runs.append([rank])
    words = ", ".join("-".join(map(str, run)) for run in runs)
    return f"rank{'s' if len(runs) > 1 or len(runs[0]) > 1 else ''} {words}".encode()


def _plain(text: bytes) -> bytes:
    return re.sub(rb"^" + _RANK, b"", text, flags=re.MULTILINE)


def _common_lines(texts: list[bytes]) -> int:
    number = 0
    for lines in zip(*(text.splitlines(keepends=True) for text in texts), strict=False):
        if len(set(lines)) > 1:
            break
        number += 1
    return number
