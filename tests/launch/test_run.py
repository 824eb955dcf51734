"""gradientflow run over TCP: labels, and hosts that are reached through ssh, in whose place a script stands here."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from forked_ranks import TAG
from jobs import Finished, Job, python_command, write
from needs_mpi import needs_mpi
from pace import scaled, wait_until

from gradientflow import waits
from gradientflow.launch import (
    LaunchError,
    command_over_tcp,
    hosts_of_ranks,
    job_here,
    meeting_host,
    module_command,
    tcp_job,
    tracebacks,
)
from gradientflow.launch.output import Output, Stream
from gradientflow.launch.tcp import tcp_variables
from gradientflow.launch.tracebacks import merged, named, shortened

# As ssh does, it starts the command of a host through a shell, with its own input, and passes nothing on. All hosts are
# this machine.
SSH = """#!/bin/sh
if [ "$1" = -G ]; then echo "hostname 127.0.0.1"; exit; fi
while [ "${1#-}" != "$1" ]; do case $1 in -o) shift 2;; *) shift;; esac; done
host=$1; shift
case $host in
  locked) echo "root@locked: Permission denied (publickey,password)." >&2; exit 255;;
  unknown) echo "ssh: Could not resolve hostname unknown: Name or service not known" >&2; exit 255;;
  bare) set -- "$(echo "$*" | sed 's|-x [^ ]*|-x /no/such/python|')";;
  moved) set -- "$(echo "$*" | sed 's|cd [^ ]*|cd /no/such/folder|')";;
