"""What moves the messages of ranks that MPI has introduced to each other."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import Any

import pytest
from native import meeting

from gradientflow.errors import MismatchError


def ranks(*each: dict[str, Any]) -> list[Any]:
    """Make ranks on hosts of their own, unless said otherwise."""
    return [meeting.Candidate(**{"host_key": number, "host": f"n{number}", **one}) for number, one in enumerate(each)]


HAS_DEVICE = {"device": "mlx5_0"}


@pytest.mark.parametrize(
    ("given", "transport", "why"),
    [
        ([{}, {}], "tcp", "no host has an RDMA device"),
        ([HAS_DEVICE, HAS_DEVICE], "mpi", "every host has an RDMA device: n0 has mlx5_0"),
        ([{}, HAS_DEVICE, {}], "tcp", "n0 has no RDMA device, though n1 has mlx5_0"),
        ([HAS_DEVICE, HAS_DEVICE, {}], "tcp", "n2 has no RDMA device, though n0 has mlx5_0"),
        ([{}], "mpi", "all ranks are on one host"),
        ([{"host_key": 5}, {"host_key": 5}], "mpi", "all ranks are on one host"),
        ([{"host_key": 5}, {"host_key": 5}, {"host_key": 6}], "tcp", "no host has an RDMA device"),
        ([{}, {"objection": "n1 cannot"}], "mpi", "n1 cannot"),
        ([{}, {"threads": False}], "mpi", "rank 1 has started MPI without MPI_THREAD_MULTIPLE"),
        ([{"asked": "tcp"}, {"threads": False}], "tcp", "rank 0 asks for tcp"),
        ([{"asked": "tcp"}, {"asked": "tcp"}], "tcp", "rank 0 asks for tcp"),
        # Launchers may pass variables on to some hosts only.
        ([{}, {"asked": "tcp"}], "tcp", "rank 1 asks for tcp"),
        ([{**HAS_DEVICE, "objection": "x"}, {**HAS_DEVICE, "asked": "tcp"}], "tcp", "rank 1 asks for tcp"),
        ([{"asked": "mpi"}, {}], "mpi", "rank 0 asks for mpi"),
        ([{"host_key": 5}, {"host_key": 5, "asked": "tcp"}], "tcp", "rank 1 asks for tcp"),
    ],
)
def test_the_choice(given: list[dict[str, Any]], transport: str, why: str) -> None:
    assert meeting.choose_transport(ranks(*given)) == (transport, why)


def test_ranks_that_contradict_each_other() -> None:
    with pytest.raises(MismatchError, match=r"differ about the transport .*: rank 2 asks for mpi, rank 1 asks for tcp"):
        meeting.choose_transport(ranks({}, {"asked": "tcp"}, {"asked": "mpi"}))


@pytest.fixture
def classes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Give a folder of device classes, and an environment in which the user has chosen nothing."""
    for name in [name for name in os.environ if name.startswith(("OMPI_MCA_", "UCX_", "FI_"))]:
        monkeypatch.delenv(name)
    return tmp_path


def add_device(classes: Path, name: str, *states: str) -> None:
    """Add a device of the class infiniband, with a port in each state."""
    for number, state in enumerate(states):
        port = classes / "infiniband" / name / "ports" / str(number + 1)
        port.mkdir(parents=True)
        (port / "state").write_text(state + "\n")


def test_devices(classes: Path) -> None:
    assert meeting.candidate(str(classes)) == ("", "auto", "")
    add_device(classes, "mlx5_0", "1: DOWN", "2: INIT")
    assert meeting.candidate(str(classes)) == ("", "auto", "")
    (classes / "cxi" / "cxi0").mkdir(parents=True)
    assert meeting.candidate(str(classes)) == ("cxi0", "auto", "")
    add_device(classes, "mlx5_1", "1: DOWN", "4: ACTIVE")
    assert meeting.candidate(str(classes)) == ("mlx5_1", "auto", "")


@pytest.mark.parametrize(
    ("variables", "found"),
    [
        ({"UCX_NET_DEVICES": "all"}, ("mlx5_0", "auto", "")),
        ({"UCX_NET_DEVICES": "lo"}, ("", "lo", "")),
        ({"UCX_NET_DEVICES": "mlx5_1:1,lo"}, ("mlx5_1", "mlx5_1:1,lo", "")),
        ({"UCX_NET_DEVICES": "^mlx5_0:1"}, ("mlx5_1", "^mlx5_0:1", "")),
        ({"UCX_NET_DEVICES": "^mlx5_0:1,mlx5_1:1"}, ("", "^mlx5_0:1,mlx5_1:1", "")),
        (
            {"UCX_NET_DEVICES": "mlx5_7:1"},
            ("", "auto", "UCX_NET_DEVICES is mlx5_7:1, and {} has no such interface of TCP"),
        ),
        ({"OMPI_MCA_btl_tcp_if_include": "nosuch0,127.0.0.0/8"}, ("mlx5_0", "nosuch0,127.0.0.0/8", "")),
        ({"OMPI_MCA_btl_tcp_if_exclude": "nosuch0,lo"}, ("mlx5_0", "^nosuch0,lo", "")),
        ({"FI_TCP_IFACE": "lo"}, ("mlx5_0", "lo", "")),
        (
            {"FI_TCP_IFACE": "nosuch0"},
            ("mlx5_0", "auto", "FI_TCP_IFACE is nosuch0, and {} has no such interface of TCP"),
        ),
        ({"OMPI_MCA_pml": "ob1", "OMPI_MCA_btl": "self,tcp"}, ("", "auto", "")),
        ({"OMPI_MCA_pml": "ob1", "OMPI_MCA_btl": "self,uct"}, ("mlx5_0", "auto", "")),
    ],
)
def test_what_the_user_has_chosen_for_mpi(
    classes: Path, monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], found: tuple[str, str, str]
) -> None:
    for number in range(2):
        add_device(classes, f"mlx5_{number}", "4: ACTIVE")
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    device, interface, objection = found
    assert meeting.candidate(str(classes)) == (device, interface, objection.format(socket.gethostname()))


def test_the_setting_comes_before_what_is_chosen_for_mpi(classes: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FI_TCP_IFACE", "nosuch0")
    assert meeting.candidate(str(classes), "lo") == ("", "lo", "")


def test_what_can_be_connected_to() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as here,
        socket.create_server(("::1", 0), family=socket.AF_INET6) as six,
    ):
        open_ones = [f"127.0.0.1:{here.getsockname()[1]}", f"[::1]:{six.getsockname()[1]}"]
        assert meeting.find_unreached(open_ones, 5.0) == ""
        assert meeting.find_unreached([], 5.0) == ""
    assert meeting.find_unreached(open_ones[:1], 5.0) == f"could not connect to {open_ones[0]}: Connection refused"


def test_what_drops_packets() -> None:
    """As a firewall does: a queue that is full."""
    with socket.create_server(("127.0.0.1", 0), backlog=0) as full:
        address = full.getsockname()
        with socket.create_connection(address):
            where = f"127.0.0.1:{address[1]}"
            assert meeting.find_unreached([where], 0.1) == f"could not connect to {where} within 0.1 s"
