"""gradientflow run --preload: ranks are forked from a process that has imported modules, and are as others are."""

from __future__ import annotations

import os
import re
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from jobs import Finished, Job

from gradientflow.launch import module_command

PROGRAM = """
import os, random, signal, sys
has_it = "wave" in sys.modules
import numpy as np
import gradientflow as gf
comm = gf.join()
if comm.recovered_from is None:
    numbers = comm.allgather(np.array([np.random.rand(), random.random()]))
    assert len(set(numbers.ravel().tolist())) == 2 * comm.size  # no two ranks have the same ones
print(comm.rank, has_it, sys.argv[1:], __name__, os.path.basename(__file__), os.environ["RANK"], flush=True)
what = sys.argv[1] if comm.rank == 1 else ""
if what == "fails":
    raise ValueError("a word about it")
if what == "leaves":
    sys.exit(7)
if what == "dies":
    os.kill(os.getpid(), 9)
if what == "ends it":
    os.kill(os.getppid(), 9)
if what == "waits":
    open(sys.argv[2], "w").close()
    signal.pause()
if sys.argv[1] == "comes back":
    if comm.recovered_from is None:
        if comm.rank == 1:
            os.kill(os.getpid(), 9)
        comm = comm.recover()
        while comm.size < 3:
            comm = comm.admit()
    print(comm.allreduce(np.ones(1))[0], has_it, flush=True)
"""

Run = Callable[..., Job]


@pytest.fixture
def start(start_command: Run, tmp_path: Path) -> Run:
    """Give ``start(what, *options)``, which starts the program with three ranks, and a module preloaded."""
    (tmp_path / "program.py").write_text(PROGRAM)
    path = {"PYTHONPATH": f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}"}
    command = module_command("gradientflow.cli", ["run", "-n", "3", "--transport", "tcp"])
    return lambda *words: start_command([*command, *words], path)


@pytest.fixture
def run(start: Run, tmp_path: Path) -> Callable[..., Finished]:
    program = str(tmp_path / "program.py")
    return lambda what, *options: start("--preload", "wave,numpy", *options, program, what).finish()


def test_ranks_are_what_the_program_would_be(run: Callable[..., Finished]) -> None:
    ended = run("ends")
    assert ended.returncode == 0, ended.output
    lines = [f"{rank} True ['ends'] __main__ program.py {rank}" for rank in range(3)]
    assert sorted(ended.stdout.splitlines()) == lines


@pytest.mark.thorough
def test_modules_by_name(start: Run) -> None:
    ended = start("--preload", "wave", "--", sys.executable, "-m", "program", "ends").finish()
    assert ended.returncode == 0, ended.output
    assert ended.stdout.count("True ['ends'] __main__ program.py") == 3


@pytest.mark.parametrize(
    ("what", "status", "said"),
    [
        ("fails", 1, "ended with exit status 1"),
        pytest.param("leaves", 7, "ended with exit status 7", marks=pytest.mark.thorough),
        pytest.param("dies", 137, "was ended by SIGKILL", marks=pytest.mark.thorough),
    ],
)
def test_how_a_rank_ends(run: Callable[..., Finished], what: str, status: int, said: str) -> None:
    ended = run(what)
    assert ended.returncode == status, ended.output
    assert said in ended.stderr
    assert ("ValueError: a word about it" in ended.stderr) == (what == "fails")
    assert "fork_server.py" not in ended.stderr  # in a traceback


def test_the_end_of_the_process_that_they_are_forked_from_is_said(run: Callable[..., Finished]) -> None:
    ended = run("ends it")
    assert ended.returncode == 137, ended.output
    which = r"the process that ranks are forked from \(process \d+\)"
    assert re.search(
        rf"^gradientflow: {which} was ended by SIGKILL, and the ranks with it$", ended.stderr, re.MULTILINE
    )
    assert "was ended by SIGKILL: ending the others" in ended.stderr


def test_a_rank_comes_back_with_them(run: Callable[..., Finished]) -> None:
    ended = run("comes back", "--min-ranks", "1", "--restart=3")
    assert ended.returncode == 0, ended.output
    assert ended.stdout.splitlines().count("3.0 True") == 3


@pytest.mark.thorough
def test_a_rank_that_is_interrupted_ends_as_any_program(start: Run, tmp_path: Path) -> None:
    program = tmp_path / "interrupted.py"
    program.write_text("import atexit\natexit.register(print, 'the end')\nprint('kept')\nraise KeyboardInterrupt\n")
    ended = start("--preload", "wave", str(program)).finish()
    assert ended.returncode == 128 + signal.SIGINT
    assert sorted(ended.stdout.splitlines()) == ["kept"] * 3 + ["the end"] * 3
    assert "KeyboardInterrupt" in ended.stderr
    assert "fork_server.py" not in ended.stderr


@pytest.mark.parametrize("number", [pytest.param(signal.SIGINT, marks=pytest.mark.thorough), signal.SIGKILL])
def test_no_rank_outlives_the_launcher(start: Run, tmp_path: Path, number: int) -> None:
    waits = tmp_path / "waits"
    job = start("--preload", "wave", str(tmp_path / "program.py"), "waits", str(waits))
    while not waits.exists() and time.monotonic() < job.started + job.timeout:
        time.sleep(0.02)
    job.process.send_signal(number)
    assert job.finish().returncode != 0  # and no process is left


@pytest.mark.parametrize(
    ("module", "why"),
    [("no_such_module", "ModuleNotFoundError"), pytest.param("leaves", "SystemExit: 3", marks=pytest.mark.thorough)],
)
def test_a_module_that_cannot_be_imported_is_said(start: Run, tmp_path: Path, module: str, why: str) -> None:
    (tmp_path / "leaves.py").write_text("import sys\nsys.exit(3)\n")
    ended = start("--preload", module, str(tmp_path / "program.py"), "ends").finish()
    assert ended.returncode == 0, ended.output
    assert f"gradientflow: {module} cannot be preloaded: {why}" in ended.stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--preload", "wave", "sleep", "1"), "--preload takes a .py file, or python -m MODULE"),
        (("--preload", "wave", sys.executable, "-i", "program.py"), "--preload takes a .py file, or python -m MODULE"),
        (("--preload", "wave;numpy", "sleep", "1"), "names of modules, separated by commas, not 'wave;numpy'"),
        (
            ("--transport", "mpi", "--preload", "wave", sys.executable, "-m", "program"),
            "--preload needs --transport tcp",
        ),
    ],
)
def test_what_cannot_be_forked_is_refused(start: Run, words: tuple[str, ...], said: str) -> None:
    ended = start(*words).finish()
    assert ended.returncode != 0
    assert said in ended.output


@pytest.mark.thorough
def test_a_program_that_is_missing(start: Run) -> None:
    words = ("--", sys.executable, "nowhere.py")
    plain, preloaded = (start(*options, *words).finish() for options in ((), ("--preload", "wave")))
    assert preloaded.returncode == plain.returncode == 2
    assert "can't open file" in plain.stderr
    assert "can't open file" in preloaded.stderr


@pytest.mark.skipif(sys.version_info < (3, 11), reason="python -P came with Python 3.11")
def test_a_path_without_the_folder_of_the_program(start: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONSAFEPATH", "1")
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    (folder / "paths.py").write_text("import sys; print(sys.path)")
    plain, preloaded = (start(*options, str(folder / "paths.py")) for options in ((), ("--preload", "wave")))
    assert set(preloaded.finish().stdout.splitlines()) == set(plain.finish().stdout.splitlines())