esac
echo "a word of welcome"
env -i HOME=/ PATH=/usr/bin:/bin TAG="$TAG" sh -c "$*"
"""

Run = Callable[..., Finished]


@pytest.fixture
def start_run(start_command: Callable[..., Job], tmp_path: Path) -> Callable[..., Job]:
    """Give ``start_run(*arguments, env=None, before=())``: it starts ``gradientflow run`` beside the script for ssh."""
    (tmp_path / "bin").mkdir()
    path = tmp_path / "bin" / "ssh"
    path.write_text(SSH.replace("TAG", TAG))
    path.chmod(0o755)

    def start(*arguments: object, env: dict[str, str] | None = None, before: Sequence[str] = ()) -> Job:
        command = [*before, *module_command("gradientflow.cli", ["run", "--transport", "tcp", *map(str, arguments)])]
        paths = f"{path.parent}:{os.environ['PATH']}"
        return start_command(command, {"PATH": paths, **(env or {})})

    return start


@pytest.fixture
def run(start_run: Callable[..., Job]) -> Run:
    return lambda *arguments, **options: start_run(*arguments, **options).finish()


def test_hosts_are_filled_or_taken_in_turn() -> None:
    assert hosts_of_ranks("a:2,b", 3) == ["a", "a", "b"]
    assert hosts_of_ranks("a:2,b:2", 2) == ["a", "a"]
    assert hosts_of_ranks("a:2,b:2", 2, 2) == ["a", "b", "a", "b"]
    assert hosts_of_ranks("me@a,me@[::1]:2", 3) == ["me@a", "me@::1", "me@::1"]
    with pytest.raises(LaunchError, match="too many for the 3 slots"):
        hosts_of_ranks("a:2,b", 4)
    for wrong in ("a,,b", "::1", "@a", "a:0"):
        with pytest.raises(LaunchError, match="--hosts takes name:slots"):
            hosts_of_ranks(wrong, 1)


@pytest.mark.parametrize(
    ("words", "ranks"), [("--hosts a:2,127.0.0.1", 3), ("--hosts a:4 --servers 1", 3), ("--hosts a:4 -n 2", 2)]
)
def test_hosts_say_how_many_ranks_to_start(run: Run, words: str, ranks: int) -> None:
    shown = run(*words.split(), "--dry-run", "--", "true")
    assert shown.returncode == 0, shown.stderr
    assert f" WORLD_SIZE={ranks} " in shown.stdout
    refused = run("--hosts", "a:1,b:1", "--servers", "2", "--dry-run", "--", "true")
    assert "2 servers leave none of the 2 slots to ranks" in refused.stderr


def test_an_allocation_of_several_nodes_is_not_taken_for_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.setenv("SLURM_JOB_NUM_NODES", "2")
    with pytest.raises(LaunchError, match=r"this allocation has 2 nodes, and .* by srun"):
        tcp_job(2, ["true"], None)
    monkeypatch.setenv("SLURM_JOB_NUM_NODES", "1")
    assert tcp_job(2, ["true"], None).meet == "127.0.0.1"


def test_nothing_secret_is_in_a_command_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRADIENTFLOW_TOKEN", "secret")
    for hosts in (None, "localhost:2"):
        words = " ".join(command_over_tcp(tcp_job(2, ["true"], hosts)))
        assert "GRADIENTFLOW_MEET" in words
        assert "TOKEN" not in words
        assert "secret" not in words


def test_the_master_of_an_outer_job_is_not_that_of_a_new_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MASTER_PORT", "20")
    assert tcp_variables(job_here(2, ["true"]))["MASTER_PORT"] == "20"
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert tcp_variables(job_here(2, ["true"]))["MASTER_PORT"] != "20"


def test_ranks_meet_where_the_others_reach_rank_0(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MASTER_ADDR", raising=False)
    assert meeting_host(["localhost", "127.0.0.1"]) == "127.0.0.1"
    assert meeting_host(["127.0.0.9", "localhost"]) == meeting_host(["me@127.0.0.9"]) == "127.0.0.9"
    assert meeting_host(["localhost", "127.0.0.9"]) == "127.0.0.1"  # the address that leads there
    monkeypatch.setenv("MASTER_ADDR", "10.1.2.3")
    assert meeting_host(["localhost", "127.0.0.9"]) == "10.1.2.3"


def test_ranks_of_several_hosts(run: Run, tmp_path: Path) -> None:
    program = write(
        tmp_path / "program.py",
        "import os, sys, numpy as np, gradientflow as gf\n"
        "with gf.init() as comm:\n"
        "    x = comm.allreduce(np.full(10, comm.rank + 1))\n"
        "    assert len(os.environ['GRADIENTFLOW_TOKEN']) == 64\n"
        "    names = 'LOCAL_RANK', 'LOCAL_WORLD_SIZE', 'WORLD_SIZE', 'GRADIENTFLOW_TIMEOUT'\n"
        "    print(int(x[9]), *(os.environ[name] for name in names), os.getcwd(), sys.stdin.read() == '')\n",
    )
    options = ("-n", 3, "--label", "--hosts", "one:2,two:2")
    ended = run(*options, "--", program, env={"GRADIENTFLOW_TIMEOUT": "40"})
    places = [(0, 2), (1, 2), (0, 1)]
    expected = [f"[{rank}] 6 {a} {b} 3 40 {os.getcwd()} True" for rank, (a, b) in enumerate(places)]
    assert ended.returncode == 0, ended.output
    assert sorted(line for line in ended.stdout.splitlines() if "welcome" not in line) == expected
    assert ended.stdout.count("welcome") == 2


def test_a_long_command_line(run: Run, tmp_path: Path) -> None:
    """Longer than one of its words may be, on a host and on several."""
    program = write(tmp_path / "program.py", "import sys; print(sum(map(int, sys.argv[1:])))")
    for hosts in ((), ("--hosts", "one:1,two:1")):
        ended = run("-n", 2, *hosts, "--", program, *range(20000))
        assert ended.stdout.count(f"{sum(range(20000))}\n") == 2, ended.output


@pytest.mark.usefixtures("patience")
def test_when_a_rank_fails_the_others_may_report(run: Run, tmp_path: Path) -> None:
    program = write(
        tmp_path / "program.py",
        "import os, sys, time, gradientflow as gf\n"
        "comm = gf.init()\n"
        "if comm.rank == 1: os._exit(7)\n"
        "try: comm.barrier()\n"
        "except gf.errors.PeerError: print('noticed', flush=True)\n"
        "time.sleep(1000)\n",
    )
    begin = time.monotonic()
    ended = run("-n", 3, "--hosts", "one:1,two:1,localhost:1", "--", program)
    assert (ended.returncode, ended.stdout.count("noticed")) == (7, 2), ended.output
    said = [line for line in ended.stderr.splitlines() if line.startswith("gradientflow:")]
    assert len(said) == 1, ended.output
    assert re.fullmatch(r"gradientflow: rank 1 \(process \d+ on two\) ended with exit status 7: .* others", said[0])
    assert time.monotonic() - begin < scaled(30)


@pytest.mark.thorough
def test_a_failure_is_known_however_late_the_output_is_read(start_run: Callable[..., Job]) -> None:
    """What the launcher of a host has told is still in a pipe when it has ended, for longer than ranks have to end."""
    job = start_run("-n", 1, "--hosts", "one:1", "--", "sh", "-c", "yes | head -c 80000; sleep 0.3; exit 7")
    time.sleep(1.5 * waits.ASKED_TO_END.seconds + scaled(1))
    ended = job.finish()
    assert (ended.returncode, ended.stdout.count("y\n")) == (7, 40000), ended.output


# Ranks 1 and 2 fail, one after the other; the others go on for a while.
TWO_FAIL = (
    "case $RANK in\n1) kill -9 $$;;\n2) while ! [ -e $1 ]; do sleep 0.02; done; exit 9;;\n"
    "*) sleep 0.5; touch $1; sleep 0.2; echo done;;\nesac\n"
)


HERE, ON_HOSTS = (), ("--hosts", "one:2,two:2")


@pytest.mark.parametrize(
    ("needed", "hosts"),
    [
        *((2, HERE), (3, ON_HOSTS)),
        *(pytest.param(*each, marks=pytest.mark.slow) for each in ((2, ON_HOSTS), (3, HERE))),
    ],
)
def test_some_ranks_may_fail(run: Run, tmp_path: Path, hosts: tuple[str, ...], needed: int) -> None:
    program = write(tmp_path / "program.sh", TWO_FAIL + ("" if needed == 2 else "sleep 94.5\n"))
    ended = run("-n", 4, *hosts, "--min-ranks", needed, "--", "sh", program, tmp_path / "both")
    said = [re.sub(r" \(.*?\)", "", line) for line in ended.stderr.splitlines() if line.startswith("gradientflow:")]
    others = "going on with 2 ranks" if needed == 2 else "ending the others"
    assert said == [
        "gradientflow: rank 1 was ended by SIGKILL: going on with 3 ranks",
        f"gradientflow: rank 2 ended with exit status 9: {others}",
    ], ended.output
    assert ended.returncode == (0 if needed == 2 else 9)
    assert ended.stdout.count("done") == 2


def test_a_host_may_be_lost(run: Run, tmp_path: Path) -> None:
    """With its launcher, or before it has come."""
    program = write(tmp_path / "program.sh", "if [ $LOCAL_WORLD_SIZE = 2 ]; then kill -9 $PPID; fi; sleep 2; echo done")
    ended = run("-n", 4, "--hosts", "two:2,one:1,locked:1", "--min-ranks", "1", "--", "sh", program)
    assert (ended.returncode, ended.stdout.count("done")) == (0, 1), ended.output
    assert "host locked cannot be reached: ssh locked has to work without a question: going on with " in ended.stderr
    assert "gradientflow: host two is lost: ssh ended with exit status 137: going on with " in ended.stderr
    assert "going on with 1 rank\n" in ended.stderr


@pytest.mark.usefixtures("patience")
def test_ranks_and_hosts_are_started_again(run: Run, tmp_path: Path) -> None:
    """Rank 1 by the launcher of its host, and host two, whose launcher has ended, as a whole."""
    program = write(
        tmp_path / "program.sh",
        "if [ $GRADIENTFLOW_RESTARTS = 0 ]; then case $RANK in 1) exit 9;; 2) kill -9 $PPID; sleep 94.5;; esac; fi\n"
        "sleep 2; echo rank $RANK after $GRADIENTFLOW_RESTARTS",
    )
    options = ("-n", 3, "--hosts", "one:2,two:1", "--min-ranks", 1, "--restart")
    ended = run(*options, "--", "sh", program)
    lines = sorted(line for line in ended.stdout.splitlines() if line.startswith("rank"))
    assert (ended.returncode, lines) == (0, ["rank 0 after 0", "rank 1 after 1", "rank 2 after 1"]), ended.output


def test_a_rank_of_another_host_comes_back(run: Run) -> None:
    command = [python_command("come_back")[-1], "20", "0.01", "1@10"]
    ended = run("-n", 2, "--hosts", "one:1,two:1", "--min-ranks", 1, "--restart", "--", *command)
    assert ended.returncode == 0, ended.output
    assert len(re.findall(r"^end \d 2 \d+ \d+$", ended.stdout, re.MULTILINE)) == 2, ended.output


def test_how_many_ranks_a_job_may_need(run: Run) -> None:
    def said(*options: object) -> str:
        return run("-n", 2, *options, "--", "true").stderr

    assert "--min-ranks takes a number from 1 to 2, the ranks of the job, not 3" in said("--min-ranks", 3)
    assert "--min-ranks takes a number from 1 to 2" in said("--min-ranks", 0)
    assert "MPI's launcher ends all ranks when one fails" in said("--min-ranks", 1, "--transport", "mpi")
    assert "leave --min-ranks out" in said("--min-ranks", 1, "--servers", 1)


@pytest.mark.parametrize(
    ("host", "status", "words"),
    [
        ("locked", 255, "host locked cannot be reached: ssh locked has to work without a question"),
        ("unknown", 255, "Could not resolve hostname unknown"),
        *(
            pytest.param(*each, marks=pytest.mark.thorough)
            for each in (
                ("bare", 127, "host bare has no GradientFlow in "),
                ("moved", 126, "host moved has no folder "),
            )
        ),
    ],
)
def test_a_host_that_cannot_take_part(run: Run, host: str, status: int, words: str) -> None:
    ended = run("-n", 2, "--hosts", f"{host},one", "--", "sleep", "1000")
    assert ended.returncode == status, ended.output
    assert words in ended.stderr
    assert "Traceback" not in ended.stderr


@pytest.mark.parametrize("number", [pytest.param(signal.SIGINT, marks=pytest.mark.thorough), signal.SIGKILL])
def test_no_process_is_left_on_any_host(start_run: Callable[..., Job], tmp_path: Path, number: signal.Signals) -> None:
    command = f"touch {tmp_path}/there$RANK; sleep 1000"
    job = start_run("-n", 2, "--hosts", "one:1,two:1", "--", "sh", "-c", command)
    wait_until(lambda: len(list(tmp_path.glob("there*"))) == 2)
    job.process.send_signal(number)
    ended = job.finish()  # which fails if one is
    assert ended.returncode == (130 if number == signal.SIGINT else -9), ended.output


def test_over_real_links(start_netlab: Callable[..., Any], tmp_path: Path) -> None:
    """Each host has several interfaces: ranks meet at the address that ssh leads to."""
    agent = write(
        tmp_path / "ssh",
        '#!/bin/sh\nif [ "$1" = -G ]; then echo "hostname $2"; exit; fi\n'
        'while [ "${1#-}" != "$1" ]; do case $1 in -o) shift 2;; *) shift;; esac; done\n'
        'exec $NETLAB_AGENT "$@"\n',
    )
    agent.chmod(0o755)
    met = Path(__file__).resolve().parents[1] / "programs" / "met.py"
    hosts = ["--hosts", "10.1.0.1:2,10.1.0.2:2"]
    command = module_command("gradientflow.cli", ["run", "-n", "4", "--transport", "tcp", *hosts, "--", str(met)])
    env = {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    ended = start_netlab("--hosts", "2", "--shell", "--", *command, env=env).finish()
    assert ended.returncode == 0, ended.output
    assert ended.stdout.count('"size": 4') == 4


@pytest.mark.parametrize("transport", [pytest.param("mpi", marks=[needs_mpi, pytest.mark.thorough]), "tcp"])
def test_lines_are_labeled(run: Run, transport: str) -> None:
    script = 'printf "one\\ntwo"; sleep 0.4; echo " and three"; echo four >&2'
    ended = run("--transport", transport, "-n", 2, "--label", "--", "sh", "-c", script)
    assert ended.returncode == 0, ended.output
    labels = {0: r"\[0\]", 1: r"\[1\]"} if transport == "tcp" else {0: r"\[(1,)?0\].*", 1: r"\[(1,)?1\].*"}
    for label in labels.values():
        assert len(re.findall(rf"^{label} ?one$", ended.stdout, re.MULTILINE)) == 1, ended.output
        assert len(re.findall(rf"^{label} ?four$", ended.stderr, re.MULTILINE)) == 1, ended.output


@pytest.mark.parametrize(
    "options",
    [
        pytest.param(("--transport", "mpi"), marks=[needs_mpi, pytest.mark.thorough]),
        ("--transport", "tcp"),
        pytest.param(("--preload", "wave"), marks=pytest.mark.thorough),
    ],
)
def test_variables_whose_names_a_shell_cannot_use(run: Run, options: tuple[str, ...]) -> None:
    """Such as functions of bash, as Environment Modules and Lmod export them."""
    odd = {"BASH_FUNC_greet%%": "() { echo hello; }", "A.DOT": "dot", "A-DASH": "dash"}
    code = f"import os; print({odd!r}.items() <= os.environ.items())"
    ended = run(*options, "-n", 1, "--", sys.executable, "-c", code, env=odd)
    assert (ended.returncode, ended.stdout) == (0, "True\n"), ended.output


@pytest.mark.parametrize(
    "options",
    [*(pytest.param(each, marks=pytest.mark.thorough) for each in ((), ("--label",))), ("--hosts", "one:1,two:1")],
)
def test_the_beginning_of_a_line_does_not_wait_for_other_ranks(
    start_run: Callable[..., Job], tmp_path: Path, options: tuple[str, ...]
) -> None:
    """Rank 1 writes without a pause until the question of rank 0 is to be seen."""
    asked = tmp_path / "asked"
    script = (
        "if [ $RANK = 0 ]; then printf 'go on? '; while ! [ -e $1 ]; do sleep 0.05; done\n"
        "else while ! [ -e $1 ]; do echo step; done; fi"
    )
    job = start_run("-n", 2, *options, "--", "sh", write(tmp_path / "program.sh", script), asked)
    assert job.process.stdout is not None
    seen = ""
    while "go on? " not in seen:
        piece = os.read(job.process.stdout.fileno(), 1 << 12).decode()
        assert piece, seen
        seen += piece
        assert time.monotonic() < job.started + job.timeout, seen
    asked.touch()
    assert job.finish().returncode == 0


def test_what_a_rank_leaves_behind_is_not_waited_for(run: Run, tmp_path: Path) -> None:
    """Though it writes; what the ranks have written themselves is passed on."""
    script = 'while kill -0 $1 2> /dev/null; do echo beat || exit; sleep 0.02; done & echo "the end"'
    ended = run("-n", 2, "--", "sh", write(tmp_path / "program.sh", script), os.getpid())
    assert ended.returncode == 0, ended.output
    assert ended.stdout.count("the end") == 2


@pytest.mark.parametrize("target", [1, 2])
@pytest.mark.parametrize(
    "options",
    [
        pytest.param(("--transport", "mpi"), id="mpi", marks=[needs_mpi, pytest.mark.thorough]),
        pytest.param((), id="tcp"),
        pytest.param(("--label",), id="label", marks=pytest.mark.thorough),
        pytest.param(("--hosts", "localhost:2"), id="hosts"),
    ],
)
def test_output_that_is_lost_is_an_error(target: int, options: tuple[str, ...]) -> None:
    """A disk that is full, for example. Of standard error there is nowhere to say it."""
    words = ["run", "-n", "2", "--transport", "tcp", *options, "--", "sh", "-c", f"echo lost >&{target}; true"]
    with open("/dev/full", "wb") as full:
        streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, ["", "stdout", "stderr"][target]: full}
        ended = subprocess.run(module_command("gradientflow.cli", words), timeout=60, check=False, **streams)
    said = b"gradientflow: standard output of the ranks cannot be written: No space left on device\n"
    assert (ended.returncode, ended.stderr) == (1, said if target == 1 else None)


def test_a_long_line_is_not_copied_with_each_of_its_pieces() -> None:
    """That would be 64 GB, and take many times as long."""
    stream, piece, begin = Stream(1), b"x" * (1 << 16), time.process_time()
    assert [stream.take(piece) for _ in range(1000)] == [b""] * 1000
    assert stream.take(b"\n") == 1000 * piece + b"\n"
    assert time.process_time() - begin < 2


def test_labels_and_notes_of_a_stream() -> None:
    stream = Stream(1, b"[0] ")
    assert stream.take(b"one\ntw") == b"[0] one\n"
    assert stream.take_begun() == b"[0] tw"
    assert stream.take(b"o\nthree\n") == b"o\n[0] three\n"
    stream = Stream(1, mark=b"MARK")
    assert stream.take(b"on") + stream.take(b"eMARKa n") == b""
    assert stream.take_begun() == b"one"  # but not what may become a note
    assert stream.take(b"ote\n") + stream.take(b" line\n") == b" line\n"
    assert stream.notes == [b"a note"]
    assert stream.take(b"MARtext MAR") + stream.take_begun() == b"MARtext "
    assert stream.take(b"Kanother\n") + stream.take(b"line\n") == b"line\n"
    assert stream.notes == [b"a note", b"another"]


def test_lines_after_a_repeated_traceback_are_kept() -> None:
    read, write = os.pipe()
    forwarder = Output()
    text = b'Traceback (most recent call last):\n  File "x.py", line 1, in <module>\nValueError: x\n'
    for rank in (0, 1):
        stream = Stream(write, rank=rank)
        stream.held = text + b"%d goes home\n" % rank
        forwarder._forward_held({rank: stream})
    os.close(write)
    with open(read, "rb") as shown:
        assert shown.read() == text + b"0 goes home\n[rank 1] the same traceback as on rank 0\n1 goes home\n"


def test_a_long_traceback_with_names_of_ranks_is_shortened_soon() -> None:
    package = str(Path(tracebacks.__file__).parents[1])
    frame = f'[rank0]:   File "{package}/a.py", line 1, in f\n[rank0]:     g()\n[rank0]:     ^^^\n'
    text = f"[rank0]: Traceback (most recent call last):\n{frame * 40}[rank0]: ValueError: x\n".encode()
    assert shortened(text) == text


WRONG = """
import os, sys
from gradientflow.strategies import as_strategy
rank = int(os.environ["RANK"])
print(f"{rank} begins", file=sys.stderr)
as_strategy("denes" if rank < 2 else "cscs")
"""


# MPI's launcher ends ranks soon after one fails, perhaps before they have written their tracebacks.
WRONG_WITHOUT_END = f"""
import os, sys, traceback
sys.excepthook = lambda *error: (traceback.print_exception(*error), os._exit(0))
{WRONG.strip()}
"""


@pytest.mark.parametrize("options", [(), pytest.param(("--label",), marks=pytest.mark.thorough)])
@needs_mpi
def test_a_mistake_of_several_ranks_is_shown_once_over_mpi(run: Run, tmp_path: Path, options: tuple[str, ...]) -> None:
    program = write(tmp_path / "wrong.py", WRONG_WITHOUT_END)
    ended = run("--transport", "mpi", *options, "-n", 3, "--", program)
    assert ended.returncode == 0, ended.output
    assert len(re.findall(r"^(?:\[.*)?[0-2] begins$", ended.stderr, re.M)) == 3, ended.stderr
    assert ended.stderr.count("Traceback (most recent call last)") == 2, ended.stderr
    assert "parsing.py" not in ended.stderr
    assert re.search(r"^\[rank(s 0-1| [01])\] (Traceback|the same traceback as on rank [01]$)", ended.stderr, re.M)


def test_a_mistake_of_several_ranks_is_shown_once(run: Run, tmp_path: Path) -> None:
    """With the program's own line above the sentence, and without frames inside of the package."""
    program = write(tmp_path / "wrong.py", WRONG)
    ended = run("-n", 3, "--", program)
    assert ended.returncode == 1, ended.output
    lines = ended.stderr.splitlines()
    assert {f"{rank} begins" for rank in range(3)} <= set(lines)
    for name in ("denes", "cscs"):
        (at,) = (i for i, line in enumerate(lines) if f"there is no strategy '{name}'" in line)
        assert f'File "{program}", line 6, in <module>' in "".join(lines[at - 3 : at]), ended.stderr
    assert ended.stderr.count("Traceback (most recent call last)") == 2, ended.stderr
    assert "parsing.py" not in ended.stderr
    assert re.search(r"^\[rank(s 0-1| [01])\] (Traceback|the same traceback as on rank [01]$)", ended.stderr, re.M)
    assert lines[-1].startswith("gradientflow: rank "), ended.stderr
    assert "parsing.py" in run("-n", 3, "--", program, env={"GRADIENTFLOW_DEBUG": "on"}).stderr


