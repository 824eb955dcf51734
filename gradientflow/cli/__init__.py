"""The ``gradientflow`` command.

Each command has a file, which turns options into a call of the library or of ``gradientflow.bench``, and contains no
logic that is useful elsewhere. An error becomes one sentence and an exit status: 2 if the caller can correct the error
before anything is started, 1 if the error happened later.
"""

from __future__ import annotations

import errno
import importlib
import os
import signal
import sys
import time
from functools import partial

import click

import gradientflow as gf
from gradientflow import waits
from gradientflow.cli.job import report_end
from gradientflow.cli.lazy import LazyCommand
from gradientflow.errors import GradientFlowError
from gradientflow.launch import rank_of_this_process

__all__ = ["main"]

_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(gf.__version__, prog_name="gradientflow", message="%(prog)s %(version)s")
def commands() -> None:
    """Gradient exchange for distributed training: start jobs, check this machine, measure."""


def _load(name: str) -> click.Command:
    command: click.Command = getattr(importlib.import_module(f"gradientflow.cli.{name}"), name)
    return command


for _name, _summary in {
    "run": "Start a program as a job of several ranks.",
    "doctor": "Check this machine and installation.",
    "bench": "Measure ours and other libraries side by side in one run.",
    "netlab": "Run a job on hosts that are emulated on this machine.",
    "top": "Watch a running job: its rates, its waits, the stacks of its ranks.",
    "simulate": "Predict the steps of strategies on hosts that need not be there.",
    "tune": "Measure the link of a job, and choose a strategy for it.",
    "why": "Say which rank of a failed job did something else, and where.",
    "timeline": "Join the timelines of a job's ranks, and read them.",
    "replay": "Replay a recorded run of a parameter server with other policies.",
    "completion": "Print the completion script of a shell.",
    "config": "Print flags for compiling against the library, and its settings.",
}.items():
    commands.add_command(LazyCommand(_name, _summary, partial(_load, _name)))


def main() -> None:
    """Run the command line, and end the process with the command's exit status."""
    try:
        status = commands.main(prog_name="gradientflow", standalone_mode=False)
        sys.stdout.flush()
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        status = error.exit_code
    except click.ClickException as error:
        status = _complain(error.format_message(), error.exit_code)
    except GradientFlowError as error:
        status = _complain(str(error), 2)
    except (click.Abort, KeyboardInterrupt):
        if not rank_of_this_process():
            report_end(signal.SIGINT)
        status = 128 + signal.SIGINT
    except BrokenPipeError:  # the reader of our output has closed it
        _drop_output()
        status = 1
    except OSError as error:
        if error.errno not in _NO_ROOM:
            raise
        _drop_output()
        status = _complain(f"output cannot be written: {error.strerror}", 1)
    sys.exit(status if isinstance(status, int) else 0)


def _drop_output() -> None:
    """Drop buffered output: otherwise the interpreter complains, when it ends, that the output cannot be written."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _complain(message: str, status: int) -> int:
    if rank_of_this_process():
        # Rank 0 reports the error for all ranks. The launcher ends the job when a rank ends, so give rank 0 time for
        # the report.
        time.sleep(waits.FIRST_RANK_SAYS.seconds)
    else:
        print(f"gradientflow: {message}", file=sys.stderr, flush=True)
    return status
