"""The process group, with the interface that ``torch.distributed`` calls."""

from __future__ import annotations

import atexit
import os
import weakref
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch._C import _distributed_c10d as c10d

from gradientflow._fast_paths import has_fast_path, take_fast_paths
from gradientflow._location import core
from gradientflow.errors import (
    ArgumentError,
    ArgumentTypeError,
    CommunicationTimeoutError,
    GradientFlowError,
    PeerError,
)
from gradientflow.metrics.across import across_ranks as over_ranks
from gradientflow.metrics.registry import Values
from gradientflow.metrics.watch import Watched, watch
from gradientflow.torch import devices
from gradientflow.torch.names import BACKEND

from . import copies, reductions
from .calls import Call
from .collectives import Collectives
from .context import WorkContext
from .futures import untraced
from .group_rank import GroupRank
from .members import Members
from .messages import Messages
from .options import Options, options_of, owner_of_timeout, seconds, settings_of
from .profiling import recorded
from .reconfiguration import NO_CALLS, Reconfiguration
from .sparse import allreduce_sparse
from .tensors import check_alike, checked, is_sparse, list_of, memory_for, only, plain, together
from .work import CollectiveWork, Work

_ProcessGroup: Any = dist.ProcessGroup  # its methods have narrower signatures

_open: weakref.WeakSet[ProcessGroup] = weakref.WeakSet()


