"""Ranks that die and are started again, and processes that come to a job by themselves: gf.join() and admit()."""

from __future__ import annotations

import re
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from jobs import Finished, Job, outside_environment, python_command, times_raised
from pace import scaled

from gradientflow._location import core
from gradientflow.launch import module_command
from gradientflow.launch.tcp import launcher_command

STEPS = 20
Run = Callable[..., Finished]
Program = Callable[..., list[str]]


@pytest.fixture
def run(start_command: Callable[..., Job]) -> Run:
    """Give ``run(*arguments, env=None)``, which is ``gradientflow run --min-ranks 1`` with them."""

    def finish(*arguments: object, env: dict[str, str] | None = None) -> Finished:
        command = module_command("gradientflow.cli", ["run", "--min-ranks", "1", *map(str, arguments)])
        return start_command(command, env, 100).finish()

    return finish


@pytest.fixture
def program(process_command: Callable[[str], list[str]]) -> Program:
    """Give ``program(*deaths, steps=20)``: the command of a rank that adds one at each step, and dies as told."""
    return lambda *deaths, steps=STEPS: ["--", *process_command("come_back"), str(steps), "0.01", *deaths]


def end(ended: Finished) -> tuple[int, ...]:
    """Return the size, the steps and the sum that all ranks have in the end."""
    assert ended.returncode == 0, ended.output
    found = set(re.findall(r"^end \d+ (\d+) (\d+) (\d+)$", ended.stdout, re.MULTILINE))
    assert len(found) == 1, ended.output
    return tuple(map(int, found.pop()))


TOGETHER = (("0@9", "1@9"), ("1@0", "0@1", "2@19"))


@pytest.mark.parametrize(
    "deaths",
    [
        ("0@8", "2@14"),
        *(pytest.param(each, marks=pytest.mark.thorough) for each in TOGETHER),
        pytest.param(("0@10",), marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_they_come_back(run: Run, program: Program, deaths: tuple[str, ...]) -> None:
    """Each has added one at each step from that at which it has come to that at which it has died."""
    ranks = 3 if len(deaths) < 3 else 4
    ended = run("-n", ranks, "--restart", *program(*deaths))
    joined = list(map(int, re.findall(r"^joined \d+ \d+ (\d+)$", ended.stdout, re.MULTILINE)))
    assert len(joined) >= sum(not each.endswith("@19") for each in deaths), ended.output
    size, steps, total = end(ended)
    assert size == ranks - len(deaths) + len(joined)
    assert steps >= STEPS
    lives = sum(int(each.partition("@")[2]) for each in deaths) + sum(steps - step for step in joined)
    assert total == lives + (ranks - len(deaths)) * steps


@pytest.mark.thorough
@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 100))])
def test_they_may_die_at_any_moment(run: Run, program: Program, seed: int) -> None:
    """While ranks meet, join and recover, several at once, up to three times each."""
    ended = run("-n", 3, "--restart", "4", *program(f"seed={seed}", steps=60))
    _, steps, total = end(ended)
    assert steps == 60
    assert 60 <= total <= 180


@pytest.mark.thorough
def test_on_several_hosts(start_netlab: Callable[..., Any]) -> None:
    """Their launcher keeps the store: that outlives the host of rank 0."""
    options = ("--hosts", "2", "--ranks-per-host", "2", "--transport", "tcp", "--min-ranks", "1", "--restart")
    program = [*python_command("come_back"), "20", "0.01", "0@8", "1@8", "3@15"]
    ended = start_netlab(*options, "--", *program, timeout=100).finish()
    assert (end(ended)[0], ended.stdout.count("joined")) == (4, 3), ended.output


@pytest.mark.thorough
@pytest.mark.parametrize(("mode", "deaths"), [("early twice", 2), ("all", 1), ("raise", 1), ("close", 1)])
def test_a_job_that_nobody_is_left_of_begins_anew(
    run: Run, process_command: Callable[[str], list[str]], mode: str, deaths: int
) -> None:
    """All are started again, and none waits for admission by the others; later ones join as ever."""
    ended = run("-n", 3, "--restart", "--", *process_command("begin_anew"), mode)
    assert ended.returncode == 0, ended.output
    lives = sorted(map(int, re.findall(r"^end \d 3 (\d)$", ended.stdout, re.MULTILINE)))
    assert lives == [deaths, deaths, deaths + (mode not in ("raise", "close"))], ended.output
    assert times_raised(ended.stderr, "rank 0 has died before its weights") == (2 * deaths if "early" in mode else 0)


