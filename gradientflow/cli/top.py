"""``gradientflow top``: watch a running job, rank by rank."""

from __future__ import annotations

import os
import select
import sys
import termios
import time
import tty
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from pathlib import Path

import click
from rich.console import Console, RenderableType
from rich.live import Live

from gradientflow.annotations import JsonObject
from gradientflow.cli.top_view import head, job_table, picture, sentences_about, stack_lines
from gradientflow.errors import ArgumentError, CommunicationError
from gradientflow.json_option import JsonOutput, json_option
from gradientflow.meeting.plan import PREFIX
from gradientflow.meeting.stores import TOKEN
from gradientflow.tables import plain_table, print_table
from gradientflow.terminal import open_console, print_text
from gradientflow.watch.at_store import Asker
from gradientflow.watch.client import Rank, ask
from gradientflow.watch.job import JobState, JobWatch

_LOOKS = 5  # of --once
_DUMP_SECONDS = 10.0
_KEYS = "q quit   s stacks"
_DUMPS = "   d dump the last calls"
_NO_JOB = (
    "no job of this user runs on this machine: start one, such as gradientflow run -n 2 -- python train.py; "
    "ranks with GRADIENTFLOW_WATCH=off are not seen"
)

_NO_STORE = (
    "ranks answer at the meeting point of gradientflow run --transport tcp, gf.init(meet=) and GRADIENTFLOW_MEET; of "
    "other jobs, such as those of mpirun and torchrun, run gradientflow top on each host"
)
_Question = Callable[..., list[Rank]]  # asks the ranks of a job, as `ask` does


@click.command()
@click.argument("job", required=False)
@click.option("--once", is_flag=True, help="Print one table and end; the default if standard output is no terminal.")
@click.option("--stacks", is_flag=True, help="Print the Python stacks of all threads as well, and end.")
@click.option(
    "--interval",
    type=click.FloatRange(0.1, 60),
    default=1.0,
    show_default=True,
    metavar="SECONDS",
    help="Time between two looks.",
)
@click.option("--meet", metavar="HOST:PORT", help="Address where the ranks of a job on any hosts have met, over TCP.")
@json_option
def top(
    job: str | None, once: bool, stacks: bool, interval: float, meet: str | None, json_output: JsonOutput | None
) -> int:
    """Watch a running job of this user on this machine: rates, waits and memory of each rank.

    JOB is the begin of a job's name, the number of a process, or the name of the program; it can be left out if one job
    runs. A rank with * is one that other ranks mostly wait for.

    --meet asks all ranks of a job, on all hosts. GRADIENTFLOW_TOKEN must be the job's token, as for gf.join().
    """
    question: _Question
    if meet is not None:
        question = _at_meeting_point(meet)
    else:
        found = ask("status")
        names = list(dict.fromkeys(each.name.job for each in found if _matches(each, job)))
        if not names:
            raise ArgumentError(_NO_JOB if not found else f"no job is {job}: {_names(found)}")
        if len(names) > 1:
            if job is not None:
                raise ArgumentError(f"{job} means several jobs: {_names(found)}")
            _print_jobs(found, json_output)
            return 0
        question = partial(ask, job=names[0])
    console = open_console()
    if once or stacks or json_output or not (console.is_terminal and sys.stdin.isatty()):
        _print_once(question, console, interval, stacks, json_output)
    else:
        _Screen(question, console, interval, writes_dumps=meet is None).run()
    return 0


def _at_meeting_point(meet: str) -> _Question:
    """Return the function that asks the ranks of a job through the store where they have met."""
    try:
        asker = Asker(meet, os.environ.get(TOKEN, ""), PREFIX)
    except CommunicationError as error:
        raise ArgumentError(f"{error}; {_NO_STORE}") from error
    if not asker.ask("status"):
        raise ArgumentError(f"no rank answers at {meet}; {_NO_STORE}")
    return asker.ask


def _matches(rank: Rank, job: str | None) -> bool:
    program = (rank.said or {}).get("program")
    return job is None or rank.name.job.startswith(job) or job in (str(rank.name.pid), program)


def _names(found: Sequence[Rank]) -> str:
    programs = {each.name.job: each.said["program"] for each in found if each.said}
    jobs = dict.fromkeys(each.name.job for each in found)
    return "name one of " + ", ".join(f"{each} ({programs.get(each, 'no answer')})" for each in jobs)


