"""The faults of this folder: one small patch of the product each, and the tests that must fail with it."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path

FOLDER = Path(__file__).resolve().parent
ROOT = FOLDER.parents[1]

_FAILS = "fails: "


@dataclass(frozen=True)
class Fault:
    """A change of the product that tests must notice.

    Attributes
    ----------
    name : str
        Name of the file, or place of the mutant.
    title : str
        The fault, in a sentence.
    tests : list of list of str
        Arguments for pytest. One run of pytest for each list; one of them must fail.
    patch : str
        The change, as `git apply` reads it.
    """

    name: str
    title: str
    tests: list[list[str]]
    patch: str

    @property
    def files(self) -> list[str]:
        """Paths of the changed files, from the root of the repository."""
        return [line.removeprefix("+++ b/") for line in self.patch.splitlines() if line.startswith("+++ b/")]


def read_fault(file: Path) -> Fault:
    """Read a fault from its file.

    Raises
    ------
    ValueError
        If the file names no test.
    """
    head, _, patch = file.read_text(encoding="utf-8").partition("\n\n")
    title, *fails = head.splitlines()
    if not fails or not all(line.startswith(_FAILS) for line in fails):
        raise ValueError(f"{file}: a title, and lines that begin with {_FAILS!r}, come before the patch")
    return Fault(file.stem, title, [shlex.split(line.removeprefix(_FAILS)) for line in fails], patch)


def all_faults() -> list[Fault]:
    """Read all faults of this folder, by name."""
    return [read_fault(file) for file in sorted(FOLDER.glob("*.patch"))]
