"""The process group of the backend "gradientflow": PyTorch's collectives on a GradientFlow communicator."""

from __future__ import annotations

import atexit
import os
import weakref
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any

import torch
import torch.distributed
from mpi4py import MPI
from torch.distributed.constants import default_pg_timeout

from gradientflow.communicator import Communicator
from gradientflow.config import Config
from gradientflow.errors import ArgumentError, ArgumentTypeError, GradientFlowError, MismatchError
from gradientflow.mailbox import MessageRequest, make_mailbox

from . import devices
from .ddp_hooks import serve_builtin_hook
from .monitored_barrier import monitored_barrier
from .names import BACKEND
from .profiling import mark_asynchronous, recorded
from .reduce_ops import combine_bits, is_bitwise, reduction_of
from .rendezvous import position
from .tensors import (
    as_bytes,
    check_alike,
    checked,
    is_plain,
    is_sparse,
    joined,
    movable,
    only,
    overlap,
    plain,
    plain_like,
    scatter_row,
    side_by_side,
    together,
)
from .work import CollectiveWork, FutureThread, MessageWork, Work, WorkContext, seconds, untraced

dist: Any = torch.distributed  # its annotations leave out what it takes from C++
c10d: Any = torch._C._distributed_c10d  # with the options of all calls

_TENSORS = ("x", "out")  # the names of arguments that are tensors
_open: weakref.WeakSet[ProcessGroup] = weakref.WeakSet()


@dataclass(frozen=True, slots=True)
class _Call:
    """A call on the communicator, with plain tensors, and what to run when it is done."""

    name: str
    arguments: dict[str, Any]
    finish: Callable[[], object] | None = None

    @property
    def tensors(self) -> list[torch.Tensor]:
        """The tensors that it reads and writes."""
        return [self.arguments[name] for name in _TENSORS if name in self.arguments]

    def make(self, communicator: Communicator, form: str = "") -> Any:
        """Make the call in one of its forms: "", or "_async"."""
        arguments = self.arguments.copy()
        for name in _TENSORS:
            if name in arguments:
                arguments[name] = devices.shared(arguments[name])
        return getattr(communicator, self.name + form)(**arguments)

    def then(self, store: Callable[[], object]) -> _Call:
        """Return the same call, with `store` to run in the end."""

        def finish() -> None:
            if self.finish is not None:
                self.finish()
            store()

        return _Call(self.name, self.arguments, finish)