@pytest.mark.thorough
def test_a_job_that_nobody_is_left_of_ends_if_a_rank_is_not_started_again(
    run: Run, process_command: Callable[[str], list[str]]
) -> None:
    ended = run("-n", 3, "--restart", "1", "--", *process_command("begin_anew"), "gone")
    assert ended.returncode == 1
    why = r"PeerError: rank 1 \(process \d+\) ended with exit status 5, and the ranks cannot meet without it"
    assert times_raised(ended.stderr, why) == 2, ended.output


@pytest.mark.thorough
def test_a_process_that_does_not_fit_does_no_harm(run: Run, tmp_path: Path) -> None:
    is_sent_away, script = tmp_path / "is_sent_away", tmp_path / "script.py"
    script.write_text(
        "import os, pathlib, sys\n"
        "comes_back = os.environ['GRADIENTFLOW_RESTARTS'] == '1'\n"
        "if comes_back: os.environ['GRADIENTFLOW_STAGING_BYTES'] = '123456'\n"
        f"sys.argv = ['', '20', '0.01', {str(is_sent_away)!r}, '1@5']\n"
        "try:\n"
        f"    exec(open({python_command('come_back')[-1]!r}).read())\n"
        "finally:\n"
        f"    if comes_back: pathlib.Path({str(is_sent_away)!r}).touch()\n"
    )
    ended = run("-n", 3, "--restart", "1", "--", script)
    size, steps, total = end(ended)
    assert (size, total) == (2, 2 * steps + 5)
    assert "MismatchError: this process cannot join the job: " in ended.stderr
    assert "staging_bytes" in ended.stderr


LAST = """
case $RANK.$GRADIENTFLOW_RESTARTS in
  0.*) until [ -s {last} ]; do sleep 0.05; done; while kill -0 "$(cat {last})"; do sleep 0.05; done;;
  1.2) echo $$ > {last};;
esac 2> /dev/null
[ $RANK = 0 ] && exit; echo "$GRADIENTFLOW_RESTARTS"; exit 7
"""


def test_how_often_and_how_it_is_said(run: Run, tmp_path: Path) -> None:
    """Rank 0 ends once the launcher has seen the last end of rank 1."""
    ended = run("-n", 2, "--restart", "2", "--", "sh", "-c", LAST.format(last=tmp_path / "last"))
    assert (ended.returncode, ended.stdout.split()) == (0, ["0", "1", "2"]), ended.output
    assert ended.stderr.count("ended with exit status 7: going on with 1 rank\n") == 3


AWAY = """
case $RANK.$GRADIENTFLOW_RESTARTS in
  0.0) for i in $(seq 200); do [ -e {back} ] && exit 0; sleep 0.1; done; exit 3;;
  1.0) exit {first};;
  1.1) exit 75;;
  1.2) touch {back};;
esac
"""


@pytest.mark.thorough
@pytest.mark.parametrize(("first", "needed", "status"), [(1, 1, 0), (75, 2, 75)], ids=["it was there", "it never came"])
def test_a_start_that_cannot_reach_the_job_counts_only_before_another_could(
    run: Run, tmp_path: Path, first: int, needed: int, status: int
) -> None:
    script = AWAY.format(back=tmp_path / "back", first=first)
    ended = run("--min-ranks", needed, "-n", 2, "--restart", 1, "--", "sh", "-c", script)
    assert ended.returncode == status, ended.output
    assert (tmp_path / "back").exists() == (status == 0)
    said = re.findall(r"^gradientflow: rank 1 \(process \d+\) (.*): .*$", ended.stderr, re.MULTILINE)
    away = "could not reach the job (exit status 75)"
    assert said == ["ended with exit status 1" if first == 1 else away, away], ended.output


REACHES = """
import sys
import gradientflow as gf
try:
    gf.join()
except gf.errors.GradientFlowError as error:
    if sys.argv[1] == "alone":
        raise
    if sys.argv[1] == "as a cause":
        raise RuntimeError("no job") from error
raise ValueError
"""