@untraced
class ProcessGroup(_ProcessGroup):  # type: ignore[misc]
    """Collectives and messages among the ranks of a group, for ``torch.distributed``.

    Collectives are calls on a `gradientflow.Communicator` of the group, in the tensors' own memory if it is contiguous,
    on the host or on a CUDA device. Messages between two ranks, and all-to-all exchanges of uneven parts, go through a
    mailbox, for which tensors on a device are copied to and from the host.

    Made by ``torch.distributed.init_process_group("gradientflow")`` and ``new_group``. The methods are the same as in
    ``torch.distributed.ProcessGroup``.

    Parameters
    ----------
    place : tuple of int and int
        Rank of this process in the group, and number of ranks.
    members : Members, optional
        The ranks of the group; None if it has none before its first reconfiguration.
    timeout : datetime.timedelta
        Time that a call waits for other ranks.
    name : str
        Name shown to people.
    towards : str, optional
        Location of the ranks on the network, as far as it is known; None if not over TCP: the members cannot change
        then.
    """

    supports_splitting = False
    supports_coalescing = False
    supports_time_estimate = False

    def __init__(
        self,
        place: tuple[int, int],
        members: Members | None,
        timeout: timedelta,
        name: str,
        towards: str | None = None,
    ) -> None:
        super().__init__(*place)
        self._place = GroupRank(*place)
        self._name, self._description = name, "undefined"
        self._timeout = timeout
        self._limit: float | None = None  # None means the communicator's limit
        self._calls = 0
        self._process = os.getpid()
        self._settings = settings_of(timeout)
        self._reconfiguration = None if towards is None else Reconfiguration(self._settings, towards)
        self._release: Callable[[], object] = lambda: None
        self._context = WorkContext(())
        self._collectives: Collectives = NO_CALLS
        self._native: core.PlainCalls | None = None  # object of `_collectives` with the fast paths
        self._messages: Messages = NO_CALLS
        self._watched: Watched | None = None
        if members is not None:
            self._begin(members)
            comm, rank = self._collectives.communicator, members.world_ranks[self._place.rank]
            try:
                self._watched = watch("process_group", f"process group {name}", comm, self._live, comm, rank)
            except GradientFlowError:
                self.abort()
                raise

    # ---- life ----------------------------------------------------------------------------------------------------

    def _begin(self, members: Members) -> None:
        """Make calls among these ranks from now on. Collective; on failure the group stays as it was."""
        context = WorkContext(members.world_ranks, owner_of_timeout(self._settings), self._name)
        collectives = Collectives(members.ranks, self._settings, context)
        messages = Messages(collectives.communicator, context)
        self._close(orderly=False)
        self._place, self._calls, self._release = GroupRank(*members.place), 0, members.release
        self._context, self._collectives, self._messages = context, collectives, messages
        self._native = collectives.plain
        self._native.are_limited = self._limit is not None
        _open.add(self)

    def shutdown(self) -> None:
        """End the group after its collectives are done. A second call is harmless."""
        self._close(orderly=True)

    def abort(self) -> None:
        """End the group without waiting for other ranks; calls under way fail."""
        self._close(orderly=False)

    def _close(self, *, orderly: bool) -> None:
        if self._process != os.getpid():
            return
        _open.discard(self)
        if self._watched is not None:
            self._watched.end()
        self._context.unclaimed.close()
        if orderly:
            self._collectives.close()
        else:
            self._collectives.abort()
        self._messages.close(orderly=orderly)
        self._context.thread.close()
        release, self._release = self._release, lambda: None
        if orderly:
            release()

    def get_error(self) -> c10d.ErrorType:
        """Return the state of the group, without communication, as an ``ErrorType`` of PyTorch.

        TIMEOUT or REMOTE_ERROR means that a call of this rank, waited for or not, has timed out or lost a rank.
        COMM_ERROR means any other error that makes the group unusable, or that the group has ended. Otherwise it is
        SUCCESS.
        """
        try:
            self._collectives.communicator._native.check_open()
        except CommunicationTimeoutError:
            return c10d.ErrorType.TIMEOUT
        except PeerError:
            return c10d.ErrorType.REMOTE_ERROR
        except GradientFlowError:
            return c10d.ErrorType.COMM_ERROR
        return c10d.ErrorType.REMOTE_ERROR if self._context.has_lost_a_rank else c10d.ErrorType.SUCCESS

    @property
    def supports_reconfigure(self) -> bool:
        """True if the group can get other members."""
        return self._reconfiguration is not None

    def get_reconfigure_handle(self) -> str:
        """Return this process's handle, which peers need for `reconfigure`; new after each reconfiguration."""
        return self._reconfigured().handle(None if self._collectives is NO_CALLS else self._place.rank)

    def reconfigure(self, options: object) -> Work:
        """Replace the members of the group. Collective over the new members; calls of former members fail.

        Parameters
        ----------
        options : torch._C._distributed_c10d.ReconfigureOptions
            The handles of all members, in a list by rank or in a set. With a set, ranks keep their order, and processes
            without a rank follow. Also a uuid, equal on all members and new to the group, and the time to wait for
            other members, by default the timeout of the group.

        Raises
        ------
        gradientflow.errors.ArgumentError
            If the options are not supported; nothing has happened then.
        gradientflow.errors.CommunicationError
            If a member has died, or does not come in time. The group stays as it was, and may be reconfigured again,
            with a new handle of this process and a new uuid.
        """
        self._begin(self._reconfigured().members(options))
        comm = self._collectives.communicator
        self._watched = watch("process_group", f"process group {self._name}", comm, self._live, None)
        return CollectiveWork(self._context, [])

    def _reconfigured(self) -> Reconfiguration:
        if self._reconfiguration is None:
            raise ArgumentError("a group whose ranks met through MPI keeps its members: set GRADIENTFLOW_TRANSPORT=tcp")
        return self._reconfiguration

    def set_timeout(self, timeout: timedelta) -> None:
        """Set the time that calls wait from now on. For collectives, the group's timeout remains the maximum."""
        self._timeout = timeout
        self._limit = seconds(timeout)
        if self._native is not None:
            self._native.are_limited = self._limit is not None

    # ---- metrics -------------------------------------------------------------------------------------------------

    def metrics(self, across_ranks: bool = False) -> Values:
        """Return the metrics of this rank, or with `across_ranks` of all; see `gradientflow.torch.metrics`."""
        self._collectives.communicator._native.check_open()
        return over_ranks(self._collectives.communicator, self._live()) if across_ranks else self._live()

    def _live(self) -> Values:
        found = {"gradientflow_calls_total": float(self._get_sequence_number_for_group())}
        found["gradientflow_participants"] = float(self._place.size)
        sent = self._collectives.communicator.bytes_sent
        return found if sent is None else {**found, "gradientflow_sent_bytes_total": float(sent)}

    # ---- names and facts -----------------------------------------------------------------------------------------

    def getRank(self) -> int:  # noqa: N802, D102
        return self._place.rank

    def getSize(self) -> int:  # noqa: N802, D102
        return self._place.size

    rank, size = getRank, getSize

    def getBackendName(self) -> str:  # noqa: N802, D102
        return BACKEND

    def getGroupName(self) -> str:  # noqa: N802, D102
        return self._name

    def setGroupName(self, name: str) -> None:  # noqa: N802, D102
        self._name = name

    def getGroupDesc(self) -> str:  # noqa: N802, D102
        return self._description

    def setGroupDesc(self, description: str) -> None:  # noqa: N802, D102
        self._description = description

    @property
    def _device_types(self) -> list[torch.device]:
        # Empty while PyTorch makes the group: its recorder would then expect a C++ backend for each device type.
        return devices.kinds() if self in dist.distributed_c10d._world.pg_map else []

    def _get_backend(self, device: torch.device) -> ProcessGroup:
        if device.type not in devices.KINDS:
            message = f"the process group {BACKEND} serves tensors in CPU memory and on CUDA, not on {device}"
            raise ArgumentTypeError(message)
        return self

    def _set_sequence_number_for_group(self) -> None:
        self._calls = -self._plain_calls

    def _get_sequence_number_for_group(self) -> int:
        return self._calls + self._plain_calls

    @property
    def _plain_calls(self) -> int:
        return 0 if self._native is None else int(self._native.count)

    # ---- reductions ----------------------------------------------------------------------------------------------

    @recorded("all_reduce")
    def allreduce(self, tensors: object, opts: object = None, timeout: timedelta | None = None) -> Work:
        """Reduce a tensor over all ranks, in place."""
        options = options_of(c10d.AllreduceOptions, opts, timeout, reduceOp=opts)
        tensor, op = only(tensors, "allreduce"), options.reduceOp
        if is_sparse(tensor):
            calls = allreduce_sparse(tensor, op, self._place, lambda call: self._run([call], [], options).wait())
            return self._run(calls, [tensor], options)
        tensor = checked(tensor)
        return self._run([reductions.allreduce(tensor, op, self._place.size)], [tensor], options)

    @recorded("all_reduce")
    def allreduce_coalesced(self, tensors: Sequence[torch.Tensor], opts: object = None) -> Work:
        """Reduce several tensors over all ranks, in place."""
        options = options_of(c10d.AllreduceCoalescedOptions, opts)
        outputs = [checked(tensor) for tensor in tensors]
        calls = [reductions.allreduce(tensor, options.reduceOp, self._place.size) for tensor in outputs]
        return self._run(calls, outputs, options)

    @recorded("reduce")
    def reduce(self, tensors: object, opts: object = None, op: object = None, timeout: timedelta | None = None) -> Work:
        """Reduce a tensor over all ranks; the root gets the result, in place."""
        options = options_of(c10d.ReduceOptions, opts, timeout, rootRank=opts, reduceOp=op)
        tensor, root = checked(only(tensors, "reduce")), self._place.root_of(options)
        return self._run([reductions.reduce(tensor, root, options.reduceOp, self._place)], [tensor], options)

    @recorded("reduce_scatter")
    def reduce_scatter(
        self, output_tensors: object, input_tensors: object, opts: object = None, timeout: timedelta | None = None
    ) -> Work:
        """Reduce one tensor per rank over all ranks; every rank gets the result for its tensor."""
        options = options_of(c10d.ReduceScatterOptions, opts, timeout, reduceOp=opts)
        output = checked(only(output_tensors, "reduce_scatter"))
        parts = self._place.parts(list_of(input_tensors), "reduce_scatter")
        return self._run(reductions.reduce_scatter(output, parts, options.reduceOp, self._place), [output], options)

    def reduce_scatter_single(
        self, output: torch.Tensor, input: torch.Tensor, opts: object = None, timeout: timedelta | None = None
    ) -> Work:
        """Reduce a tensor with one block per rank over all ranks; every rank gets its block."""
        return self.reduce_scatter_single_coalesced([output], [input], opts, timeout)

    @recorded("reduce_scatter")
    def reduce_scatter_single_coalesced(
        self,
        outputs: Sequence[torch.Tensor],
        inputs: Sequence[torch.Tensor],
        opts: object = None,
        timeout: timedelta | None = None,
    ) -> Work:
        """Make several calls of `reduce_scatter_single` in one."""
        options = options_of(c10d.ReduceScatterOptions, opts, timeout, reduceOp=opts)
        pairs = [(checked(output), checked(tensor)) for output, tensor in together("reduce_scatter", outputs, inputs)]
        calls = [reductions.reduce_scatter_single(*pair, options.reduceOp, self._place) for pair in pairs]
        return self._run(calls, [target for target, _ in pairs], options)

    _reduce_scatter_base = reduce_scatter_single
    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced

    # ---- copies --------------------------------------------------------------------------------------------------

    @recorded("broadcast")
    def broadcast(self, tensors: object, opts: object = None, timeout: timedelta | None = None) -> Work:
        """Copy the root's tensor to all ranks, in place."""
        options = options_of(c10d.BroadcastOptions, opts, timeout, rootRank=opts)
        tensor, root = checked(only(tensors, "broadcast")), self._place.root_of(options)
        return self._run([copies.broadcast(tensor, root, self._place.rank)], [tensor], options)

    @recorded("all_gather")
    def allgather(
        self, output_tensors: object, input_tensors: object, opts: object = None, timeout: timedelta | None = None
    ) -> Work:
        """Collect the tensors of all ranks on every rank; sizes may differ."""
        options = options_of(c10d.AllgatherOptions, opts, timeout)
        outputs = self._place.parts(list_of(output_tensors), "allgather")
        source = checked(only(input_tensors, "allgather"))
        return self._run([copies.allgather(outputs, source, self._place.rank)], outputs, options)

    @recorded("all_gather")
    def allgather_coalesced(
        self,
        output_lists: Sequence[Sequence[torch.Tensor]],
        input_list: Sequence[torch.Tensor],
        opts: object = None,
    ) -> Work:
        """Collect several tensors of all ranks: the i-th of rank r goes to ``output_lists[r][i]``."""
        options, name = options_of(c10d.AllgatherOptions, opts), "allgather_coalesced"
        outputs = [self._place.parts(parts, name) for parts in together(name, *output_lists)]
        pairs = together(name, outputs, input_list)
        calls = [copies.allgather(parts, checked(tensor), self._place.rank) for parts, tensor in pairs]
        return self._run(calls, [tensor for parts in outputs for tensor in parts], options)

    def all_gather_single(
        self, output: torch.Tensor, input: torch.Tensor, opts: object = None, timeout: timedelta | None = None
    ) -> Work:
        """Collect the tensors of all ranks side by side in one tensor."""
        return self.all_gather_single_coalesced([output], [input], opts, timeout)

    @recorded("all_gather")
    def all_gather_single_coalesced(
        self,
        outputs: Sequence[torch.Tensor],
        inputs: Sequence[torch.Tensor],
        opts: object = None,
        timeout: timedelta | None = None,
    ) -> Work:
        """Make several calls of `all_gather_single` in one."""
        options = options_of(c10d.AllgatherOptions, opts, timeout)
        pairs = [(checked(output), checked(tensor)) for output, tensor in together("all_gather", outputs, inputs)]
        calls = [copies.all_gather_single(*pair, self._place.size) for pair in pairs]
        return self._run(calls, [target for target, _ in pairs], options)

    _allgather_base = all_gather_single
    allgather_into_tensor_coalesced = all_gather_single_coalesced

    @recorded("gather")
    def gather(
        self, output_tensors: object, input_tensors: object, opts: object = None, timeout: timedelta | None = None
    ) -> Work:
        """Collect the tensors of all ranks on the root."""
        options = options_of(c10d.GatherOptions, opts, timeout, rootRank=opts)
        source, root = checked(only(input_tensors, "gather")), self._place.root_of(options)
        outputs = self._place.parts(list_of(output_tensors), "gather") if self._place.rank == root else []
        return self._run([copies.gather(outputs, source, root)], outputs, options)

    @recorded("scatter")
    def scatter(
        self, output_tensors: object, input_tensors: object, opts: object = None, timeout: timedelta | None = None
    ) -> Work:
        """Send each of the root's tensors to its rank."""
        options = options_of(c10d.ScatterOptions, opts, timeout, rootRank=opts)
        target, root = checked(only(output_tensors, "scatter")), self._place.root_of(options)
        parts = self._place.parts(list_of(input_tensors), "scatter") if self._place.rank == root else []
        return self._run([copies.scatter(target, parts, root)], [target], options)

    @recorded("all_to_all")
    def alltoall(
        self,
        output_tensors: Sequence[torch.Tensor],
        input_tensors: Sequence[torch.Tensor],
        opts: object = None,
        timeout: timedelta | None = None,
    ) -> Work:
        """Send a tensor to every rank and receive one from every rank, of any sizes."""
        options = options_of(c10d.AllToAllOptions, opts, timeout)
        outputs = self._place.parts(output_tensors, "alltoall")
        inputs = self._place.parts(input_tensors, "alltoall")
        self._calls += 1
        return self._messages.exchange(outputs, inputs, outputs, None, seconds(options.timeout, self._seconds))

    @recorded("all_to_all")
    def all_to_all_single(
        self,
        output: torch.Tensor,
        input: torch.Tensor,
        output_split_sizes: Sequence[int] = (),
        input_split_sizes: Sequence[int] = (),
        opts: object = None,
        timeout: timedelta | None = None,
    ) -> Work:
        """Send a block of a tensor to every rank and receive one from every rank.

        Without sizes the blocks are equal. With sizes, which count rows, they may be uneven.
        """
        options = options_of(c10d.AllToAllOptions, opts, timeout)
        target, source = checked(output), plain(checked(input))
        check_alike("all_to_all_single", target, source)
        # All ranks have to take the same path: sizes, even equal ones, always mean messages.
        if not (output_split_sizes or input_split_sizes):
            return self._run([copies.all_to_all_single(target, source, self._place.size)], [target], options)
        memory, finish = memory_for(target)
        outputs = self._place.blocks(memory, output_split_sizes, "output")
        inputs = self._place.blocks(source, input_split_sizes, "input")
        self._calls += 1
        return self._messages.exchange(outputs, inputs, [target], finish, seconds(options.timeout, self._seconds))

    alltoall_base = all_to_all_single

    # ---- synchronization -----------------------------------------------------------------------------------------

    @recorded("barrier")
    def barrier(self, opts: object = None, timeout: timedelta | None = None) -> Work:
        """Wait until all ranks are here; each rank first completes the current stream of the group's CUDA device."""
        options = options_of(c10d.BarrierOptions, opts, timeout)
        if not options.asyncOp:
            self._collectives.synchronize()
        return self._run([Call("barrier", {})], [], options)

    @recorded("monitored_barrier")
    def monitored_barrier(self, timeout: timedelta | None = None, wait_all_ranks: bool = False) -> None:
        """Wait until all ranks are here; if some do not come in time, name them.

        Parameters
        ----------
        timeout : datetime.timedelta, optional
            Time that rank 0 waits; by default the group's timeout. With 0 it checks once.
        wait_all_ranks : bool
            True if the error names all missing ranks together; otherwise it names the first one before the rest.

        Raises
        ------
        gradientflow.errors.CommunicationTimeoutError
            On the ranks that came, if some did not.
        """
        given = timeout if timeout is not None and timeout >= timedelta(0) else self._timeout
        self._messages.barrier(given.total_seconds(), wait_all_ranks)

    # ---- between two ranks ---------------------------------------------------------------------------------------

    @recorded("send")
    def send(self, tensors: object, dst: int, tag: int = 0) -> Work:
        """Start to send a tensor to a rank."""
        self._place.check_rank(dst)
        return self._messages.send(checked(only(tensors, "send")), dst, tag, self._seconds)

    @recorded("recv")
    def recv(self, tensors: object, src: int, tag: int = 0) -> Work:
        """Start to receive a tensor from a rank."""
        self._place.check_rank(src)
        return self._messages.receive(checked(only(tensors, "recv")), src, tag, self._seconds)

    @recorded("recvAnySource")
    def recv_anysource(self, tensors: object, tag: int = 0) -> Work:
        """Start to receive a tensor from any rank; the work's `source_rank` returns the sender."""
        return self._messages.receive(checked(only(tensors, "recv")), None, tag, self._seconds)

    # ---- helpers -------------------------------------------------------------------------------------------------

    @property
    def _seconds(self) -> float:
        """Time that messages wait."""
        return self._timeout.total_seconds()

    def _run(self, calls: Sequence[Call], outputs: list[torch.Tensor], options: Options) -> Work:
        self._calls += 1
        limit = seconds(options.timeout, self._limit)
        return self._collectives.run(calls, outputs, limit, waits=not options.asyncOp)


for _method in (ProcessGroup.allreduce, ProcessGroup.all_gather_single, ProcessGroup.reduce_scatter_single):
    has_fast_path(_method)
take_fast_paths(ProcessGroup, core.PlainCalls)


@atexit.register
def _close_all() -> None:
    """Abort the groups that are still open when the interpreter exits."""
    for group in list(_open):
        group.abort()
