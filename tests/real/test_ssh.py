"""OpenSSH: hosts of gradientflow run behind an sshd of this machine, with a key, a port and settings of its own."""

from __future__ import annotations

import getpass
import os
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from forked_ranks import TAG
from jobs import Finished, Job, free_port, write
from pace import wait_until

from gradientflow.launch import module_command

pytestmark = pytest.mark.real("ssh")

SERVER = """\
ListenAddress 127.0.0.1
ListenAddress 127.0.0.2
ListenAddress ::1
Port {port}
HostKey {folder}/host
AuthorizedKeysFile {folder}/client.pub
PidFile none
UsePAM no
StrictModes no
PermitRootLogin yes
AcceptEnv {tag}
"""
CLIENT = """\
Host one two
  HostName 127.0.0.1
Host stranger
  HostName 127.0.0.1
  UserKnownHostsFile /dev/null
Host closed
  HostName 127.0.0.1
  Port {closed}
Host *
  Port {port}
  IdentityFile {folder}/client
  IdentitiesOnly yes
  UserKnownHostsFile {folder}/known
  SendEnv {tag}
"""


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Give the folder of an ``ssh`` that takes our settings, beside a server that takes ours."""
    folder = tmp_path_factory.mktemp("ssh")
    for name in ("host", "client"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", folder / name], check=True)
    places = {"folder": folder, "port": free_port(), "closed": free_port(), "tag": TAG}
    key = (folder / "host.pub").read_text()
    write(folder / "known", "".join(f"[{name}]:{places['port']} {key}" for name in ("127.0.0.?", "::1")))
    write(folder / "sshd_config", SERVER.format(**places))
    write(folder / "config", CLIENT.format(**places))
    write(folder / "ssh", f'#!/bin/sh\nexec {shutil.which("ssh")} -F {folder}/config "$@"\n').chmod(0o755)
    Path("/run/sshd").mkdir(exist_ok=True)
    with (folder / "log").open("w") as log:
        command = [shutil.which("sshd") or "", "-D", "-e", "-f", folder / "sshd_config"]
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=log)
    wait_until(
        lambda: subprocess.run([folder / "ssh", "one", "true"], capture_output=True, check=False).returncode == 0
    )
    yield folder
    process.terminate()
    process.wait()


@pytest.fixture
def start(server: Path, start_command: Callable[..., Job], tmp_path: Path) -> Callable[..., Job]:
    """Give ``start(*arguments, env=None, cwd=tmp_path)``: it starts ``gradientflow run`` with this ssh on the PATH."""

    def run(*arguments: object, env: dict[str, str] | None = None, cwd: Path = tmp_path) -> Job:
        transport = {"GRADIENTFLOW_TRANSPORT": "tcp"}
        command = module_command("gradientflow.cli", ["run", *map(str, arguments)])
        path = f"{server}:{os.environ['PATH']}"
        return start_command(command, {"PATH": path, **transport, **(env or {})}, cwd=cwd)

    return run


@pytest.fixture
def run(start: Callable[..., Job]) -> Callable[..., Finished]:
    return lambda *arguments, **options: start(*arguments, **options).finish()


Run = Callable[..., Finished]
ODD = ["two words", "", "it's", 'a "b"', "$HOME `id` $(id)", "one\ntwo", "*", "a;b&c|d>e", "\\n\\", "#é", "!x"]


def test_words_and_variables_arrive_as_they_are(run: Run, tmp_path: Path) -> None:
    folder = tmp_path / "a folder's $HOME"
    folder.mkdir()
    text = "import os, sys; names = 'GRADIENTFLOW_TIMEOUT', 'XLA_ODD', 'UNKNOWN'\n"
    text += "print(ascii([os.getcwd(), *map(os.environ.get, names), *sys.argv[1:]]))"
    variables = {"GRADIENTFLOW_TIMEOUT": "40", "XLA_ODD": ODD[5] + ODD[4], "UNKNOWN": "not passed on"}
    ended = run("--hosts", "one,two", "--", write(folder / "program.py", text), *ODD, env=variables, cwd=folder)
    expected = ascii([str(folder), "40", variables["XLA_ODD"], None, *ODD])
    assert (ended.returncode, ended.stdout.splitlines()) == (0, [expected] * 2), ended.output


ADDS = """
import os, sys, numpy as np, gradientflow as gf
with gf.init() as comm:
    os.write(1, b"%d %d\\n" % (comm.allreduce(np.full(1000, comm.rank + 1))[999], "colorsys" in sys.modules))
"""


@pytest.mark.parametrize("hosts", ["one:2,two", "{user}@one:2,{user}@[::1]:1", "{user}@[::1]:2,[::1]"])
@pytest.mark.parametrize("more", [(), ("--preload", "colorsys")])
def test_ranks_add_up(run: Run, tmp_path: Path, hosts: str, more: tuple[str, ...]) -> None:
    program = write(tmp_path / "program.py", ADDS)
    ended = run("--hosts", hosts.format(user=getpass.getuser()), *more, "--", program)
    assert (ended.returncode, ended.stdout) == (0, f"6 {len(more) // 2}\n" * 3), ended.output


@pytest.mark.usefixtures("launcher")
def test_ranks_of_mpi_add_up(run: Run, tmp_path: Path) -> None:
    program, user = write(tmp_path / "program.py", ADDS), getpass.getuser()
    ended = run("--transport", "mpi", "--hosts", f"127.0.0.1,{user}@127.0.0.2:2", "--", program)
    assert (ended.returncode, ended.stdout) == (0, "6 0\n" * 3), ended.output


def test_the_exit_status_of_the_rank_that_fails(run: Run) -> None:
    ended = run("--hosts", "one,two", "--", "sh", "-c", "[ $RANK = 0 ] || exit 7; sleep 1000")
    assert ended.returncode == 7, ended.output
    assert "on two) ended with exit status 7" in ended.stderr


@pytest.mark.parametrize(
    ("host", "reason"), [("stranger", "Host key verification failed"), ("closed", "Connection refused")]
)
def test_a_host_that_cannot_be_reached(run: Run, host: str, reason: str) -> None:
    ended = run("--hosts", f"one,{host}", "--", "sleep", "1000")
    assert ended.returncode == 255, ended.output
    assert reason in ended.stderr
    assert f"host {host} cannot be reached" in ended.stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_ends_of_the_launcher_end_all_ranks(start: Callable[..., Job], tmp_path: Path, number: int) -> None:
    job = start("--hosts", "one:2,two", "--", "sh", "-c", "touch there$RANK; sleep 1000")
    wait_until(lambda: len(list(tmp_path.glob("there*"))) == 3)
    job.process.send_signal(number)
    assert job.finish().returncode == (130 if number == signal.SIGINT else -9)  # and no process is left


LOSES = """
import os, pathlib, signal, gradientflow as gf
comm = gf.init()
if comm.rank == 2:  # the parent of the launcher is the server of this connection
    os.kill(int(pathlib.Path(f"/proc/{os.getppid()}/stat").read_text().rpartition(")")[2].split()[1]), signal.SIGKILL)
    signal.pause()
try: comm.barrier()
except gf.errors.PeerError as error: os.write(1, f"noticed: {error}\\n".encode())
"""


def test_a_lost_connection(run: Run, tmp_path: Path) -> None:
    """The ranks behind it end, the other ranks notice, and a line names the host."""
    ended = run("--hosts", "one:2,two", "--", write(tmp_path / "program.py", LOSES))
    assert ended.returncode == 255, ended.output
    assert "host two is lost: ssh ended with exit status 255" in ended.stderr
    assert ended.stdout.count("noticed: rank 2") == 2, ended.output
