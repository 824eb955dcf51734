"""Put faults into the product, one at a time, and tell which of them the tests find.

See README.md in this folder. Exit status 1 if a fault is not found, does not apply or does not compile.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import click
from faults import ROOT, Fault, all_faults
from mutants import mutants
from rich.console import Console
from rich.progress import track
from rich.table import Table

# The marks of the tests that find a fault, from those that run most often.
_FINDERS = {"pytest": [], ".ci/run": ["-m", "thorough and not slow"], "slow tests": ["-m", "slow"]}

_NOTHING = 5  # exit statuses of pytest: where no test is selected
_PASSED = (0, _NOTHING)
_FAILED = (1, 2)  # 2 where its workers were told to stop after a failure
_COMPILED = ("kernels/", "bindings/")


class Checkout:
    """A git worktree with a core of its own, which tests import in place of the installed package."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.build()
        self._pass_without: dict[str, bool] = {}
        # The package that is installed has the benchmarks under this name.
        (folder / "gradientflow" / "bench").symlink_to("../bench")

    def build(self) -> bool:
        """Compile what has changed, and tell whether that succeeded."""
        return self._run([sys.executable, "setup.py", "--quiet", "build_ext", "--inplace"]).returncode == 0

    def test(self, arguments: Sequence[str]) -> int:
        """Run tests until one fails, and return the exit status of pytest."""
        command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *arguments]
        return self._run(command).returncode

    def passes(self, arguments: Sequence[str]) -> bool:
        """Tell whether tests pass, once: with a fault, that is no answer."""
        key = " ".join(arguments)
        if key not in self._pass_without:
            self._pass_without[key] = self.test([*arguments, "-m", "not slow"]) in _PASSED
        return self._pass_without[key]

    @contextmanager
    def with_fault(self, fault: Fault) -> Iterator[bool]:
        """Apply a fault for a while; yield whether it applies and compiles."""
        applied = self._run(["git", "apply", "-"], fault.patch).returncode == 0
        compiled = any(file.startswith(_COMPILED) for file in fault.files)
        try:
            yield applied and (not compiled or self.build())
        finally:
            self._run(["git", "checkout", "--quiet", "."])
            if compiled:
                self.build()

    def _run(self, command: Sequence[str], text: str | None = None) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, "PYTHONPATH": str(self._folder), "GRADIENTFLOW_CUDA": "off"}
        with (self._folder.parent / "log").open("a") as log:
            log.write(f"\n$ {' '.join(command)}\n")
            log.flush()
            return subprocess.run(
                command, cwd=self._folder, env=environment, input=text, stdout=log, stderr=log, text=True, check=False
            )


@contextmanager
def checkout(keep: bool) -> Iterator[Checkout]:
    """Make a checkout of the current commit, and remove it."""
    base = Path(tempfile.mkdtemp(prefix="gradientflow-faults-"))
    folder = base / "checkout"
    git = ["git", "-C", str(ROOT), "worktree"]
    subprocess.run([*git, "add", "--quiet", "--detach", str(folder)], check=True)
    try:
        yield Checkout(folder)
    finally:
        if keep:
            click.echo(f"kept: {base}, with a log of all commands", err=True)
        else:
            subprocess.run([*git, "remove", "--force", str(folder)], check=True)
            shutil.rmtree(base)


def outcome_of(fault: Fault, at: Checkout) -> str:
    """Tell who finds a fault: the first of the finders, nobody; or why that is not known."""
    if not all(map(at.passes, fault.tests)):
        return "tests fail without it"
    with at.with_fault(fault) as is_there:
        if not is_there:
            return "does not apply or compile"
        selects = False
        for finder, marks in _FINDERS.items():
            statuses = [at.test([*arguments, *marks]) for arguments in fault.tests]
            if any(status in _FAILED for status in statuses):
                return finder
            selects = selects or any(status != _NOTHING for status in statuses)
        return "nobody" if selects else "no test is selected"


@click.command()
@click.argument("names", nargs=-1)
@click.option("--list", "lists", is_flag=True, help="Show the faults, and check none.")
@click.option("--mutants", "number", type=click.IntRange(1), help="Check so many random mutants of Python lines.")
@click.option("--seed", default=0, show_default=True, help="Of the mutants.")
@click.option("--json", "json_file", type=click.Path(dir_okay=False), help="Write the outcomes to a file.")
@click.option("--keep", is_flag=True, help="Keep the worktree and the log of all commands.")
def main(names: tuple[str, ...], lists: bool, number: int | None, seed: int, json_file: str | None, keep: bool) -> None:
    """Put faults into the product, one at a time, and tell which of them the tests find."""
    faults = mutants(ROOT, number, seed) if number else all_faults()
    if unknown := set(names) - {each.name for each in faults}:
        raise click.BadParameter(f"there is no fault {', '.join(sorted(unknown))}: --list shows them")
    chosen = [each for each in faults if not names or each.name in names]
    console = Console()
    table = Table("fault", "found by", "s", box=None)
    found: dict[str, str] = {}
    if lists:
        for each in chosen:
            console.print(f"{each.name}: {each.title}", highlight=False)
        return
    with checkout(keep) as at:
        for fault in track(chosen, "faults", console=Console(stderr=True), disable=not sys.stderr.isatty()):
            begin = time.monotonic()
            found[fault.name] = outcome_of(fault, at)
            table.add_row(f"{fault.name}: {fault.title}", found[fault.name], f"{time.monotonic() - begin:.0f}")
            if not console.is_terminal:
                click.echo(f"{fault.name}: {found[fault.name]}")
            if json_file:
                Path(json_file).write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    console.print(table)
    counts = Counter(found.values())
    console.print(f"{len(found)} faults: {', '.join(f'{counts[finder]} {finder}' for finder in [*_FINDERS, 'nobody'])}")
    sys.exit(sum(counts[finder] for finder in _FINDERS) < len(found) and not number)


if __name__ == "__main__":
    main()