def test_tracebacks_of_ranks_are_merged_by_lines() -> None:
    first, second = b'Traceback (most recent call last):\n  File "a"\n', b"ValueError: several\nlines\n"
    torch = re.sub(rb"^", b"[rank1]: ", first + second[:-1], flags=re.MULTILINE) + b"\n"
    other = first + b"KeyError: 1\n"
    texts = {0: first + second + b"bye 0\n", 1: torch, 3: other, 4: b"text\n", 7: first + second}
    shared = first + second
    assert merged(texts) == [([0, 1, 7], shared), ([0], b"bye 0\n"), ([3], other), ([4], b"text\n")]
    assert named([0, 1, 7]) == b"ranks 0-1, 7"
    assert named([3]) == b"rank 3"


def test_lines_are_labeled_on_a_terminal(start_command: Callable[..., Job]) -> None:
    """There programs find a terminal; in a pipe, or if told, lines stay as they are."""
    script = f"{shlex.join(module_command('gradientflow.cli', ['run', '--transport', 'tcp', '-n', '2']))} $0 -- sh -c"
    script += " 'tty -s <&1 && echo on a terminal'"
    for option, line in (("--bind=none", r"\[[01]\] on a terminal"), ("--no-label", "on a terminal")):
        terminal = ["script", "-qec", script.replace("$0", option), "/dev/null"]
        ended = start_command(terminal, {}).finish()
        assert len(re.findall(rf"^{line}\r?$", ended.stdout, re.M)) == 2, ended.output


