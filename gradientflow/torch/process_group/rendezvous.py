"""How the ranks of an MPI job find each other for PyTorch: rank, number of ranks, and a store.

PyTorch asks for RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT. MPI knows the first two; the ranks use it to agree on
the others.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
import struct
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch.distributed

from gradientflow.errors import ArgumentError, CommunicationError
from gradientflow.job import computing_ranks

dist: Any = torch.distributed  # its annotations leave out what it takes from C++

_LOOPBACK = "127.0.0.1"
_SIOCGIFADDR = 0x8915  # ask the kernel for the address of an interface
_PROBE_SECONDS = 5.0  # for trying one address of the master
_HIGHEST_PORT = 65535
_JOB_VARIABLES = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "PMIX_RANK")


def position(rank: int = -1, size: int = -1) -> tuple[int, int]:
    """Return this process's rank and the number of ranks.

    Parameters
    ----------
    rank, size : int
        The caller's values; -1 for those of RANK and WORLD_SIZE, or if they are not set, of MPI.

    Raises
    ------
    gradientflow.errors.ArgumentError
        If this process is not in an MPI job, and not said to be the only rank; or if MPI has other values.
    """
    comm = computing_ranks()
    given_rank = _given(rank, "RANK")
    given_size = _given(size, "WORLD_SIZE")
    alone = comm.size == 1 and not any(name in os.environ for name in _JOB_VARIABLES)
    if alone and given_size != 1:
        message = (
            "the backend gradientflow runs in an MPI job, and this process was not started as one: start the script "
            "with `mpirun -n N python SCRIPT` or `gradientflow run -n N -- SCRIPT`"
        )
        raise ArgumentError(message)
    for name, given, found in (("rank", given_rank, comm.rank), ("number of ranks", given_size, comm.size)):
        if given is not None and given != found:
            message = (
                f"the {name} is said to be {given}, by RANK and WORLD_SIZE or by the arguments of init_process_group, "
                f"but MPI says {found}: leave both to MPI"
            )
            raise ArgumentError(message)
    return comm.rank, comm.size


def make_store(timeout: timedelta) -> Any:
    """Make the store through which PyTorch's processes exchange small values. Collective over all ranks.

    Rank 0 serves it: at MASTER_ADDR and MASTER_PORT if these are set, else at an address of its host that the others
    can reach, and at a free port.

    Raises
    ------
    gradientflow.errors.CommunicationError
        On every rank, if rank 0 cannot serve it; on a rank that cannot reach it.
    """
    comm = computing_ranks()
    address, port = os.environ.get("MASTER_ADDR", ""), _port()
    if comm.rank == 0:
        server, failure = None, ""
        try:
            server = dist.TCPStore(
                address or _LOOPBACK, port, comm.size, is_master=True, timeout=timeout, wait_for_workers=False
            )
            port = server.port
        except RuntimeError as error:  # torch.distributed.DistError among them
            failure = f"rank 0 cannot serve the store of the process group: {str(error).splitlines()[0]}"
        comm.bcast((failure, [address] if address else _own_addresses(), port, socket.gethostname()))
        if server is None:
            raise CommunicationError(failure)
        return server
    failure, addresses, port, host = comm.bcast(None)
    if failure:
        raise CommunicationError(failure)
    if not address and socket.gethostname() == host:
        addresses = [_LOOPBACK]
    return dist.TCPStore(_reachable(addresses, port), port, comm.size, is_master=False, timeout=timeout)


def _given(argument: int, variable: str) -> int | None:
    """Return the rank or number of ranks given by an argument or an environment variable, if there is one."""
    if argument != -1:
        return argument
    text = os.environ.get(variable, "")
    if not text:
        return None
    try:
        return int(text)
    except ValueError:
        message = f"{variable} is {text!r}, which is not a number"
        raise ArgumentError(message) from None


def _port() -> int:
    """Return MASTER_PORT, or 0 for any free port."""
    text = os.environ.get("MASTER_PORT", "")
    if not text:
        return 0
    if not text.isdecimal() or int(text) > _HIGHEST_PORT:
        message = f"MASTER_PORT is {text!r}, which is not a port number"
        raise ArgumentError(message)
    return int(text)


def _own_addresses() -> list[str]:
    """Return addresses of this host, first those of its name and of its default route."""
    found = []
    with contextlib.suppress(OSError):
        found.append(socket.gethostbyname(socket.gethostname()))
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect(("192.0.2.1", 9))  # sends nothing, but chooses an interface
        found.append(probe.getsockname()[0])
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        for _, name in socket.if_nameindex():
            with contextlib.suppress(OSError):
                answer = fcntl.ioctl(asking, _SIOCGIFADDR, struct.pack("256s", name.encode()))
                found.append(socket.inet_ntoa(answer[20:24]))
    return list(dict.fromkeys(address for address in found if not address.startswith("127.")))


def _reachable(addresses: Sequence[str], port: int) -> str:
    """Return the first address that answers; a single one is not tried."""
    if len(addresses) == 1:
        return addresses[0]
    for address in addresses:
        with contextlib.suppress(OSError), socket.create_connection((address, port), _PROBE_SECONDS):
            return address
    message = (
        f"no address of rank 0's host can be reached from {socket.gethostname()}, of {', '.join(addresses) or 'none'} "
        f"at port {port}: set MASTER_ADDR to one that can"
    )
    raise CommunicationError(message)