@pytest.mark.parametrize(
    ("obstacle", "error", "status"),
    [
        ("store", "alone", 75),
        ("token", "alone", 1),
        *(
            pytest.param(*each, marks=pytest.mark.thorough)
            for each in (("store", "as a cause", 75), ("store", "another one", 1), ("address", "alone", 75))
        ),
    ],
)
def test_a_rank_says_by_its_exit_status_that_it_cannot_reach_the_job(obstacle: str, error: str, status: int) -> None:
    store = core.TcpStore("127.0.0.1:0", True, token="right")
    place = {"GRADIENTFLOW_RANK": "1", "GRADIENTFLOW_SIZE": "2", "GRADIENTFLOW_RESTARTS": "1"}
    place |= {"GRADIENTFLOW_MEET": store.address, "GRADIENTFLOW_TOKEN": "wrong" if obstacle == "token" else "right"}
    if obstacle == "address":
        place["GRADIENTFLOW_INTERFACE"] = "203.0.113.0/24"  # of no host: for examples
    if obstacle == "store":
        del store
    environment = {**outside_environment(), **place, "GRADIENTFLOW_TIMEOUT": "0.5"}
    command = [sys.executable, "-c", REACHES, error]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=scaled(60))
    assert ended.returncode == status, ended.stderr
    assert "Traceback" in ended.stderr


def test_nothing_is_started_again_once_a_rank_is_done(run: Run) -> None:
    ended = run(
        "-n", 2, "--restart", "--", "sh", "-c", 'test $RANK = 0 && exit; sleep 1; echo "$GRADIENTFLOW_RESTARTS"; exit 7'
    )
    assert (ended.returncode, ended.stdout.split()) == (0, ["0"]), ended.output


@pytest.mark.thorough
@pytest.mark.parametrize(
    "script",
    [
        pytest.param("test $RANK = 0 && exit; sleep 1; exit 7", id="failed afterwards"),
        pytest.param("test $RANK = 0 && { sleep 0.8; exit; }; exit 7", id="waits to be started again"),
    ],
)
def test_a_rank_that_is_not_started_again_for_that_is_missing(run: Run, script: str) -> None:
    assert run("-n", 2, "--min-ranks", 2, "--restart", "--", "sh", "-c", script).returncode == 7


def test_restarts_need_a_job_that_goes_on() -> None:
    command = module_command("gradientflow.cli", ["run", "-n", "2", "--restart", "--", "true"])
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert "--restart goes with --min-ranks" in ended.stderr


MEMBERS = """
import sys, time, gradientflow as gf
from gradientflow.errors import PeerError
comm = gf.init(None, gf.Config(timeout=20), meet=sys.argv[1], rank=int(sys.argv[2]), size=2)
def not_heard(barrier=comm.barrier):
    barrier()
    raise PeerError("not heard of others")
if sys.argv[2:] == ["1", "not heard"]:
    comm.barrier = not_heard
print("ready", flush=True)
while comm.size < 3:
    try:
        comm = comm.admit(1)
    except PeerError:
        comm = comm.recover(1)
    time.sleep(0.01)
print(comm.rank, comm.size, comm.recovered_from, flush=True)
comm.barrier()
"""


@pytest.mark.usefixtures("patience")
@pytest.mark.parametrize("barrier", ["heard", pytest.param("not heard", marks=pytest.mark.thorough)])
def test_a_new_process_comes_by_itself(barrier: str) -> None:
    """It is not the launcher's, and the store is one that rank 0 serves.

    Where a rank recovers while another admits, both go on together, and the newcomer is let in the next time.
    """
    meet = core.TcpStore("127.0.0.1:0", serve=True).address
    members = [start("-c", MEMBERS, meet, str(rank), barrier) for rank in range(2)]
    for each in members:
        assert each.stdout is not None
        assert each.stdout.readline() == "ready\n"
    newcomer = start(
        "-c", "import sys, gradientflow as gf; c = gf.join(sys.argv[1]); print(c.rank, c.size); c.barrier()", meet
    )
    assert newcomer.communicate(timeout=60)[0] == "2 3\n"
    assert [each.communicate(timeout=60)[0] for each in members] == [f"{rank} 3 (0, 1)\n" for rank in range(2)]


@pytest.mark.thorough
def test_nobody_lets_it_in() -> None:
    store = core.TcpStore("127.0.0.1:0", serve=True)
    code = "import sys, gradientflow as gf; gf.join(sys.argv[1], gf.Config(timeout=1))"
    ended = subprocess.run(
        [sys.executable, "-c", code, store.address], capture_output=True, text=True, timeout=60, check=False
    )
    assert "CommunicationTimeoutError: no rank of the job has let this process in within 1 s" in ended.stderr