def _print_jobs(found: Sequence[Rank], json_output: JsonOutput | None) -> None:
    """Print a row for each job."""
    table, rows = plain_table(("job", "program"), ("ranks", "running s")), []
    for name in dict.fromkeys(each.name.job for each in found):
        state = JobWatch().look([each for each in found if each.name.job == name])
        table.add_row(name, state.program, str(state.size), f"{state.age:.0f}")
        rows.append({"job": name, "program": state.program, "size": state.size, "age": state.age})
    print_table(table, open_console())
    if json_output:
        json_output.write({"jobs": rows})


def _print_once(
    question: _Question, console: Console, interval: float, stacks: bool, json_output: JsonOutput | None
) -> None:
    watch, first = JobWatch(), question("status")
    state = watch.look(first) if first else None
    for look in range(1, _LOOKS):
        time.sleep(interval / (_LOOKS - 1))
        found = question("stacks" if stacks and look == _LOOKS - 1 else "status")
        if not found or state is None:
            raise ArgumentError("the job has ended")
        state = watch.look(found)
    assert state is not None
    print_text(console, head(state))
    print_table(job_table(state.ranks), console)
    lines = sentences_about(state)
    if stacks:
        lines += ["", *stack_lines([(each.name.rank, each.said) for each in found], whole=True)]
    for line in lines:
        print_text(console, line)
    if json_output:
        late = {rank: [each.rank for each in waiting] for rank, waiting in state.late.items()}
        figures = {"job": state.name, "program": state.program, "size": state.size, "age": state.age, "late": late}
        of_rank = {each.name.rank: (each.said or {}).get("stacks") for each in found}
        ranks = [{**asdict(each), **({"stacks": of_rank[each.rank]} if stacks else {})} for each in state.ranks]
        json_output.write({**figures, "ranks": ranks})


class _Screen:
    """The live view."""

    def __init__(self, question: _Question, console: Console, interval: float, *, writes_dumps: bool) -> None:
        self._ask, self._console, self._interval = question, console, interval
        self._writes_dumps = writes_dumps
        self._watch = JobWatch()
        self._shows_stacks = False
        self._said: list[str] = []

    def run(self) -> None:
        """Show the job until it ends or a key quits."""
        state: JobState | None = None
        with _keys() as key, Live(console=self._console, screen=True, auto_refresh=False) as live:
            while (found := self._ask("stacks" if self._shows_stacks else "status")) or state is None:
                if not found:
                    break
                state = self._watch.look(found)
                end = time.monotonic() + self._interval
                live.update(self._picture(state, found), refresh=True)
                while (left := end - time.monotonic()) > 0 and (pressed := key(left)):
                    if pressed in "q\x1b\x03":
                        return
                    if pressed == "s":
                        self._shows_stacks = not self._shows_stacks
                        break
                    if pressed == "d" and self._writes_dumps:
                        self._dump(state.name)
                        break
        print_text(self._console, "the job has ended")

    def _picture(self, state: JobState, found: Sequence[Rank]) -> RenderableType:
        below = self._said
        if self._shows_stacks:
            below = [*below, *stack_lines(_slow_first(state, found), whole=False)]
        return picture(state, self._console, below, _KEYS + _DUMPS * self._writes_dumps)

    def _dump(self, job: str) -> None:
        """Let each rank write its last calls into a folder."""
        folder = Path.cwd() / f"gradientflow-{job}"
        try:
            folder.mkdir(mode=0o700, exist_ok=True)
        except OSError as error:
            self._said = [f"{folder} cannot be made: {error.strerror}"]
            return
        answers = [each.said or {"error": each.silence} for each in self._ask(f"dump {folder}", seconds=_DUMP_SECONDS)]
        errors = {str(each["error"]) for each in answers if "error" in each}
        written = sum("file" in each for each in answers)
        self._said = [f"{written} ranks have written their last calls to {folder.name}", *sorted(errors)]


def _slow_first(state: JobState, found: Sequence[Rank]) -> list[tuple[int, JsonObject | None]]:
    slow = {each.rank for each in state.ranks if each.is_slow} | set(state.late)
    return [(each.name.rank, each.said) for each in sorted(found, key=lambda each: each.name.rank not in slow)]


@contextmanager
def _keys() -> Iterator[Callable[[float], str]]:
    """Yield a function that returns the next key, or an empty text if none is pressed for some seconds."""
    before = termios.tcgetattr(sys.stdin)

    def key(seconds: float) -> str:
        ready, _, _ = select.select([sys.stdin], [], [], seconds)
        return os.read(sys.stdin.fileno(), 1).decode(errors="replace") if ready else ""

    try:
        tty.setcbreak(sys.stdin)
        yield key
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)


__all__ = ["top"]
