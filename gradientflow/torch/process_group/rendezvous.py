"""Rendezvous of the ranks of a job for PyTorch: rank, number of ranks, and a store.

PyTorch asks for RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT. Where the launcher sets these, PyTorch's own rendezvous
does the work. Otherwise rank and number of ranks are known from MPI or from the store where GradientFlow's ranks meet;
the ranks use MPI or this store to agree on the address and port.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import socket
from collections.abc import Sequence
from datetime import timedelta
from typing import Any, TypedDict

import torch.distributed as dist
from torch.distributed.constants import default_pg_timeout

from gradientflow import waits
from gradientflow.addresses import interface_addresses, usual_addresses
from gradientflow.config import Config
from gradientflow.errors import ArgumentError, CommunicationError, CommunicationTimeoutError
from gradientflow.job import asked_transport, computing_ranks, mpi_size
from gradientflow.meeting import InitArguments, MeetingPlan, find_plan, is_mpi_job, servers_of
from gradientflow.meeting.plan import ALONE, MASTER
from gradientflow.meeting.stores import open_store
from gradientflow.meeting.variables import RankAndSize, join_address

from .options import settings_of

_LOOPBACK = "127.0.0.1"
_HIGHEST_PORT = 65535
_numbers = itertools.count()  # numbers of the stores that this process has served


def plan_of_job(*, is_told: bool = False) -> MeetingPlan:
    """Find how the ranks of this job meet, regardless of the program's arguments.

    Parameters
    ----------
    is_told : bool, default False
        True if the program gives rank and number of ranks: then RANK and WORLD_SIZE are ignored.
    """
    unasked = ("RANK", "WORLD_SIZE") if is_told else ()
    variables = {name: value for name, value in os.environ.items() if name not in unasked}
    return find_plan(variables, InitArguments(mpi_size=mpi_size()), asked_transport())


def is_by_mpi() -> bool:
    """Tell if the ranks of this job meet through MPI; never raises."""
    return is_mpi_job(os.environ, InitArguments(mpi_size=mpi_size()), asked_transport())


class GroupArguments(TypedDict, total=False):
    """Arguments of ``init_process_group`` that say how ranks meet."""

    init_method: str | None
    timeout: timedelta | None
    world_size: int
    rank: int
    store: dist.Store | None


class Rendezvous:
    """Values that ``init_process_group`` needs, found from the job. Collective if some ranks only serve.

    Parameters
    ----------
    rank, size : int
        The caller's values; -1 to use the job's.

    Raises
    ------
    gradientflow.errors.ArgumentError
        If this process is in no job, and not declared the only rank; or if the job has other values.
    """

    def __init__(self, rank: int = -1, size: int = -1) -> None:
        self._way = plan_of_job(is_told=rank >= 0 and size > 0)
        alone = self._way.name == ALONE
        given_rank, given_size = _given(rank, "RANK"), _given(size, "WORLD_SIZE")
        if alone and given_size != 1:
            raise ArgumentError(
                "the backend gradientflow runs in a job, and this process was not started as one: start the script "
                "with `gradientflow run -n N -- SCRIPT`, `torchrun --nproc-per-node N SCRIPT` or `mpirun -n N python "
                "SCRIPT`, or give rank=, world_size= and init_method="
            )
        self._mpi: Any = None
        self.place = self._way.place if alone else self._find_place()
        for name, given, found in (
            ("rank", given_rank, self.place.rank),
            ("number of ranks", given_size, self.place.size),
        ):
            if given is not None and given != found:
                who = "MPI" if self._mpi is not None else self._way.name
                raise ArgumentError(
                    f"the {name} is said to be {given}, by RANK and WORLD_SIZE or by the arguments of "
                    f"init_process_group, but {who} says {found}: leave both to {who}"
                )

    def _find_place(self) -> RankAndSize:
        ranks = computing_ranks(self._way)
        if isinstance(ranks, RankAndSize):
            return ranks
        self._mpi = ranks
        return RankAndSize(ranks.rank, ranks.size)

    def make_store(self, timeout: timedelta) -> dist.PrefixStore:
        """Make the store through which PyTorch's processes exchange small values. Collective over all ranks.

        Rank 0 serves it: at MASTER_ADDR and MASTER_PORT if these are set, otherwise at an address of its host that
        other ranks can reach, and at a free port.

        Raises
        ------
        gradientflow.errors.CommunicationError
            On every rank, if rank 0 cannot serve it, or ranks do not come in time; on a rank that cannot reach it.
        """
        rank, size = self.place
        address, port = os.environ.get("MASTER_ADDR", ""), _port()
        server, told = None, b""
        if rank == 0:
            failure = ""
            try:
                server = dist.TCPStore(  # serves both if the program still keeps an earlier store
                    address or _LOOPBACK,
                    port,
                    size,
                    is_master=True,
                    timeout=timeout,
                    wait_for_workers=False,
                    multi_tenant=True,
                )
                port = server.port
            except RuntimeError as error:  # includes torch.distributed.DistError
                failure = f"rank 0 cannot serve the store of the process group: {str(error).splitlines()[0]}"
            addresses = [address] if address else _own_addresses()
            told = json.dumps([failure, addresses, port, socket.gethostname(), next(_numbers)]).encode()
        failure, addresses, port, host, number = json.loads(self._exchange(told, settings_of(timeout))[0])
        if failure:
            raise CommunicationError(failure)
        if server is not None:
            return dist.PrefixStore(str(number), server)
        if not address and socket.gethostname() == host:
            addresses = [_LOOPBACK]
        reachable = _reachable(addresses, port)
        try:
            store = dist.TCPStore(reachable, port, size, is_master=False, timeout=timeout)
        except (RuntimeError, TimeoutError) as error:
            raise CommunicationError(
                f"the store of the process group, which rank 0 serves at {join_address(reachable, port)}, cannot be "
                f"reached; rank 0 may have ended: {str(error).splitlines()[0]}"
            ) from error
        return dist.PrefixStore(str(number), store)

    def _exchange(self, mine: bytes, config: Config) -> list[bytes]:
        """Exchange bytes with all ranks. Collective. With MPI, MPI determines how long to wait."""
        if self._mpi is not None:
            return list(self._mpi.allgather(mine))
        return _exchange_at_store(self._way, self.place, mine, config) if self._way.at else [mine]


def meet_before_pytorch(given: GroupArguments) -> None:
    """Meet at the store of PyTorch's own rendezvous, if rank 0 serves it. Collective.

    PyTorch accepts any process that comes there as a rank of the job. This meeting detects a rank of another job, and
    names ranks that do not come.
    """
    told = {name: str(given.get(key)) for key, name in (("rank", "RANK"), ("world_size", "WORLD_SIZE")) if key in given}
    variables = {**os.environ, **{name: value for name, value in told.items() if value != "-1"}}
    plan = find_plan(variables, InitArguments(mpi_size=mpi_size()), asked_transport())
    if plan.name == MASTER and plan.at and not plan.agent and not servers_of(os.environ):
        _exchange_at_store(plan, plan.place, b"", settings_of(given.get("timeout") or default_pg_timeout))


def _exchange_at_store(plan: MeetingPlan, place: RankAndSize, mine: bytes, config: Config) -> list[bytes]:
    """Exchange bytes with all ranks at the store where they meet. Collective."""
    seconds = float(config["timeout"])
    try:
        return list(open_store(plan, seconds).exchange(*place, mine, seconds, f"{plan.prefix}/pytorch"))
    except CommunicationTimeoutError as error:
        if config == Config():
            raise
        text = str(error).replace("(GRADIENTFLOW_TIMEOUT)", "(timeout of init_process_group)")
        raise CommunicationTimeoutError(text) from error


def is_left_to_pytorch(given: GroupArguments, url_says: bool) -> bool:
    """Tell if PyTorch's own rendezvous finds rank, number of ranks and store.

    PyTorch finds them if the program gives all of them, or if the variables that PyTorch reads are set; but MPI has to
    agree.
    """
    if url_says:
        return True
    if given.get("rank", -1) >= 0 and given.get("world_size", -1) > 0:
        # Lightning, for example, sets MASTER_ADDR and MASTER_PORT, and gives the rest by arguments.
        has_address = all(map(os.environ.get, ("MASTER_ADDR", "MASTER_PORT"))) and not servers_of(os.environ)
        if has_address or given.get("store") is not None or given.get("init_method") is not None:
            return not is_by_mpi()
    plan = plan_of_job()
    if plan.name == MASTER:
        computing_ranks(plan)  # does not return on a rank that serves
        return bool(plan.at)
    return False


def _given(argument: int, variable: str) -> int | None:
    """Return the rank or number of ranks that an argument or an environment variable gives, if any."""
    if argument != -1:
        return argument
    text = os.environ.get(variable, "")
    if not text:
        return None
    try:
        return int(text)
    except ValueError:
        raise ArgumentError(f"{variable} is {text!r}, which is not a number") from None


def _port() -> int:
    """Return MASTER_PORT, or 0 for any free port."""
    text = os.environ.get("MASTER_PORT", "")
    if not text:
        return 0
    if not text.isdecimal() or int(text) > _HIGHEST_PORT:
        raise ArgumentError(f"MASTER_PORT is {text!r}, which is not a port number")
    return int(text)


def _own_addresses() -> list[str]:
    """Return addresses of this host, beginning with its name's and its default route's."""
    found = dict.fromkeys([*usual_addresses(), *interface_addresses().values()])
    return [address for address in found if not address.startswith("127.")]


def _reachable(addresses: Sequence[str], port: int) -> str:
    """Return the first address that answers; a single address is not tried."""
    if len(addresses) == 1:
        return addresses[0]
    for address in addresses:
        with contextlib.suppress(OSError), socket.create_connection((address, port), waits.MASTER_ANSWERS.seconds):
            return address
    raise CommunicationError(
        f"no address of rank 0's host can be reached from {socket.gethostname()}, of {', '.join(addresses) or 'none'} "
        f"at port {port}: set MASTER_ADDR to one that can"
    )
