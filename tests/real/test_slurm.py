"""Slurm: a cluster of three hosts of netlab, with two cores each, and jobs of all kinds on it."""

from __future__ import annotations

import contextlib
import os
import re
import socket
import subprocess
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from doc_blocks import blocks_left_to, blocks_of
from jobs import Finished, Job, outside_environment, write
from needs_mpi import needs_mpi
from pace import wait_until

from gradientflow.netlab import Netlab, NetlabError

pytestmark = pytest.mark.real("slurm")

CONFIGURATION = """\
ClusterName=real
SlurmctldHost={name}({address})
SlurmUser=root
AuthInfo=socket={folder}/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool.%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmdParameters=config_overrides
SwitchType=switch/none
SchedulerParameters=sched_interval=1,bf_interval=1
TmpFS=/dev/shm
KillWait=2
NodeName=host[0-2] NodeAddr=10.1.0.[1-3] CPUs=2
PartitionName=all Nodes=ALL Default=YES
"""

# Adds up with all ranks, says where, and does what its argument asks for.
PROGRAM = """
import os, signal, sys, time, zlib, numpy as np, gradientflow as gf

def say(text):
    os.write(1, (text + "\\n").encode())  # at once, so that the lines of ranks stay whole

comm = gf.init()
x = np.random.default_rng(comm.rank).integers(1000, size=5000).astype(np.float32)
comm.allreduce(x)
say(f"{comm.rank} of {comm.size} on {comm.nodes} by {comm.describe()['transport']}: {zlib.crc32(x)}")
if "wait" in sys.argv:
    signal.signal(signal.SIGUSR1, lambda *_: (say(f"warned {comm.rank}"), sys.exit()))
    open(f"there{comm.rank}", "w").close()
    time.sleep(1000)
if "kill" in sys.argv:
    if comm.rank == 1: os.kill(os.getpid(), signal.SIGKILL)
    begin = time.monotonic()
    try: comm.barrier()
    except gf.errors.PeerError as error: say(f"{comm.rank} noticed after {time.monotonic() - begin:.1f} s: {error}")
    os._exit(3)
comm.close()
"""

