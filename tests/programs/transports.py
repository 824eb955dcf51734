"""Ranks of a job of MPI choose what moves their messages, on one host or on several."""

from __future__ import annotations

import os
import re
import resource
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from unittest import mock

import numpy as np
from mpi4py import MPI
from support import RANK, SIZE, WORLD, raises, run

import gradientflow as gf
from gradientflow import _core
from gradientflow.errors import ArgumentError, ClosedError, MismatchError, PeerError, SystemCallError

NONE = "no host has an RDMA device"
LISTENS = "0A"  # in /proc/net/tcp


def listeners() -> set[str]:
    """Return where this process listens, IPv4 addresses in hexadecimal digits."""
    mine = {os.readlink(each) for each in Path("/proc/self/fd").iterdir() if each.is_symlink()}
    lines = [line.split() for line in Path("/proc/self/net/tcp").read_text().splitlines()[1:]]
    return {line[1] for line in lines if line[3] == LISTENS and f"socket:[{line[9]}]" in mine}


@contextmanager
def made(transport: str, remark: str, variables: Mapping[str, str] | None = None) -> Iterator[gf.Communicator]:
    """Make a communicator, and check how its messages travel, and that they do."""
    with mock.patch.dict(os.environ, variables or {}), gf.init() as comm:
        said = comm.describe()
        assert (said["transport"], said["transport_remark"]) == (transport, remark), said
        assert (comm.allreduce(np.full(100_000, comm.rank + 1)) == SIZE * (SIZE + 1) // 2).all()
        yield comm


def one_host() -> None:
    """The ranks of one host keep to MPI, and do not listen."""
    before = listeners()
    with made("mpi", "all ranks are on one host"), made("mpi", "rank 1 asks for mpi", asks(1, "mpi")):
        assert listeners() == before
    with made("tcp", "rank 1 asks for tcp", asks(1, "tcp")):
        assert len(listeners() - before) == 1
    with raises(ArgumentError, "rank 1 cannot be reached by others"):
        gf.init(transport="tcp", config=gf.Config(interface="nosuch0" if RANK == 1 else "auto"))


def asks(rank: int, transport: str) -> dict[str, str]:
    return {"GRADIENTFLOW_TRANSPORT": transport} if rank == RANK else {}


def several_hosts() -> None:
    """The ranks of several take TCP, at the interface that is meant for MPI, and keep MPI for calls that need it."""
    before = listeners()
    with made("tcp", NONE) as comm:
        assert len(listeners() - before) == 1
        assert (comm.allreduce(np.ones(7), algorithm="mpi") == SIZE).all()
        part = comm.split(RANK % 2)
        assert part.mpi.allreduce(1) == part.size == part.allreduce(np.ones(1), algorithm="mpi")[0]
        assert part.describe()["transport_remark"] == NONE
        part.close()
        assert comm.mpi == WORLD
    del comm, part
    os.environ["GRADIENTFLOW_INTERFACE"] = "auto"  # in place of netlab's
    include, exclude = "OMPI_MCA_btl_tcp_if_include", "OMPI_MCA_btl_tcp_if_exclude"
    for variables in ({include: "ctl0"}, {include: "", exclude: "lo,eth0"}):
        with made("tcp", NONE, variables):
            (where,) = listeners() - before
            assert bytes.fromhex(where[:8])[::-1].startswith(b"\n\x01\x00"), where  # 10.1.0.*, not 10.0.0.*
    keeps = "UCX_NET_DEVICES is mlx5_0:1, and host0 has no such interface of TCP"
    with made("mpi", keeps, {include: "", "UCX_NET_DEVICES": "mlx5_0:1"}):
        assert listeners() == before
    with raises(MismatchError, "the ranks differ about the transport"), mock.patch.dict(os.environ, asks(0, "tcp")):
        gf.init(transport=None if RANK == 0 else "mpi")
    devices(before)


def devices(before: set[str]) -> None:
    """MPI is taken where all hosts have a device that TCP cannot use."""
    os.environ |= {"OMPI_MCA_pml": ""}  # in place of netlab's, with which MPI would not use it
    for without, transport, remark in (
        ("host1", "tcp", "host1 has no RDMA device, though host0 has mlx5_0"),
        ("nowhere", "mpi", "every host has an RDMA device: host0 has mlx5_0"),
    ):
        with tempfile.TemporaryDirectory() as classes:
            if os.uname().nodename != without:
                port = Path(classes, "infiniband", "mlx5_0", "ports", "1")
                port.mkdir(parents=True)
                (port / "state").write_text("4: ACTIVE\n")
            endpoint = _core.introduced(MPI._addressof(WORLD), classes=classes)
        assert (endpoint.transport, endpoint.remark) == (transport, remark)
        assert (listeners() == before) == (transport == "mpi")
        del endpoint


def no_way() -> None:
    """Where hosts cannot connect to each other, all ranks take MPI, and rank 0 says so once."""
    if RANK == SIZE - 1:
        subprocess.run(["ip", "address", "add", "10.99.0.1/32", "dev", "lo"], check=True)
        os.environ["GRADIENTFLOW_INTERFACE"] = "10.99.0.1"
    with gf.init() as comm:
        remark = comm.describe()["transport_remark"]
        failed = r"rank 0 on host0 could not connect to 10\.99\.0\.1:\d+: Network is unreachable"
        assert re.fullmatch(failed, remark), remark
    with raises(SystemCallError, "as rank 1 asks for tcp: rank 0 on host0 could not connect to 10.99.0.1:"):
        gf.init(transport="tcp" if RANK == 1 else None)
    with made("mpi", remark):
        pass


def drops() -> None:
    """Packets that are dropped are noticed before the timeout of the other ranks."""
    commands = ["ip route add 10.99.0.1/32 dev eth0", "ip neigh add 10.99.0.1 lladdr 02:00:00:00:00:99 dev eth0"]
    if RANK == 1:
        commands = ["ip address add 10.99.0.1/32 dev lo"]
        os.environ["GRADIENTFLOW_INTERFACE"] = "10.99.0.1"
    for command in commands:
        subprocess.run(command.split(), check=True)
    with gf.init(config=gf.Config(interface="lo")) as comm:  # is not remembered
        assert "rank 0 listens at 127.0.0.1:" in comm.describe()["transport_remark"]
    with raises(ArgumentError, "the congestion control nosuch (GRADIENTFLOW_CONGESTION) cannot be had"):
        gf.init(config=gf.Config(interface="eth0", congestion="nosuch" if RANK == 1 else "auto"))
    with gf.init() as comm:
        remark = comm.describe()["transport_remark"]
        assert re.fullmatch(r"rank 0 on host0 could not connect to 10\.99\.0\.1:\d+ within 0\.5 s", remark), remark


def elsewhere_unknown() -> None:
    """An address that one rank alone cannot use is no reason for the others to wait."""
    if RANK == 1:
        for command in (
            "ip link add only1 type veth peer name peer1",
            "ip link set only1 up",
            "ip address add fe80::5/64 dev only1 nodad",
        ):
            subprocess.run(command.split(), check=True)
        os.environ["GRADIENTFLOW_INTERFACE"] = "only1"
    why = "rank 0 cannot connect to all others: 'fe80::5%only1' is no address there: set GRADIENTFLOW_INTERFACE to "
    with raises(MismatchError, why):
        gf.init(transport="tcp")
    with gf.init() as comm:
        assert comm.describe()["transport_remark"].startswith(why)


def needs_mpi() -> None:
    """What needs MPI works as long as MPI does; then it is refused before anything is sent, and messages go on."""
    calls: list[Callable[[gf.Communicator], object]] = [
        lambda comm: comm.split(0),
        lambda comm: comm.allreduce(np.ones(1), algorithm="mpi"),
        lambda comm: gf.GradientPool(comm, [8]),
    ]
    comms, other = [gf.init() for _ in calls], gf.init()
    gf.GradientPool(comms[0], [8], algorithm="mpi").close()
    with raises(ArgumentError, "of a job of MPI cannot be recovered here"):  # MPI's launcher ends it
        comms[0].recover()
    MPI.Finalize()
    for comm in comms:
        assert (comm.allreduce(np.ones(1)) == SIZE).all()
    other.barrier()  # a call that is refused ends the communicator for all ranks
    for comm, call in zip(comms, calls, strict=True):
        with raises(ClosedError, f"MPI has been finalized on rank {RANK}, and the call needs it"):
            call(comm)
        comm.close()


def splits_alone() -> None:
    """A rank that fails before MPI's split ends those of the others at once, not after the timeout."""
    for transport in ("tcp", "mpi"):
        with gf.init(transport=transport) as comm:
            limits = resource.getrlimit(resource.RLIMIT_AS)
            if RANK == 1:  # no memory for the stack of a thread, in which MPI's split is made
                pages = int(Path("/proc/self/statm").read_text().split()[0])
                resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + (4 << 20), limits[1]))
            kind = PeerError if RANK == 0 else SystemCallError
            with raises(kind, "cannot start a thread that splits a communicator"):
                comm.split(0)
            resource.setrlimit(resource.RLIMIT_AS, limits)


def ulfm() -> None:
    """A job that goes on without ranks keeps to the library that knows of it."""
    with made("mpi", "MPI goes on without ranks that have died"):
        pass


run(globals()[sys.argv[1]])
