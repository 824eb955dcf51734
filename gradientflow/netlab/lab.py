"""Hosts on one machine: namespaces with their own names, addresses and processes, joined by links of a given rate.

A host is a set of namespaces: network, host name, processes, mounts. The *control side*, from which jobs are started,
is a network namespace with two bridges::

    host0   eth0 10.0.0.1 ---- rate ----+
    host1   eth0 10.0.0.2 ---- rate ----+-- bridge "data"      messages between ranks
            ...
    host0   ctl0 10.1.0.1 --------------+
    host1   ctl0 10.1.0.2 --------------+-- bridge "control"   10.1.0.254: the launcher, and output of ranks
            ...

Therefore neither the start of a job nor its output counts against the rate, and ranks of a host can be ended even if
its ``eth0`` is down.

No namespace, link or bridge has a name outside the namespaces, so several netlabs can run at the same time. Namespaces
live as long as a process in them. The first process of each waits for the end of a pipe from this process. When this
process ends, for any reason, the pipe closes and the first processes end. The kernel then ends all other processes of
the hosts, and removes links and bridges.

With a delay, a program replaces the bridge "data": the ``eth0`` interfaces of the hosts are TAP devices of this
program.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from types import TracebackType

from gradientflow.launch import BIND, cores
from gradientflow.mpi_start import is_chosen

from .link import RATE_VARIABLE, NetlabError, link_limit, parse_delay

_MOST_HOSTS = 250

_MARK = "GRADIENTFLOW_NETLAB"  # variable of all processes of a netlab; its value identifies the netlab's own process
_PROGRAMS = {"ip": "iproute2", "tc": "iproute2", "unshare": "util-linux", "nsenter": "util-linux"}
_SECONDS_TO_END = 5.0
_SWITCH = Path(__file__).with_name("switch.py")

# Names of the launcher's settings: for Open MPI 4, and for PRRTE, the launcher since Open MPI 5.
_SETTINGS_OF_4 = {
    "agent": "OMPI_MCA_plm_rsh_agent",
    "hostfile": "OMPI_MCA_orte_default_hostfile",
    "interface": "OMPI_MCA_oob_tcp_if_include",
    "folder": "OMPI_MCA_orte_tmpdir_base",
    "binding": "OMPI_MCA_hwloc_base_binding_policy",
    "memory": "vader",
}
_SETTINGS_OF_5 = {
    "agent": "PRTE_MCA_plm_ssh_agent",
    "hostfile": "PRTE_MCA_prte_default_hostfile",
    "interface": "PRTE_MCA_prte_if_include",
    "folder": "PRTE_MCA_prte_remote_tmpdir_base",
    "binding": "PRTE_MCA_hwloc_default_binding_policy",
    "memory": "sm",
}

_CONTROL_SCRIPT = "ip link set lo up && echo made && read _"
# The files of the MPI library go to the host's own /dev/shm, and disappear with it.
_HOST_SCRIPT = """
echo "$1" > /proc/sys/kernel/hostname &&
mount -t tmpfs netlab /dev/shm &&
echo "$2" > /dev/shm/hosts &&
{ [ ! -e /etc/hosts ] || mount --bind /dev/shm/hosts /etc/hosts; } &&
ip link set lo up && echo made && read _
"""
_AGENT_SCRIPT = """
case $1 in
%s
*) echo "this netlab has no host $1" >&2; exit 2 ;;
esac
shift
exec nsenter --target $pid --net --uts --mount --pid=/proc/$pid/ns/pid_for_children -- \
    sh -c 'cd "$0"; eval "$*"' "$PWD" "$@"