Run = Callable[..., Finished]
PAGE = "docs/clusters.md"


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., list[str]]]:
    """Give ``cluster(*words)``, the command that starts another beside the daemon of the cluster."""
    folder = tmp_path_factory.mktemp("slurm")
    (folder / "state").mkdir()
    key, socket_of_munge, configuration = folder / "key", folder / "munge", folder / "slurm.conf"
    key.write_bytes(os.urandom(128))
    key.chmod(0o600)
    with contextlib.ExitStack() as closing:
        try:
            lab = closing.enter_context(Netlab(3))
        except NetlabError as error:
            pytest.skip(f"no hosts can be made here: {error}")
        configuration.write_text(
            CONFIGURATION.format(name=socket.gethostname(), address=lab.launcher_address, folder=folder)
        )
        log = closing.enter_context((folder / "log").open("w"))

        def begin(*words: str) -> None:
            environment = {**os.environ, "SLURM_CONF": str(configuration)}
            daemon = subprocess.Popen(words, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
            closing.callback(daemon.wait)
            closing.callback(daemon.kill)

        paths = [f"--socket={socket_of_munge}", f"--key-file={key}"]
        paths += [f"--{name}-file={folder}/munge.{name}" for name in ("pid", "log", "seed")]
        begin("munged", "--foreground", "--force", *paths)
        wait_until(socket_of_munge.exists)
        begin(*lab.command(["slurmctld", "-D", "-i"]))
        for number in range(3):  # PMIx takes a folder of the host for sockets
            begin(*lab.command([*lab.agent, f"host{number}", f"TMPDIR=/dev/shm exec slurmd -D -N host{number}"]))

        def command(*words: str) -> list[str]:
            return lab.command(["env", f"SLURM_CONF={configuration}", *words])

        def idle() -> bool:
            asked = command("sinfo", "--noheader", "--states=idle", "--format=%D")
            return subprocess.run(asked, capture_output=True, text=True, check=False).stdout.strip() == "3"

        wait_until(idle)
        yield command


@pytest.fixture
def start(cluster: Callable[..., list[str]], start_command: Callable[..., Job], tmp_path: Path) -> Callable[..., Job]:
    """Give ``start(words, env=None)``, which runs a command of Slurm in a folder with the program."""
    write(tmp_path / "program.py", PROGRAM)
    return lambda words, env=None: start_command(cluster(*words.split()), env, cwd=tmp_path)


@pytest.fixture
def run(start: Callable[..., Job]) -> Run:
    return lambda words, env=None: start(words, env).finish()


def added_up(ended: Finished, nodes: int, ranks: int, transport: str = "tcp") -> None:
    """Check that each rank has the sum that one process has."""
    arrays = [np.random.default_rng(rank).integers(1000, size=5000) for rank in range(ranks)]
    total = zlib.crc32(np.sum(arrays, axis=0).astype(np.float32))
    lines = re.findall(r"^\d+ of .*", ended.stdout, re.MULTILINE)
    expected = [f"{rank} of {ranks} on {nodes} by {transport}: {total}" for rank in range(ranks)]
    assert (ended.returncode, sorted(lines)) == (0, expected), ended.output


PMIX = pytest.param("pmix", marks=pytest.mark.real("pmix"))


@pytest.fixture
def kind(request: pytest.FixtureRequest, run: Run) -> str:
    """Give the value of srun's ``--mpi``, if this Slurm has it."""
    value: str = request.param
    if value not in run("srun --mpi=list").output:
        pytest.skip(f"this Slurm has no {value}")
    return value


@pytest.mark.parametrize("kind", ["none", "pmi2", PMIX], indirect=True)
def test_srun(run: Run, kind: str) -> None:
    added_up(run(f"srun -n 4 --mpi={kind} python program.py", {"GRADIENTFLOW_TRANSPORT": "tcp"}), 2, 4)


@needs_mpi
@pytest.mark.parametrize("kind", [PMIX], indirect=True)
def test_srun_for_mpi(run: Run, kind: str) -> None:
    ended = run(f"srun -N 3 -n 4 --mpi={kind} python program.py", {"GRADIENTFLOW_TRANSPORT": "mpi"})
    added_up(ended, 3, 4, "mpi")


@pytest.mark.parametrize(
    "words",
    [
        "srun -n 1 -w host2 python program.py : -n 2 -w host1 python program.py",
        "salloc -n 1 -w host2 : -n 2 -w host1 srun --het-group=0,1 python program.py",
    ],
)
def test_steps_of_several_components(run: Run, words: str) -> None:
    added_up(run(words), 2, 3)


@pytest.mark.parametrize("distribution", ["arbitrary", "cyclic"])
def test_orders_of_ranks(run: Run, tmp_path: Path, distribution: str) -> None:
    """Rank 0 on the last node; neighbors on different nodes."""
    write(tmp_path / "hosts", "host2\nhost0\nhost0\n")
    hosts = {"SLURM_HOSTFILE": "hosts"} if distribution == "arbitrary" else {}
    added_up(run(f"srun -N 2 -n 3 --distribution={distribution} python program.py", hosts), 2, 3)


@pytest.fixture
def batch(cluster: Callable[..., list[str]], tmp_path: Path) -> Run:
    """Give ``batch(options, lines, meanwhile=None)``, which runs a batch script, and waits for its end.

    `meanwhile` gets a function that runs a command, and the number of the job. ``sbatch --wait`` looks every 10 s.
    """
    write(tmp_path / "program.py", PROGRAM)

    def call(words: str) -> str:
        options: dict[str, Any] = {"cwd": tmp_path, "env": outside_environment(), "stdout": subprocess.PIPE}
        return subprocess.run(cluster(*words.split()), text=True, check=True, **options).stdout

    def run(options: str, lines: str, meanwhile: Callable[..., object] = lambda *_: None) -> Finished:
        write(tmp_path / "job.sh", f"#!/bin/sh\n{lines}\n")
        job = call(f"sbatch --parsable --output=out {options} job.sh").strip()
        meanwhile(call, job)
        wait_until(lambda: re.search(r"JobState=(COMPLETED|FAILED|CANCELLED) ", call(f"scontrol show job {job}")))
        status = re.search(r"ExitCode=(\d+):0", call(f"scontrol show job {job}"))
        return Finished(int(status[1]) if status else -1, (tmp_path / "out").read_text(), "")

    return run


def test_two_steps_at_once(batch: Run, tmp_path: Path) -> None:
    step = "srun --exact -N 2 -n 2 --output={} python program.py &\n"
    batch("-N 2 -n 4", f"{step.format('one')}{step.format('two')}wait")
    for name in ("one", "two"):
        added_up(Finished(0, (tmp_path / name).read_text(), ""), 2, 2)


@pytest.mark.parametrize("nodes", [1, 2])
@needs_mpi
def test_gradientflow_run_in_a_batch_script(batch: Run, nodes: int) -> None:
    line = "gradientflow run --transport mpi -n $SLURM_NTASKS -- python program.py"
    added_up(batch(f"-N {nodes} -n {2 * nodes}", line), nodes, 2 * nodes, "mpi")


def test_gradientflow_run_over_tcp_in_a_batch_script(batch: Run) -> None:
    line = "gradientflow run --transport tcp -n 2 -- python program.py"
    added_up(batch("-n 2", line), 1, 2)
    refused = batch("-N 2 -n 2", line)
    assert refused.returncode == 2
    assert "this allocation has 2 nodes" in refused.stdout


RUN = "gradientflow run --transport {} -n 2 --"


@pytest.mark.parametrize("start", [pytest.param(RUN.format("mpi"), marks=needs_mpi), RUN.format("tcp"), "srun -n 2"])
def test_ranks_are_warned_of_the_end_of_a_batch_job(batch: Run, tmp_path: Path, start: str) -> None:
    """As by ``sbatch --signal=B:USR1@120``."""

    def warn(call: Callable[[str], str], job: str) -> None:
        wait_until(lambda: len(list(tmp_path.glob("there*"))) == 2)
        call(f"scancel --batch --signal=USR1 {job}")

    ended = batch("-n 2", f"exec {start} python program.py wait", warn)
    assert (ended.returncode, ended.stdout.count("warned")) == (0, 2), ended.output


@needs_mpi
@pytest.mark.parametrize("kind", [PMIX], indirect=True)
@pytest.mark.usefixtures("kind")
def test_commands_of_the_page(run: Run, tmp_path: Path) -> None:
    for block in blocks_of(PAGE):
        if block.saved_as in ("first.py", "job.sh"):
            write(tmp_path / block.saved_as, block.text)
    _, commands = blocks_left_to(__file__, PAGE)
    sbatch, *steps, bench = map(run, commands.text.splitlines())
    (output,) = tmp_path.glob("slurm-*.out")
    for ended in (Finished(sbatch.returncode, output.read_text(), sbatch.output), *steps):
        found = re.findall(r"^rank \d on node 0 of 1: \[3\. 3\. 3\. 3\.\]$", ended.stdout, re.MULTILINE)
        assert (ended.returncode, len(set(found))) == (0, 2), ended.output
    assert bench.returncode == 0, bench.output


@pytest.mark.real("torch")
def test_torchrun_in_a_step(run: Run, tmp_path: Path) -> None:
    """As on the page, which has it run on two hosts."""
    torchrun, _ = blocks_left_to(__file__, PAGE)
    write(tmp_path / "first.py", PROGRAM)
    added_up(run(f"srun -N 2 -n 2 -w host0,host1 {torchrun.text}"), 2, 4)


def test_scancel(run: Run, start: Callable[..., Job], tmp_path: Path) -> None:
    job = start("srun -n 4 -J ended python program.py wait")
    wait_until(lambda: len(list(tmp_path.glob("there*"))) == 4)
    assert run("scancel --name ended").returncode == 0
    assert job.finish().returncode != 0  # and no process is left
    wait_until(lambda: run("squeue --noheader").stdout == "")


@pytest.mark.parametrize("kind", ["none", PMIX], indirect=True)
def test_a_task_that_is_killed(run: Run, kind: str) -> None:
    ended = run(f"srun -n 4 --mpi={kind} python program.py kill", {"GRADIENTFLOW_TRANSPORT": "tcp"})
    noticed = re.findall(r"^(\d) noticed after (.*) s: .*rank 1\b", ended.stdout, re.MULTILINE)
    assert sorted(rank for rank, _ in noticed) == ["0", "2", "3"], ended.output
    assert ended.returncode != 0


def test_a_task_that_fails_before_the_ranks_have_met(run: Run, tmp_path: Path) -> None:
    """Without -K the other ranks wait for it until their time is up."""
    write(tmp_path / "task.sh", "if [ $SLURM_PROCID = 1 ]; then exit 5; fi; exec python program.py")
    ended = run("srun -K -n 3 sh task.sh")
    assert ended.returncode != 0
    assert "task 1: Exited with exit code 5" in ended.stderr, ended.output