# Says that it is ready, and what it gets.
HANDLES = """
import os, signal, sys, time
got = []
for number in (signal.SIGUSR1, signal.SIGUSR2, signal.SIGTERM):
    signal.signal(number, lambda number, _: got.append(number))
folder, rank, needed = sys.argv[1], os.environ["RANK"], int(sys.argv[2])
open(f"{folder}/ready{rank}", "w").write(str(os.getpid()))
while len(got) < needed:
    time.sleep(0.02)
open(f"{folder}/got{rank}", "w").write(" ".join(map(str, got)))
time.sleep(float(sys.argv[3]))
print(*got, flush=True)
"""

WAYS = [
    pytest.param(("--transport", "mpi"), id="mpi", marks=[needs_mpi, pytest.mark.thorough]),
    pytest.param((), id="tcp"),
    pytest.param(("--hosts", "one:1,two:1"), id="hosts"),
    pytest.param(("--preload", "wave"), id="preload", marks=pytest.mark.thorough),
]


@pytest.fixture
def start_ready(start_run: Callable[..., Job], tmp_path: Path) -> Callable[..., tuple[Job, list[int]]]:
    """Give ``start_ready(options, needed, pause, before)``: two ranks that have handlers, and their processes."""

    def start(
        options: tuple[str, ...], needed: int, pause: float = 0, before: Sequence[str] = ()
    ) -> tuple[Job, list[int]]:
        program = write(tmp_path / "program.py", HANDLES)
        job = start_run("-n", 2, *options, "--", program, tmp_path, needed, pause, before=before)
        return job, [int(text) for text in wait_for_words(job, tmp_path, "ready")]

    return start