"""


class Netlab:
    """Hosts on this machine, for the length of a block ``with Netlab(...) as lab``.

    Parameters
    ----------
    hosts : int
        Number of hosts; their names are ``host0``, ``host1``, and so on.
    rate : str
        Sending rate of each ``eth0``, in the notation of ``tc`` (``1gbit``), or ``none`` for no limit.
    ranks_per_host : int
        Number of slots for ranks on each host.
    delay : str
        Delay of each frame that a host sends, such as ``5ms``; none by default.
    """

    def __init__(self, hosts: int, rate: str = "none", ranks_per_host: int = 1, delay: str = "0s") -> None:
        if not 1 <= hosts <= _MOST_HOSTS:
            raise NetlabError(f"--hosts takes 1 to {_MOST_HOSTS}, not {hosts}")
        if ranks_per_host < 1:
            raise NetlabError(f"--ranks-per-host takes 1 or more, not {ranks_per_host}")
        self.ranks = hosts * ranks_per_host
        self.slots = ",".join(f"{_control_address(number)}:{ranks_per_host}" for number in range(hosts))
        self._names = [f"host{number}" for number in range(hosts)]
        self.hosts_of_ranks = [name for name in self._names for _ in range(ranks_per_host)]
        self._rate = rate
        self._limit = link_limit(rate)
        self._delay = parse_delay(delay)
        self._hosts: list[_Namespaces] = []
        self._closing = contextlib.ExitStack()

    def __enter__(self) -> Netlab:
        """Create the hosts; after an exception, remove all of them."""
        _check_machine()
        with contextlib.ExitStack() as closing:
            self._control = closing.enter_context(_Namespaces("--net", _CONTROL_SCRIPT))
            addresses = (f"{_data_address(number)} {name}" for number, name in enumerate(self._names))
            table = "\n".join(["127.0.0.1 localhost", *addresses])
            kinds = "--net --uts --pid --fork --kill-child --mount-proc"
            self._hosts = [closing.enter_context(_Namespaces(kinds, _HOST_SCRIPT, name, table)) for name in self._names]
            for namespaces in (self._control, *self._hosts):
                namespaces.wait_until_made()
            if self._delay:
                closing.enter_context(self._switch())
            self._join_hosts()
            self._agent = closing.enter_context(_MemoryFile(self._agent_script()))
            self._host_file = closing.enter_context(_MemoryFile(self.slots.replace(":", " slots=").replace(",", "\n")))
            self._closing = closing.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Remove the hosts, with all their processes."""
        self._closing.close()

    def command(self, command: Sequence[str]) -> list[str]:
        """Return a command with a prefix that runs it on the control side.

        Parameters
        ----------
        command : sequence of str
            The command.

        Returns
        -------
        list of str
            The command with its prefix, which adds no process.
        """
        return self._control.command(command)

    @property
    def launcher_address(self) -> str:
        """Address by which hosts reach the control side, where launchers run."""
        return _control_address(253)

    @property
    def agent(self) -> list[str]:
        """Command that, like ssh, starts a command on a host from the control side: ``[*agent, host, command]``."""
        return ["/bin/sh", self._agent.path]

    @property
    def variables(self) -> dict[str, str]:
        """Environment variables of any job on the hosts. Variables already set in this process keep their values."""
        return {
            _MARK: _mark(os.getpid()),
            "NETLAB_HOSTS": self.slots,
            "NETLAB_AGENT": " ".join(self.agent),
            BIND: os.environ.get(BIND, "none"),  # all hosts share the same cores
            RATE_VARIABLE: "" if self._limit is None else self._rate,
            "GLOO_SOCKET_IFNAME": os.environ.get("GLOO_SOCKET_IFNAME", "eth0"),
            "GRADIENTFLOW_INTERFACE": os.environ.get("GRADIENTFLOW_INTERFACE", "eth0"),
        }

    def environment(self, version: str) -> dict[str, str]:
        """Return the variables with which Open MPI's launcher starts jobs on the hosts from the control side.

        Parameters
        ----------
        version : str
            Version of Open MPI.

        Returns
        -------
        dict of str to str
            The additional variables only. Settings of Open MPI in this process's environment are kept.
        """
        names = _SETTINGS_OF_4 if version.startswith("4.") else _SETTINGS_OF_5
        settings = {
            "OMPI_MCA_pml": "ob1",
            "OMPI_MCA_osc": "^ucx",
            "OMPI_MCA_btl": f"self,{names['memory']},tcp",
            "OMPI_MCA_btl_tcp_if_include": f"{_data_address(0)}/24",
            names["binding"]: "none",  # all hosts share the same cores
        }
        if self.ranks >= cores():  # the network and the launcher's daemons need a core as well
            settings["OMPI_MCA_mpi_yield_when_idle"] = "1"
        return {
            **self.variables,
            names["agent"]: " ".join(self.agent),
            names["hostfile"]: self._host_file.path,
            names["interface"]: f"{_control_address(0)}/24",
            names["folder"]: "/dev/shm",
            **{name: value for name, value in settings.items() if not is_chosen(name)},
        }

    def take_link_down(self, host: int, seconds: float) -> None:
        """Take down a host's ``eth0`` after some seconds.

        Parameters
        ----------
        host : int
            Number of the host.
        seconds : float
            Seconds until the link goes down.
        """
        self._hosts[host].start(["sh", "-c", f"sleep {seconds:f}; ip link set eth0 down"])

    @contextlib.contextmanager
    def _switch(self) -> Iterator[None]:
        """Start the switch program, which forwards frames after a delay and makes devices for the hosts."""
        devices = [f"data{number}" for number in range(len(self._hosts))]
        switch = subprocess.Popen(
            self._control.command([sys.executable, "-I", str(_SWITCH), f"{self._delay:f}", *devices]),
            env={**_environment(), _MARK: _mark(os.getpid())},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        try:
            assert switch.stdout is not None
            said = switch.stdout.readline()
            if said != "made\n":
                reason = (said + switch.stdout.read()).strip().rpartition("\n")[2]
                raise NetlabError(f"no link with a delay can be made here ({reason})")
            with contextlib.suppress(PermissionError):
                os.setpriority(os.PRIO_PROCESS, switch.pid, -20)  # computing ranks must not delay the switch
            yield
        finally:
            with contextlib.suppress(subprocess.TimeoutExpired):
                switch.communicate(timeout=_SECONDS_TO_END)
            switch.kill()
            switch.wait()

    def _join_hosts(self) -> None:
        links = ["link add control up type bridge", *([] if self._delay else ["link add data up type bridge"])]
        for number, host in enumerate(self._hosts):
            if self._delay:
                links.append(f"link set data{number} netns {host.pid} name eth0")
            else:
                links += _veth("data", number, "eth0", host)
            links += _veth("control", number, "ctl0", host)
        self._control.run_ip([*links, f"address add {self.launcher_address}/24 dev control"])
        for number, host in enumerate(self._hosts):
            steps = []
            for interface, address in (("eth0", _data_address(number)), ("ctl0", _control_address(number))):
                steps += [f"address add {address}/24 dev {interface}", f"link set {interface} up"]
            host.run_ip(steps)
            if self._limit is not None:
                host.run(["tc", "qdisc", "add", "dev", "eth0", "root", "tbf", *self._limit.split()])

    def _agent_script(self) -> str:
        """Return the script that starts a command on a host, like ``ssh HOST COMMAND``."""
        lines = (
            f"{name}|{_data_address(number)}|{_control_address(number)}) pid={host.pid} ;;"
            for number, (name, host) in enumerate(zip(self._names, self._hosts, strict=True))
        )
        return _AGENT_SCRIPT % "\n".join(lines)


def _veth(bridge: str, number: int, interface: str, host: _Namespaces) -> list[str]:
    port = f"{bridge}{number}"
    return [
        f"link add {port} type veth peer name {interface} netns {host.pid}",
        f"link set {port} master {bridge} up",
    ]


def end_leftovers() -> int:
    """End the processes of netlabs whose own process was killed.

    Returns
    -------
    int
        The number of processes.
    """
    ended: set[int] = set()
    deadline = time.monotonic() + _SECONDS_TO_END
    while (found := set(_leftovers())) and time.monotonic() < deadline:
        for pid in found:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        ended |= found
        time.sleep(0.02)
    return len(ended)


class _Namespaces:
    """Namespaces that live until they are closed or this process ends."""

    def __init__(self, kinds: str, script: str, *arguments: str) -> None:
        self._first = subprocess.Popen(
            ["unshare", *kinds.split(), "sh", "-c", script, "sh", *arguments],
            env={**_environment(), _MARK: _mark(os.getpid())},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,  # Ctrl-C at a terminal must not end the namespaces
        )
        self._started: list[subprocess.Popen[bytes]] = []
        self.pid = self._first.pid

    def wait_until_made(self) -> None:
        assert self._first.stdout is not None
        said = self._first.stdout.readline()
        if said != "made\n":
            raise NetlabError(f"the kernel does not let this process make hosts ({said.strip()})")

    def command(self, command: Sequence[str], *further: str) -> list[str]:
        return ["nsenter", f"--net=/proc/{self.pid}/ns/net", *further, "--", *command]

    def run(self, command: Sequence[str], lines: Iterable[str] = ()) -> None:
        done = subprocess.run(
            self.command(command),
            env=_environment(),
            input="\n".join(lines),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        if done.returncode != 0:
            raise NetlabError(f"the hosts cannot be joined ({command[0]}: {'; '.join(done.stdout.splitlines())})")

    def run_ip(self, lines: Iterable[str]) -> None:
        self.run(["ip", "-batch", "-"], lines)

    def start(self, command: Sequence[str]) -> None:
        """Start a command that ends with the namespaces; these must include a PID namespace."""
        inside = self.command(command, f"--pid=/proc/{self.pid}/ns/pid_for_children")
        self._started.append(
            subprocess.Popen(inside, env=_environment(), stdin=subprocess.DEVNULL, start_new_session=True)
        )

    def __enter__(self) -> _Namespaces:
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._first.communicate(timeout=_SECONDS_TO_END)  # closes the pipe whose end the process waits for
        self._first.kill()
        self._first.wait()
        for process in self._started:
            process.wait()


class _MemoryFile:
    """A file without a name in any folder, which disappears with this process."""

    def __init__(self, text: str) -> None:
        self._descriptor = os.memfd_create("netlab")
        self.path = f"/proc/{os.getpid()}/fd/{self._descriptor}"
        Path(self.path).write_text(text + "\n", encoding="utf-8")

    def __enter__(self) -> _MemoryFile:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._descriptor)


def _check_machine() -> None:
    """Raise if no hosts can be created on this machine."""
    if os.geteuid() != 0:
        raise NetlabError("only root can make hosts: run this command with sudo or as root")
    for name, package in _PROGRAMS.items():
        if shutil.which(name, path=_environment()["PATH"]) is None:
            raise NetlabError(f"making hosts needs the program {name}, which is not on the PATH: install {package}")


def _environment() -> dict[str, str]:
    """Return the environment with the programs' folders in the PATH, which root may lack without a login shell."""
    path = os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin"])
    return {**os.environ, "PATH": path}


def _data_address(number: int) -> str:
    return f"10.0.0.{number + 1}"


def _control_address(number: int) -> str:
    return f"10.1.0.{number + 1}"


def _mark(pid: int) -> str:
    """Return a mark of a process that later processes with its number lack; empty if the process does not exist."""
    try:
        status = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return ""
    return f"{pid}-{status.rpartition(')')[2].split()[19]}"  # the time of its start


def _leftovers() -> Iterable[int]:
    """Yield the processes whose netlab has ended."""
    for folder in Path("/proc").iterdir():
        if not folder.name.isdecimal() or int(folder.name) == os.getpid():
            continue
        with contextlib.suppress(OSError):
            found = re.search(rf"(?:^|\0){_MARK}=(\d+)-\d+\0", (folder / "environ").read_text(errors="replace"))
            if found and not found[0].endswith(f"{_MARK}={_mark(int(found[1]))}\0"):
                yield int(folder.name)
