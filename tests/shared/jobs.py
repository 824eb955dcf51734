"""Jobs of several processes: started with a mark, ended in time, and nothing of them stays behind."""

from __future__ import annotations

import contextlib
import math
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
import uuid
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from forked_ranks import TAG
from pace import PATIENCE, scaled

from gradientflow.launch import OPEN_MPI, SESSION_FOLDER, Launcher, module_command, mpirun_command

PROGRAMS = Path(__file__).resolve().parents[1] / "programs"
TORCHRUN_LOGS = "PET_LOG_DIR"  # without this variable torchrun leaves a folder in /tmp
ENDS_WITHOUT_MPI = {"MPI4PY_RC_FINALIZE": "0"}  # of ranks where others die: Open MPI may wait for these at the end
ENDING_SECONDS = 5.0  # what the kernel and the launcher may take to clear away a job that has ended


@dataclass(frozen=True)
class Finished:
    """What a job left: its exit status and what its ranks printed."""

    returncode: int
    stdout: str
    stderr: str

    @property
    def output(self) -> str:
        return f"exit status {self.returncode}\n--- stdout\n{self.stdout}\n--- stderr\n{self.stderr}"

    def line(self, start: str) -> str:
        """Return the rest of the only line that starts so."""
        found = [line.removeprefix(start) for line in self.stdout.splitlines() if line.startswith(start)]
        assert len(found) == 1, f"expected one line that starts with {start!r}\n{self.output}"
        return found[0].strip()


@dataclass
class Job:
    """One mpirun or netlab under way, in a session of its own."""

    process: subprocess.Popen[str]
    tag: str
    timeout: float
    folder: tempfile.TemporaryDirectory[str]
    recover: bool | str = False
    started: float = field(default_factory=time.monotonic)

    def processes(self) -> list[int]:
        """List the processes that carry this job's tag: the launcher, the ranks, and whatever they started."""
        wanted = f"{TAG}={self.tag}".encode()
        found = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdecimal():
                with contextlib.suppress(OSError):
                    if wanted in (entry / "environ").read_bytes().split(b"\0"):
                        found.append(int(entry.name))
        return found

    def finish(self) -> Finished:
        """Wait for the end; kill the job where it takes too long. No process may be left either way."""
        late = False
        alone_since = math.inf
        while True:
            try:
                stdout, stderr = self.process.communicate(timeout=1)
                break
            except subprocess.TimeoutExpired:
                # A launcher that goes on after a rank has died sometimes does not notice that the others have ended.
                # One that does may still have to pass their words on.
                now = time.monotonic()
                is_alone = self.recover and set(self.processes()) <= {self.process.pid}
                alone_since = min(alone_since, now) if is_alone else math.inf
                launcher_hangs = now > alone_since + scaled(ENDING_SECONDS)
                late = not launcher_hangs and now > self.started + self.timeout
                if late or launcher_hangs:
                    self.kill()
        finished = Finished(self.process.returncode, stdout, stderr)
        deadline = time.monotonic() + scaled(ENDING_SECONDS)
        while (left := self.processes()) and time.monotonic() < deadline:
            time.sleep(0.02)
        commands = [_command_of(pid) for pid in left]
        self.close()
        if late:
            pytest.fail(f"the job had not ended after {self.timeout} s\n{finished.output}")
        if left:
            pytest.fail(f"processes are left after the job: {commands}\n{finished.output}")
        return finished

    def kill(self) -> None:
        """Kill what is left: the session of the launcher, and the ranks, which have process groups of their own."""
        with contextlib.suppress(ProcessLookupError):
            if self.process.poll() is None:
                os.killpg(self.process.pid, signal.SIGKILL)
        for pid in self.processes():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def close(self) -> None:
        """Leave nothing behind: no process, no pipe, no file of the launcher."""
        self.kill()
        self.process.communicate()
        self.folder.cleanup()


def free_port() -> int:
    """Give a port of this host at which nobody listens."""
    with socket.socket() as trying:
        trying.bind(("127.0.0.1", 0))
        port: int = trying.getsockname()[1]
        return port


def outside_environment() -> dict[str, str]:
    """Give the environment that all jobs have: this process's, without settings of the library."""
    outside = {name: value for name, value in os.environ.items() if not name.startswith("GRADIENTFLOW_")}
    return {**outside, PATIENCE: os.environ.get(PATIENCE, ""), "OMP_NUM_THREADS": "1", "GRADIENTFLOW_DUMP": "off"}


def begin(
    command: list[str],
    env: dict[str, str] | None,
    timeout: float,
    *,
    recover: bool | str = False,
    cwd: Path | None = None,
) -> Job:
    """Start a command under a tag of its own, without settings of the library from outside.

    `timeout` is in seconds of a quiet machine.
    """
    tag = uuid.uuid4().hex
    folder = tempfile.TemporaryDirectory(prefix="gradientflow-test-", ignore_cleanup_errors=True)
    process = subprocess.Popen(
        command,
        cwd=cwd,
        env={SESSION_FOLDER: folder.name, TORCHRUN_LOGS: folder.name, **outside_environment(), **(env or {}), TAG: tag},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        start_new_session=True,
    )
    return Job(process, tag, scaled(timeout), folder, recover)


def write(path: Path, text: str) -> Path:
    """Write a program for a job."""
    path.write_text(text)
    return path


def times_raised(output: str, fragment: str) -> int:
    """Count the ranks whose tracebacks contain the fragment, a regular expression; equal ones are shown once."""
    count, shown = 0, ""
    output = re.sub(r"(another exception occurred:|following exception:)\n\nTraceback ", r"\1\n\n Traceback ", output)
    for block in re.split(r"^(?=(?:\[ranks? .*\] )?(?:Traceback|the same traceback) )", output, flags=re.MULTILINE)[1:]:
        label = re.match(r"\[ranks? ([-, \d]+)\]", block)
        runs = [run.split("-") for run in (label[1] if label else "0").split(", ")]
        shown = shown if "the same traceback" in block.partition("\n")[0] else block
        count += sum(int(run[-1]) - int(run[0]) + 1 for run in runs) if re.search(fragment, shown) else 0
    return count


def python_command(program: str) -> list[str]:
    """Write what runs tests/programs/<program>.py."""
    return [sys.executable, str(PROGRAMS / f"{program}.py")]


def rank_command(
    launcher: Launcher | None, ranks: int, program: list[str], arguments: tuple[object, ...], recover: bool | str
) -> list[str]:
    """Write the command line that starts ranks of a program, without MPI if there is no launcher; `recover` as of
    `start_job`."""
    program = [*program, *map(str, arguments)]
    if launcher is None:
        return module_command("gradientflow.cli", ["run", "--transport", "tcp", "-n", str(ranks), "--", *program])
    command = mpirun_command(launcher, ranks, program)
    if recover:
        if launcher.library != OPEN_MPI:
            pytest.skip(f"{launcher.library}'s launcher ends all ranks when one dies")
        command[1:1] = ["--with-ft", "ulfm"] if recover == "ulfm" else ["--enable-recovery"]
    return command


def _command_of(pid: int) -> str:
    try:
        return f"{pid}: " + Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return f"{pid}: ended meanwhile"