def wait_for_words(job: Job, folder: Path, kind: str) -> list[str]:
    files = [folder / f"{kind}{rank}" for rank in range(2)]
    while not all(file.exists() and file.read_text() for file in files):
        assert job.process.poll() is None, job.finish().output
        assert time.monotonic() < job.started + job.timeout
        time.sleep(0.02)
    return [file.read_text() for file in files]


Start = Callable[..., tuple[Job, list[int]]]


@pytest.mark.parametrize("options", WAYS)
def test_signals_of_programs_reach_the_ranks(start_ready: Start, options: tuple[str, ...]) -> None:
    job, _ = start_ready(options, 2)
    job.process.send_signal(signal.SIGUSR1)
    time.sleep(0.3)  # so that they come in this order
    job.process.send_signal(signal.SIGUSR2)
    ended = job.finish()
    assert (ended.returncode, ended.stdout.count("10 12\n")) == (0, 2), ended.output


def test_a_signal_that_comes_before_the_launcher_is_ready_reaches_the_ranks(start_run: Callable[..., Job]) -> None:
    job = start_run("-n", 2, "--", "sleep", 60)
    children = Path(f"/proc/{job.process.pid}/task/{job.process.pid}/children")
    while not children.read_text():
        assert time.monotonic() < job.started + job.timeout
        time.sleep(0.001)
    job.process.send_signal(signal.SIGUSR1)
    ended = job.finish()
    assert (ended.returncode, ended.stderr.count("was ended by SIGUSR1: ending the others")) == (138, 1), ended.output