def start(*arguments: str) -> subprocess.Popen[str]:
    """Start a Python."""
    return subprocess.Popen([sys.executable, *arguments], stdout=subprocess.PIPE, text=True, env=outside_environment())


@pytest.mark.parametrize(
    ("victim", "status", "when", "call"),
    [
        (1, 9, "before it has come", "init"),
        *(
            pytest.param(*each, marks=pytest.mark.thorough)
            for each in (
                (0, 9, "before it has come", "join"),
                (0, 9, "before others have come", "init"),
                (1, 0, "before it has come", "init"),
            )
        ),
    ],
)
def test_the_others_hear_at_once_of_a_rank_that_ends_before_all_have_met(
    run: Run,
    process_command: Callable[[str], list[str]],
    tmp_path: Path,
    victim: int,
    status: int,
    when: str,
    call: str,
) -> None:
    """Though the job may go on without it once it has begun. They hear of it whenever they try to meet."""
    ended = run(
        "-n", 3, "--", *process_command("missing_at_the_meeting"), victim, status, when, call, tmp_path / "victim"
    )
    heard = re.findall(r"^rank (\d): .*\brank (\d) ", ended.stdout, re.MULTILINE)
    others = [str(rank) for rank in range(3) if rank != victim]
    assert sorted(heard) == [(rank, str(victim)) for rank in others for _ in range(2)], ended.output


@pytest.mark.thorough
def test_the_others_hear_of_a_rank_that_is_not_started_again(
    run: Run, process_command: Callable[[str], list[str]]
) -> None:
    program = [*process_command("missing_at_the_meeting"), 1, 9, "before it has come", "join", ""]
    ended = run("-n", 3, "--restart", "1", "--", *program)
    heard = re.findall(r"^rank (\d): rank 1 \(process \d+\) ended with exit status 9, ", ended.stdout, re.MULTILINE)
    assert sorted(heard) == ["0", "0", "2", "2"], ended.output


# The name of the module is in two parts: the command line of a rank has it, too.
ENDS_THE_STORE = """
import os, pathlib, sys
import gradientflow as gf
def end_the_store():
    launcher = pathlib.Path(f"/proc/{os.getppid()}/task/{os.getppid()}")
    for child in (launcher / "children").read_text().split():
        if b"launch." b"store_server" in pathlib.Path(f"/proc/{child}/cmdline").read_bytes():
            os.kill(int(child), 9)
when, rank = sys.argv[1], int(os.environ["RANK"])
if when == "before they meet" and rank == 0:
    end_the_store()
comm = gf.join()
comm.barrier()
if rank == 1:
    end_the_store()
    os.kill(os.getpid(), 9)
comm.recover(min_ranks=1).barrier()
"""


@pytest.mark.thorough
@pytest.mark.parametrize(("when", "status"), [("before they meet", 1), ("before a restart", 0)])
def test_nobody_waits_for_a_store_that_has_ended(run: Run, when: str, status: int) -> None:
    ended = run("-n", 3, "--restart", "--", sys.executable, "-c", ENDS_THE_STORE, when)
    assert ended.returncode == status, ended.output
    said = r"the process that keeps the store of the job \(process \d+\) was ended by SIGKILL"
    end = "no process can join the job any more, or be started again"
    assert re.search(rf"gradientflow: {said}: {end}\n", ended.stderr), ended.output
    if status:
        assert re.search(rf"PeerError: {said}, and the ranks cannot meet without it", ended.stderr), ended.output


@pytest.mark.thorough
def test_a_store_that_cannot_be_served_ends_the_job(start_command: Callable[..., Job]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        told = {
            "command": ["sleep", "100"],
            "environment": {},
            "store_server": module_command("gradientflow.launch.store_server", [address]),
            "members": [{"rank": 0, "local": 0, "of": 1}],
            "needed": 1,
        }
        ended = start_command(launcher_command(told)).finish()
    assert ended.returncode == 69, ended.output
    assert ended.stderr.startswith(f"gradientflow: the ranks cannot meet at {address}: "), ended.output


def test_what_a_loop_needs_is_imported_before_the_others_wait_for_it() -> None:
    program = """
import sys
import gradientflow.joining

class Admission:
    def join(self, settings):
        print("gradientflow.training.survival" in sys.modules, "gradientflow.optimizers" in sys.modules)
        sys.exit()

gradientflow.joining.admission_at = lambda *_: Admission()
gradientflow.joining.join("127.0.0.1:1")
"""
    assert start("-c", program).communicate()[0].split() == ["True", "True"]