@untraced
class ProcessGroup(dist.ProcessGroup):  # type: ignore[misc]
    """Collectives and messages among the ranks of a group, for ``torch.distributed``.

    Collectives are calls on a `gradientflow.Communicator` of the group, in the tensors' own memory if it is contiguous,
    on the host or on a CUDA device. Messages between two ranks, and all-to-all exchanges of uneven parts, go through a
    mailbox; tensors on a device are copied to and from the host for them.

    Made by ``torch.distributed.init_process_group("gradientflow")`` and ``new_group``. The methods are those of
    ``torch.distributed.ProcessGroup``.

    Parameters
    ----------
    mpi : mpi4py.MPI.Intracomm
        The ranks of the group, in order. The group owns it from now on.
    timeout : datetime.timedelta
        How long a call waits for the other ranks.
    name : str
        The name shown to people.
    """

    supports_splitting = False
    supports_coalescing = False
    supports_time_estimate = False

    def __init__(self, mpi: MPI.Intracomm, timeout: timedelta, name: str) -> None:
        super().__init__(mpi.rank, mpi.size)
        self._rank, self._size = mpi.rank, mpi.size
        self._name, self._description = name, "undefined"
        self._timeout = timeout
        self._limit: float | None = None  # None: that of the communicator
        self._calls = 0
        self._barriers = 0
        self._device = devices.HOST  # of the last collective on tensors of a device
        self._process = os.getpid()
        self._settings = _settings(timeout)
        self._mpi = mpi
        self._communicator = Communicator(mpi, self._settings)
        self._callback_communicator: Communicator | None = None  # made when a callback needs it
        self._context = WorkContext(_world_ranks(mpi), own_timeout=self._settings != Config())
        self._thread = FutureThread(f"gradientflow futures {name}", self._context)
        self._mailbox = make_mailbox(self._communicator, mpi, "the process group")
        self._barrier_tags = self._mailbox.draw(1)
        self._alltoall_tags = self._mailbox.draw(2)  # for calls from callbacks, and for all others
        self._tags = self._mailbox.draw_rest()  # for users
        _open.add(self)

    # ---- life ----------------------------------------------------------------------------------------------------

    def shutdown(self) -> None:
        """End the group after its collectives are done. Calling it twice is harmless."""
        self._close(orderly=True)

    def abort(self) -> None:
        """End the group without waiting for other ranks; calls under way fail."""
        self._close(orderly=False)

    def _close(self, *, orderly: bool) -> None:
        if self._process != os.getpid():
            return
        _open.discard(self)
        self._context.unclaimed.close()
        if orderly:
            self._communicator.close()
            self._thread.close()  # waits for callbacks, which may use what is closed next
            if self._callback_communicator is not None:
                self._callback_communicator.close()
            self._mailbox.close(orderly=True)
        else:
            for communicator in (self._communicator, self._callback_communicator):
                if communicator is not None:
                    communicator._native.close(False)
            self._mailbox.close(orderly=False)
            self._thread.close()

    def set_timeout(self, timeout: timedelta) -> None:
        """Set how long calls wait from now on. For collectives, the timeout of the group remains the maximum."""
        self._timeout = timeout
        self._limit = seconds(timeout)

    # ---- names and facts -----------------------------------------------------------------------------------------

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
        # None while PyTorch makes the group: its recorder would then expect a C++ backend for each of them.
        return devices.kinds() if self in dist.distributed_c10d._world.pg_map else []

    def _get_backend(self, device: torch.device) -> ProcessGroup:
        if device.type not in devices.KINDS:
            message = f"the process group {BACKEND} serves tensors in CPU memory and on CUDA, not on {device}"
            raise ArgumentTypeError(message)
        return self

    def _set_sequence_number_for_group(self) -> None:
        self._calls = 0

    def _get_sequence_number_for_group(self) -> int:
        return self._calls

    # ---- reductions ----------------------------------------------------------------------------------------------

    @recorded("all_reduce")
    def allreduce(self, tensors: Any, opts: Any = None, timeout: timedelta | None = None) -> Work:
        """Reduce a tensor over all ranks, in place."""
        options = _options(c10d.AllreduceOptions, opts, timeout, reduceOp=opts)
        tensor = only(tensors, "allreduce")
        if is_sparse(tensor):
            return self._allreduce_sparse(tensor, options)
        tensor = checked(tensor)
        return self._run([self._allreduce(tensor, options.reduceOp)], [tensor], options)

    @recorded("all_reduce")
    def allreduce_coalesced(self, tensors: Sequence[torch.Tensor], opts: Any = None) -> Work:
        """Reduce several tensors over all ranks, in place."""
        options = _options(c10d.AllreduceCoalescedOptions, opts)
        outputs = [checked(tensor) for tensor in tensors]
        return self._run([self._allreduce(tensor, options.reduceOp) for tensor in outputs], outputs, options)

    @recorded("reduce")
    def reduce(self, tensors: Any, opts: Any = None, op: Any = None, timeout: timedelta | None = None) -> Work:
        """Reduce a tensor over all ranks; the root gets the result, in place."""
        options = _options(c10d.ReduceOptions, opts, timeout, rootRank=opts, reduceOp=op)
        tensor = checked(only(tensors, "reduce"))
        source, root = plain(tensor), self._root(options)
        if is_bitwise(source, options.reduceOp):
            target = tensor if self._rank == root else plain_like(tensor)
            return self._run([self._combine(source, target, options.reduceOp)], [tensor], options)
        reduction = reduction_of(source, options.reduceOp, self._size)
        call = _Call("reduce", {"x": reduction.operand, "root": root, "op": reduction.op})
        if self._rank == root and not _same_memory(reduction.operand, tensor):
            call = call.then(partial(reduction.store, tensor, reduction.operand))
        return self._run([call], [tensor], options)

    @recorded("reduce_scatter")
    def reduce_scatter(
        self, output_tensors: Any, input_tensors: Any, opts: Any = None, timeout: timedelta | None = None
    ) -> Work:
        """Reduce one tensor per rank over all ranks; every rank gets the result of its own."""
        options = _options(c10d.ReduceScatterOptions, opts, timeout, reduceOp=opts)
        output = checked(only(output_tensors, "reduce_scatter"))
        parts = self._parts(_list_of(input_tensors), "reduce_scatter")
        check_alike("reduce_scatter", output, *parts)
        if all(part.numel() == output.numel() for part in parts):
            calls = [self._reduce_scatter(output, side_by_side(parts), options.reduceOp)]
            return self._run(calls, [output], options)
        if parts[self._rank].numel() != output.numel():
            _refuse_count("reduce_scatter", output, parts[self._rank].numel())
        copies = [part.clone(memory_format=torch.contiguous_format) for part in parts]
        calls = [self._allreduce(copy, options.reduceOp) for copy in copies]
        calls[self._rank] = calls[self._rank].then(lambda: output.copy_(copies[self._rank].view(output.shape)))
        return self._run(calls, [output], options)

    def reduce_scatter_single(
        self, output: torch.Tensor, input: torch.Tensor, opts: Any = None, timeout: timedelta | None = None
    ) -> Work:
        """Reduce a tensor with one block per rank over all ranks; every rank gets its block."""
        return self.reduce_scatter_single_coalesced([output], [input], opts, timeout)

    @recorded("reduce_scatter")
    def reduce_scatter_single_coalesced(
        self,
        outputs: Sequence[torch.Tensor],
        inputs: Sequence[torch.Tensor],
        opts: Any = None,
        timeout: timedelta | None = None,
    ) -> Work:
        """Do several of `reduce_scatter_single`."""
        options = _options(c10d.ReduceScatterOptions, opts, timeout, reduceOp=opts)
        pairs = [(checked(output), checked(tensor)) for output, tensor in together("reduce_scatter", outputs, inputs)]
        targets, calls = [target for target, _ in pairs], []
        for target, source in pairs:
            check_alike("reduce_scatter_single", target, source)
            if source.numel() != target.numel() * self._size:
                _refuse_count("reduce_scatter_single", source, target.numel() * self._size)
            calls.append(self._reduce_scatter(target, plain(source).reshape(-1), options.reduceOp))
        return self._run(calls, targets, options)

    _reduce_scatter_base = reduce_scatter_single
    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced

    def _allreduce(self, tensor: torch.Tensor, op: Any) -> _Call:
        source = plain(tensor)
        if is_bitwise(source, op):
            return self._combine(source, tensor, op)
        reduction = reduction_of(source, op, self._size)
        arguments = {"x": reduction.operand, "op": reduction.op}
        if _same_memory(reduction.operand, tensor):
            return _Call("allreduce", arguments)
        return _Call("allreduce", arguments, partial(reduction.store, tensor, reduction.operand))

    def _allreduce_sparse(self, tensor: torch.Tensor, options: Any) -> Work:
        """Add sparse tensors: the ranks gather their numbers of elements, then the elements, and add these up."""
        op = options.reduceOp.op
        mean = op == dist.ReduceOp.AVG
        if op != dist.ReduceOp.SUM and not (mean and (tensor.is_floating_point() or tensor.is_complex())):
            message = (
                f"a sparse tensor of {tensor.dtype} is reduced with SUM, or AVG if it has fractions, not {op.name}"
            )
            raise ArgumentTypeError(message)
        own = tensor.detach().coalesce()
        indices, values = checked(own.indices().t().contiguous()), checked(own.values().contiguous())
        facts = torch.tensor([own.sparse_dim(), own.dense_dim(), *own.shape, own._nnz()], device=devices.HOST)
        found = devices.empty((self._size, facts.numel()), facts.dtype, devices.HOST)
        self._run([_Call("allgather", {"x": facts, "out": found})], [], options).wait()
        if (found[:, :-1] != found[0, :-1]).any():
            shapes = [tuple(shape) for shape in found[:, 2:-1].tolist()]
            message = f"the ranks reduce sparse tensors that are not alike; their shapes are {shapes}"
            raise MismatchError(message)
        counts = found[:, -1].tolist()
        device = devices.device_of(values)
        all_indices = devices.empty((sum(counts), own.sparse_dim()), indices.dtype, device)
        all_values = devices.empty((sum(counts), *values.shape[1:]), values.dtype, device)

        def store() -> None:
            total = torch.sparse_coo_tensor(
                all_indices.t(), all_values, own.shape, device=device, check_invariants=False
            ).coalesce()
            with torch.no_grad():  # in place: changing a detached sparse tensor would not change this one
                tensor.copy_(total / self._size if mean else total)

        calls = [
            self._allgather(list(torch.split(all_indices, counts)), indices),
            self._allgather(list(torch.split(all_values, counts)), values).then(store),
        ]
        return self._run(calls, [tensor], options)

    def _reduce_scatter(self, target: torch.Tensor, row: torch.Tensor, op: Any) -> _Call:
        """Reduce-scatter a plain row with one block per rank."""
        if is_bitwise(row, op):
            whole = plain_like(row)
            own = whole.view(self._size, -1)[self._rank].view(target.shape) if row.numel() else target
            return self._combine(row, whole, op).then(partial(target.copy_, own))
        reduction = reduction_of(row, op, self._size)
        operand = reduction.operand
        if operand.dtype is target.dtype and is_plain(target) and not overlap(operand, target):
            return _Call("reduce_scatter", {"x": operand, "op": reduction.op, "out": target})
        result = devices.empty((*target.shape, *operand.shape[1:]), operand.dtype, devices.device_of(target))
        return _Call(
            "reduce_scatter",
            {"x": operand, "op": reduction.op, "out": result},
            partial(reduction.store, target, result),
        )

    def _combine(self, source: torch.Tensor, target: torch.Tensor, op: Any) -> _Call:
        """Reduce bitwise: gather all bits, then combine them."""
        bits = as_bytes(source)
        rows = devices.empty((self._size, bits.numel()), torch.uint8, devices.device_of(bits))
        return _Call(
            "allgather",
            {"x": bits, "out": rows},
            partial(combine_bits, rows, op, target),
        )

    # ---- copies --------------------------------------------------------------------------------------------------

    @recorded("broadcast")
    def broadcast(self, tensors: Any, opts: Any = None, timeout: timedelta | None = None) -> Work:
        """Copy the root's tensor to all ranks, in place."""
        options = _options(c10d.BroadcastOptions, opts, timeout, rootRank=opts)
        tensor = checked(only(tensors, "broadcast"))
        root = self._root(options)
        memory = plain(tensor)
        arguments = {"x": movable(memory), "root": root}
        finish = None if memory is tensor or self._rank == root else partial(tensor.copy_, memory)
        return self._run([_Call("broadcast", arguments, finish)], [tensor], options)

    @recorded("all_gather")
    def allgather(
        self, output_tensors: Any, input_tensors: Any, opts: Any = None, timeout: timedelta | None = None
    ) -> Work:
        """Collect the tensors of all ranks on every rank; they may be of different sizes."""
        options = _options(c10d.AllgatherOptions, opts, timeout)
        outputs = self._parts(_list_of(output_tensors), "allgather")
        return self._run([self._allgather(outputs, only(input_tensors, "allgather"))], outputs, options)

    @recorded("all_gather")
    def allgather_coalesced(
        self,
        output_lists: Sequence[Sequence[torch.Tensor]],
        input_list: Sequence[torch.Tensor],
        opts: Any = None,
    ) -> Work:
        """Collect several tensors of all ranks: the i-th of rank r goes to ``output_lists[r][i]``."""
        options = _options(c10d.AllgatherOptions, opts)
        parts_of_each = list(together("allgather_coalesced", *output_lists))
        outputs = [self._parts(parts, "allgather_coalesced") for parts in parts_of_each]
        calls = [
            self._allgather(parts, tensor) for parts, tensor in together("allgather_coalesced", outputs, input_list)
        ]
        return self._run(calls, [tensor for parts in outputs for tensor in parts], options)

    def all_gather_single(
        self, output: torch.Tensor, input: torch.Tensor, opts: Any = None, timeout: timedelta | None = None
    ) -> Work:
        """Collect the tensors of all ranks side by side in one tensor."""
        return self.all_gather_single_coalesced([output], [input], opts, timeout)

    @recorded("all_gather")
    def all_gather_single_coalesced(
        self,
        outputs: Sequence[torch.Tensor],
        inputs: Sequence[torch.Tensor],
        opts: Any = None,
        timeout: timedelta | None = None,
    ) -> Work:
        """Do several of `all_gather_single`."""
        options = _options(c10d.AllgatherOptions, opts, timeout)
        pairs = [(checked(output), checked(tensor)) for output, tensor in together("all_gather", outputs, inputs)]
        targets, calls = [target for target, _ in pairs], []
        for target, source in pairs:
            check_alike("all_gather_single", target, source)
            if target.numel() != source.numel() * self._size:
                _refuse_count("all_gather_single", target, source.numel() * self._size)
            row, finish = _memory_for(target)
            arguments = {"x": movable(_apart(plain(source), row)), "out": movable(row)}
            calls.append(_Call("allgather", arguments, finish))
        return self._run(calls, targets, options)

    _allgather_base = all_gather_single
    allgather_into_tensor_coalesced = all_gather_single_coalesced

    @recorded("gather")
    def gather(
        self, output_tensors: Any, input_tensors: Any, opts: Any = None, timeout: timedelta | None = None
    ) -> Work:
        """Collect the tensors of all ranks on the root."""
        options = _options(c10d.GatherOptions, opts, timeout, rootRank=opts)
        source, root = checked(only(input_tensors, "gather")), self._root(options)
        memory = movable(plain(source))
        if self._rank != root:
            return self._run([_Call("gather", {"x": memory, "root": root})], [], options)
        outputs = self._parts(_list_of(output_tensors), "gather")
        check_alike("gather", source, *outputs)
        for output in outputs:
            if output.numel() != source.numel():
                _refuse_count("gather", output, source.numel())
        row, finish = _row_for(outputs)
        arguments = {"x": _apart(memory, row), "root": root, "out": movable(row)}
        return self._run([_Call("gather", arguments, finish)], outputs, options)

    @recorded("scatter")
    def scatter(
        self, output_tensors: Any, input_tensors: Any, opts: Any = None, timeout: timedelta | None = None
    ) -> Work:
        """Send each of the root's tensors to its rank."""
        options = _options(c10d.ScatterOptions, opts, timeout, rootRank=opts)
        target, root = checked(only(output_tensors, "scatter")), self._root(options)
        memory, finish = _memory_for(target)
        arguments = {"root": root, "out": movable(memory)}
        if self._rank == root:
            parts = self._parts(_list_of(input_tensors), "scatter")
            check_alike("scatter", target, *parts)
            for part in parts:
                if part.numel() != target.numel():
                    _refuse_count("scatter", part, target.numel())
            arguments["x"] = movable(_apart(side_by_side(parts), memory))
        return self._run([_Call("scatter", arguments, finish)], [target], options)

    @recorded("all_to_all")
    def alltoall(
        self,
        output_tensors: Sequence[torch.Tensor],
        input_tensors: Sequence[torch.Tensor],
        opts: Any = None,
        timeout: timedelta | None = None,
    ) -> Work:
        """Send a tensor to every rank and receive one from every rank, of any sizes."""
        options = _options(c10d.AllToAllOptions, opts, timeout)
        outputs, inputs = self._parts(output_tensors, "alltoall"), self._parts(input_tensors, "alltoall")
        return self._exchange(outputs, inputs, outputs, None, options)

    @recorded("all_to_all")
    def all_to_all_single(
        self,
        output: torch.Tensor,
        input: torch.Tensor,
        output_split_sizes: Sequence[int] = (),
        input_split_sizes: Sequence[int] = (),
        opts: Any = None,
        timeout: timedelta | None = None,
    ) -> Work:
        """Send a block of a tensor to every rank and receive one from every rank.

        Without sizes the blocks are equal. With sizes, which count rows, they may be uneven.
        """
        options = _options(c10d.AllToAllOptions, opts, timeout)
        target, source = checked(output), plain(checked(input))
        check_alike("all_to_all_single", target, source)
        memory, finish = _memory_for(target)
        # All ranks have to take the same path: with sizes, even equal ones, always messages.
        if output_split_sizes or input_split_sizes:
            outputs = self._blocks(memory, output_split_sizes, "output")
            inputs = self._blocks(source, input_split_sizes, "input")
            return self._exchange(outputs, inputs, [target], finish, options)
        if source.numel() != target.numel() or source.numel() % self._size:
            _refuse_count("all_to_all_single", source, target.numel() // self._size * self._size)
        arguments = {"x": movable(_apart(source, memory)), "out": movable(memory)}
        return self._run([_Call("alltoall", arguments, finish)], [target], options)

    alltoall_base = all_to_all_single

    def _allgather(self, outputs: list[torch.Tensor], tensor: torch.Tensor) -> _Call:
        source = plain(checked(tensor))
        check_alike("allgather", source, *outputs)
        if outputs[self._rank].numel() != source.numel():
            _refuse_count("allgather", outputs[self._rank], source.numel())
        row, finish = _row_for(outputs)
        source = _apart(source, row)
        x, out = movable(source), movable(row)
        if all(output.numel() == source.numel() for output in outputs):
            return _Call("allgather", {"x": x, "out": out}, finish)
        scale = out.element_size()
        counts = [output.nbytes // scale for output in outputs]
        return _Call("allgatherv", {"x": x, "counts": counts, "out": out}, finish)

    def _exchange(
        self,
        outputs: Sequence[torch.Tensor],
        inputs: Sequence[torch.Tensor],
        results: list[torch.Tensor],
        finish: Callable[[], object] | None,
        options: Any,
    ) -> Work:
        """Exchange tensors of any sizes with all ranks, by messages."""
        check_alike("alltoall", *outputs, *inputs)
        if outputs[self._rank].numel() != inputs[self._rank].numel():
            _refuse_count("alltoall", outputs[self._rank], inputs[self._rank].numel())
        sources = [plain(tensor) for tensor in inputs]
        sources = [
            source.clone() if any(overlap(source, output) for output in outputs) else source for source in sources
        ]
        memories = [output if is_plain(output) else plain_like(output) for output in outputs]
        self._calls += 1
        tag = self._alltoall_tags.at(0 if self._thread.is_current else 1)
        others = [(self._rank + step) % self._size for step in range(1, self._size)]
        stream = devices.current_stream(devices.device_of(outputs[0]))
        if stream is not None:
            memories = [
                output if rank == self._rank else devices.host_like(output) for rank, output in enumerate(outputs)
            ]
            for rank, copy in zip(others, devices.to_host([sources[rank] for rank in others]), strict=True):
                sources[rank] = copy
        requests = [self._post_receive(memories[rank], rank, tag) for rank in others if memories[rank].numel()]
        requests += [self._post_send(sources[rank], rank, tag) for rank in others if sources[rank].numel()]

        def store() -> None:
            memories[self._rank].copy_(sources[self._rank].view(memories[self._rank].shape))
            for output, memory in zip(outputs, memories, strict=True):
                if memory is not output:
                    output.copy_(memory, non_blocking=True)
            if finish is not None:
                finish()

        if not requests:
            store()
        limit = self._limit_of(options, messages=True)
        return CollectiveWork(self._thread, results, requests, [store], limit, stream)

    # ---- synchronisation -----------------------------------------------------------------------------------------

    @recorded("barrier")
    def barrier(self, opts: Any = None, timeout: timedelta | None = None) -> Work:
        """Wait until all ranks are here; each first completes the current stream of the group's CUDA device."""
        options = _options(c10d.BarrierOptions, opts, timeout)
        if not options.asyncOp:
            devices.synchronize(self._device)
        return self._run([_Call("barrier", {})], [], options)

    @recorded("monitored_barrier")
    def monitored_barrier(self, timeout: timedelta | None = None, wait_all_ranks: bool = False) -> None:
        """Wait until all ranks are here; if some do not come in time, name these.

        Parameters
        ----------
        timeout : datetime.timedelta, optional
            How long rank 0 waits; by default the group's timeout. With 0 it checks once.
        wait_all_ranks : bool
            Whether the error names all missing ranks together, or the first one and then the others.

        Raises
        ------
        gradientflow.errors.CommunicationTimeoutError
            On the ranks that came, if others did not.
        """
        limit = (timeout if timeout is not None and timeout >= timedelta(0) else self._timeout).total_seconds()
        self._barriers += 1
        ranks = self._context.world_ranks
        monitored_barrier(self._mailbox, self._barrier_tags, self._rank, ranks, self._barriers, limit, wait_all_ranks)

    # ---- between two ranks ---------------------------------------------------------------------------------------

    @recorded("send")
    def send(self, tensors: Any, dst: int, tag: int = 0) -> Work:
        """Start to send a tensor to a rank."""
        tag = self._tags.at(tag)
        self._check_rank(dst)
        tensor = checked(only(tensors, "send"))
        request = self._post_send(devices.to_host([plain(tensor)])[0], dst, tag)
        return MessageWork(self._context, tensor, request, [], self._timeout.total_seconds())

    @recorded("recv")
    def recv(self, tensors: Any, src: int, tag: int = 0) -> Work:
        """Start to receive a tensor from a rank."""
        self._check_rank(src)
        return self._receive(tensors, src, tag)

    @recorded("recvAnySource")
    def recv_anysource(self, tensors: Any, tag: int = 0) -> Work:
        """Start to receive a tensor from any rank; the work's `source_rank` returns which."""
        return self._receive(tensors, None, tag)

    def _receive(self, tensors: Any, src: int | None, tag: int) -> Work:
        tag = self._tags.at(tag)
        tensor = checked(only(tensors, "recv"))
        stream = devices.current_stream(devices.device_of(tensor))
        if stream is None:
            memory, store = _memory_for(tensor)
        else:
            memory = devices.host_like(tensor)
            store = partial(tensor.copy_, memory, non_blocking=True)
        request = self._post_receive(memory, src, tag)
        finish = [] if store is None else [store]
        return MessageWork(self._context, tensor, request, finish, self._timeout.total_seconds(), stream)

    def _post_send(self, tensor: torch.Tensor, rank: int, tag: int) -> MessageRequest:
        """Start to send a plain tensor in host memory."""
        return self._mailbox.send(tensor.data_ptr(), tensor.nbytes, tensor, rank, tag)

    def _post_receive(self, tensor: torch.Tensor, rank: int | None, tag: int) -> MessageRequest:
        """Start to receive into a plain tensor in host memory, from one rank or from any."""
        return self._mailbox.receive(tensor.data_ptr(), tensor.nbytes, tensor, rank, tag)

    # ---- helpers -------------------------------------------------------------------------------------------------

    def _run(self, calls: Sequence[_Call], outputs: list[torch.Tensor], options: Any) -> Work:
        """Make the calls, in the current stream if the tensors are on a device."""
        self._calls += 1
        tensors = outputs.copy()
        for call in calls:
            tensors += call.tensors
        device = devices.common_device(tensors)
        if device is devices.HOST:
            return self._make(calls, outputs, options, None)
        self._device = device
        stream = devices.current_stream(device)
        with devices.within(stream):
            return self._make(calls, outputs, options, stream)

    def _make(
        self, calls: Sequence[_Call], outputs: list[torch.Tensor], options: Any, stream: devices.Stream
    ) -> CollectiveWork:
        """Make the calls: in this thread if the caller waits for them at once, else in the background."""
        limit = self._limit_of(options)
        communicator = self._own_communicator()
        if options.asyncOp or limit is not None:
            handles = [call.make(communicator, "_async") for call in calls]
            finishing = [call.finish for call in calls if call.finish is not None]
            return CollectiveWork(self._thread, outputs, handles, finishing, limit, stream)
        try:
            for call in calls:
                call.make(communicator)
                if call.finish is not None:
                    call.finish()
        except GradientFlowError as error:
            if (explained := self._context.explained(error)) is error:
                raise
            raise explained from error
        return CollectiveWork(self._thread, outputs, stream=stream)

    def _own_communicator(self) -> Communicator:
        """Return the communicator for the calls of this thread.

        Calls in callbacks have a communicator of their own, because their order relative to calls of other threads may
        differ between ranks.
        """
        if not self._thread.is_current:
            return self._communicator
        if self._callback_communicator is None:
            self._callback_communicator = Communicator(self._mpi, self._settings)
        return self._callback_communicator

    def _limit_of(self, options: Any, *, messages: bool = False) -> float | None:
        """Return the seconds after which a wait for a call ends; None for the limit of the communicator."""
        return seconds(options.timeout, self._timeout.total_seconds() if messages else self._limit)

    def _root(self, options: Any) -> int:
        root: int = options.rootRank
        self._check_rank(root)
        return root

    def _check_rank(self, rank: int) -> None:
        if not 0 <= rank < self._size:
            message = f"rank {rank} is not in the group: its ranks are 0 to {self._size - 1}"
            raise ArgumentError(message)

    def _parts(self, tensors: Sequence[torch.Tensor], call: str) -> list[torch.Tensor]:
        """Check that there is one tensor for each rank, and each tensor; return the list."""
        if len(tensors) != self._size:
            message = f"{call} takes a list of one tensor for each of the {self._size} ranks, not of {len(tensors)}"
            raise ArgumentError(message)
        return [checked(tensor) for tensor in tensors]

    def _blocks(self, tensor: torch.Tensor, sizes: Sequence[int], what: str) -> list[torch.Tensor]:
        """Cut a tensor into one block of rows for each rank."""
        rows = tensor.shape[0] if tensor.dim() else 1
        if not sizes:
            sizes = [rows // self._size] * self._size
        if len(sizes) != self._size or sum(sizes) != rows:
            message = f"the {what} has {rows} rows, which are not {list(sizes)} for each of the {self._size} ranks"
            raise ArgumentError(message)
        return list(torch.split(tensor, list(sizes)))


serve_builtin_hook(ProcessGroup)
mark_asynchronous()


def create(options: Any, backend_options: Any) -> ProcessGroup:
    """Make a process group; called by ``torch.distributed`` on the ranks that belong to it.

    Parameters
    ----------
    options : torch.distributed._DistributedBackendOptions
        Its ranks, name and timeout.
    backend_options : None
        The backend has no options.
    """
    if backend_options is not None:
        message = f"the backend {BACKEND} has no options: leave pg_options out"
        raise ArgumentTypeError(message)
    if MPI.Query_thread() != MPI.THREAD_MULTIPLE:
        message = f"the backend {BACKEND} needs an MPI that was initialised with MPI_THREAD_MULTIPLE"
        raise ArgumentError(message)
    ranks = list(options.global_ranks_in_group)
    if ranks:
        position(dist.get_rank(), dist.get_world_size())
    else:
        ranks = list(range(position(options.group_rank, options.group_size)[1]))
    world = MPI.COMM_WORLD
    # Only the members call this, so only they take part. The tag keeps apart groups that are made at the same time. It
    # is not made of the group's name, which can differ between members (use_local_synchronization).
    tag = zlib.crc32(repr(ranks).encode()) % 32768
    everybody = world.Get_group()
    members = everybody.Incl(ranks)
    try:
        mpi = world.Create_group(members, tag)
    finally:
        members.Free()
        everybody.Free()
    return ProcessGroup(mpi, options.timeout, options.group_id)


def _world_ranks(mpi: MPI.Intracomm) -> list[int]:
    """Return the rank in the world of each rank of a communicator."""
    members, everybody = mpi.Get_group(), MPI.COMM_WORLD.Get_group()
    try:
        return list(members.Translate_ranks(None, everybody))
    finally:
        members.Free()
        everybody.Free()


def _settings(timeout: timedelta) -> Config:
    """Return the settings of a group's communicator: GRADIENTFLOW_TIMEOUT, if set, replaces PyTorch's default."""
    if timeout == default_pg_timeout and os.environ.get("GRADIENTFLOW_TIMEOUT"):
        return Config()
    return Config(timeout=timeout.total_seconds())


def _options(kind: Any, given: Any, timeout: timedelta | None = None, **values: Any) -> Any:
    """Return the options of a call: those given, or options made of the arguments of its short form."""
    if isinstance(given, kind):
        return given
    options = kind()
    if timeout is not None:
        options.timeout = timeout
    for name, value in values.items():
        if value is not None:
            setattr(options, name, value)
    return options


def _list_of(tensors: Any) -> Sequence[torch.Tensor]:
    """Return the list of tensors, which PyTorch wraps in another list."""
    found: Sequence[torch.Tensor] = tensors
    if not (isinstance(tensors, list | tuple) and tensors and isinstance(tensors[0], torch.Tensor)):
        found = only(tensors, "the call")
    return found


def _same_memory(operand: torch.Tensor, tensor: torch.Tensor) -> bool:
    return operand.data_ptr() == tensor.data_ptr()


def _apart(source: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """Return the source, or a copy if it overlaps the tensor that the call writes."""
    return source.clone() if overlap(source, other) else source


def _memory_for(target: torch.Tensor) -> tuple[torch.Tensor, Callable[[], object] | None]:
    """Return plain memory for the values of a tensor, and the function that then copies them there, if needed."""
    if is_plain(target):
        return target, None
    memory = plain_like(target)
    return memory, partial(target.copy_, memory)


def _row_for(outputs: Sequence[torch.Tensor]) -> tuple[torch.Tensor, Callable[[], object] | None]:
    """Return memory for the elements of all outputs, and the function that then copies them there, if needed."""
    row = joined(outputs)
    if row is not None:
        return row, None
    size = sum(output.numel() for output in outputs)
    row = devices.empty((size,), outputs[0].dtype, devices.device_of(outputs[0]))
    return row, partial(scatter_row, row, outputs)


def _refuse_count(call: str, tensor: torch.Tensor, wanted: int) -> None:
    message = f"{call} needs a tensor of {wanted} elements here, not of {tensor.numel()}"
    raise ArgumentError(message)


@atexit.register
def _close_all() -> None:
    """Abort the groups that are still open when the interpreter exits."""
    for group in list(_open):
        group.abort()