@pytest.mark.parametrize("options", WAYS)
def test_a_job_is_stopped_and_continued(start_ready: Start, options: tuple[str, ...]) -> None:
    job, ranks = start_ready(options, 1)

    processes = [job.process.pid, *ranks]
    job.process.send_signal(signal.SIGTSTP)
    wait_until(lambda: all(_state(each) == "T" for each in processes))
    job.process.send_signal(signal.SIGCONT)
    wait_until(lambda: all(_state(each) != "T" for each in processes))
    job.process.send_signal(signal.SIGUSR1)
    ended = job.finish()
    assert (ended.returncode, ended.stdout.count("10")) == (0, 2), ended.output


def _state(process: int) -> str:
    return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]


@pytest.mark.parametrize("options", WAYS[:3])
def test_ranks_have_time_to_end_after_a_signal(start_ready: Start, options: tuple[str, ...]) -> None:
    """MPI's launcher would kill them after a quarter of a second; after a failure they have less."""
    job, _ = start_ready(options, 1, 1 if "mpi" in options else waits.ASKED_TO_END.seconds + 0.2)
    job.process.send_signal(signal.SIGTERM)
    ended = job.finish()
    assert (ended.returncode, ended.stdout.count("15\n")) == (143, 2), ended.output


@pytest.mark.parametrize("options", WAYS)
@pytest.mark.parametrize("way", ["a second signal", "no time", "a killed launcher"])
def test_ranks_that_do_not_end_are_killed(
    start_ready: Start, tmp_path: Path, options: tuple[str, ...], way: str
) -> None:
    job, _ = start_ready((*options, "--grace", "0" if way == "no time" else "1000"), 1, 1000)
    job.process.send_signal(signal.SIGTERM)
    if way != "no time":
        wait_for_words(job, tmp_path, "got")
    if way == "a second signal":
        time.sleep(waits.SAME_SIGNAL.seconds + 0.2)  # one that comes sooner counts as the same
        job.process.send_signal(signal.SIGTERM)
    elif way == "a killed launcher":
        job.process.kill()
    ended = job.finish()  # which fails if a process is left
    assert ended.returncode == (-9 if way == "a killed launcher" else 143), ended.output


def test_a_signal_ends_a_job_whose_output_nobody_reads(start_run: Callable[..., Job], tmp_path: Path) -> None:
    """Once its ranks have ended, their grace is not what it waits for."""
    job = start_run("-n", 1, "--grace", 1000, "--", "sh", "-c", f"yes | head -c 80000; echo $$ >{tmp_path}/rank")
    while not (text := (tmp_path / "rank").read_text() if (tmp_path / "rank").exists() else "") or (
        Path(f"/proc/{text.strip()}").exists()
    ):
        assert time.monotonic() < job.started + job.timeout
        time.sleep(0.02)
    job.process.send_signal(signal.SIGTERM)
    assert job.process.wait(scaled(30)) == 143, job.finish().output


@pytest.mark.parametrize("options", WAYS[:2])
def test_nohup_keeps_a_job_alive(start_ready: Start, options: tuple[str, ...]) -> None:
    job, _ = start_ready(options, 1, before=["nohup"])
    job.process.send_signal(signal.SIGHUP)
    job.process.send_signal(signal.SIGUSR1)
    ended = job.finish()
    assert (ended.returncode, ended.stdout.count("10\n")) == (0, 2), ended.output
