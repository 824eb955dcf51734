"""The communicator: node memory, collectives, and messages between two ranks."""

from __future__ import annotations

import atexit
import operator
import os
import sys
import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Literal, Protocol, TypeVar, overload

import numpy as np
import numpy.typing as npt

from . import recorder
from ._fast_paths import has_fast_path, take_fast_paths
from ._location import core
from .annotations import JsonObject, TensorLike
from .arrays import new_like, shape_of, size_of
from .config import settings, warn_of_unknown_variables
from .device import DeviceArray, new_array
from .errors import ArgumentError, ArgumentTypeError, ClosedError
from .handle import Handle, release_done, warn_of_unreported
from .memory import NodeArray, array_over, checked_bytes, checked_shape, numpy_dtype
from .mpi_library import load_mpi, start_mpi
from .request import Request
from .settings_file import say_what_holds, settings_file
from .watch import show

_Tensor = TypeVar("_Tensor")

_open: weakref.WeakSet[Communicator] = weakref.WeakSet()


class AdmissionProtocol(Protocol):
    """Admission of new processes: `gradientflow.admission.Admission`, which imports this module."""

    def has_pending(self) -> bool:
        """Return True, on rank 0, if `admit_pending` would find a request to join."""

    def admit_pending(
        self, comm: Communicator, min_ranks: int | None, before: Callable[[], object]
    ) -> core.Communicator | None:
        """Admit all waiting joiners; return the core's communicator with them, or None. Collective."""

    def close(self) -> None:
        """Tell waiting joiners that the job has ended."""


class Communicator:
    """The ranks of a job or of a part of it, and the collectives among them.

    Made by `gradientflow.init`. All ranks must call the collectives in the same order; if their calls differ, all ranks
    get a `gradientflow.errors.MismatchError` that names the calls. All methods may be called from any thread; calls are
    served one at a time, in the order in which they were made.

    A tensor is a NumPy array, or any object with DLPack, the CUDA array interface or the buffer protocol, in memory of
    the host or on a CUDA device; it must be contiguous in row-major order. Its dtype is float16, bfloat16, float32,
    float64, int8, uint8, int32, int64 or bool. Sums of integers wrap around; 16-bit floats are accumulated in float32
    and rounded once inside a node, and again at every step between nodes. max and min propagate NaN. All ranks, and all
    reruns, get the same bits.

    A call on CUDA tensors is put into their stream, see docs/gpus.md; the host does not wait for the device. A
    communicator works on one device: the device of its first call on CUDA tensors.

    Attributes
    ----------
    rank, size : int
        This rank, and the number of ranks.
    local_rank, local_size : int
        This rank's number inside its node, and the number of ranks there.
    node, nodes : int
        This rank's node, and the number of nodes.
    mpi : mpi4py.MPI.Comm
        MPI communicator from which this communicator was made, even if its ranks exchange messages over TCP. Raises
        `ArgumentError` if there is none.
    recovered_from : tuple of int or None
        After `recover` or `admit`: the old ranks of this communicator's ranks, in order, without joiners.
    lost : tuple of (int, str)
        Missing ranks of the old communicator, each with the reason why it is missing.
    server_ranks : gradientflow.server.ServerRanks or None
        Ranks that only serve as parameter servers, if there are any; they end when all workers have closed.
    """

    def __init__(
        self,
        ranks: Any,
        config: Mapping[str, str] | None = None,
        *,
        within: Communicator | None = None,
        mpi: Any = None,
    ) -> None:
        self._mpi = mpi
        self._config = settings(config)
        take_fast_paths(Communicator, core.Communicator)
        self._transport_remark = ""
        if isinstance(ranks, core.Communicator):
            self._native = ranks
        else:
            endpoint = ranks
            if not isinstance(ranks, core.Endpoint):
                self._mpi = ranks
                endpoint = core.mpi_endpoint(address_of(ranks), self._config)
            self._transport_remark = endpoint.remark
            self._native = core.Communicator(endpoint, self._config, None if within is None else within._native)
        self.rank: int = self._native.rank
        self.size: int = self._native.size
        recorder.start(self._config["dump"], self.size)
        self.local_rank: int = self._native.local_rank
        self.local_size: int = self._native.local_size
        self.node: int = self._native.node
        self.nodes: int = self._native.nodes
        self.recovered_from: tuple[int, ...] | None = self._native.recovered_from
        self.lost: tuple[tuple[int, str], ...] = self._native.lost
        self.server_ranks: Any = None
        self._admission: AdmissionProtocol | None = None
        self._waits: set[Callable[[], None]] = set()  # called before closing; each waits for a user such as JAX
        self._parts: weakref.WeakSet[Communicator] = weakref.WeakSet()  # parts that are closed with this communicator
        _open.add(self)
        if self.size > 1 and within is None and self._config["watch"] == "on":
            show(self)
        if self.rank == 0 and within is None:
            warn_of_unknown_variables()
            say_what_holds(settings_file())

    # ---- life ----------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Close the communicator once its asynchronous calls are done. Closing twice is harmless.

        Does not wait for peers; a peer that later waits for this rank gets an error. Memory and descriptors are
        released, even if the object is kept. Arrays over node memory stay valid.
        """
        self._end(True)
        release_done()

    def _end(self, drain: bool) -> None:
        """Close this communicator and its own parts; if `drain`, wait for asynchronous calls first."""
        while drain and self._waits:
            self._waits.pop()()
        for part in list(self._parts):
            part._end(drain)
        self._native.close(drain)
        self._release_servers()
        admission, self._admission = self._admission, None
        has_failed = sys.exc_info()[0] is not None  # as in a finally clause
        if drain and admission is not None and self.rank == 0 and not has_failed:
            admission.close()

    def _release_servers(self) -> None:
        if self.server_ranks is not None:
            self.server_ranks.close()

    def recover(self, min_ranks: int | None = None) -> Communicator:
        """Recover from the deaths of ranks: make a communicator of the survivors, and close the old one.

        Collective over the survivors: each calls `recover` after a `gradientflow.errors.RecoverableError`. Either all
        survivors get the new communicator, in which they keep their order, or all get the same error. More ranks may
        die meanwhile. If no rank has died, the new communicator has all ranks. Works over TCP, except in an MPI job
        whose transport ``auto`` became TCP, and over MPI in Open MPI jobs started with ULFM (``mpirun --with-ft
        ulfm``).

        Parameters
        ----------
        min_ranks : int, optional
            Least number of survivors, the same on all ranks. By default more than half of the ranks; or any number if
            all missing ranks are known to have ended, not only silent. If half or fewer are enough, both halves of a
            split network may continue separately. A rank that was only paused meanwhile is refused.

        Returns
        -------
        Communicator
            Has the same settings; `recovered_from` and `lost` list its ranks and the lost ranks.

        Raises
        ------
        gradientflow.errors.PeerError
            If too few ranks survive, or the survivors have taken this rank for dead; this communicator is then closed.
        gradientflow.errors.MismatchError
            If ranks differ about `min_ranks`.
        """
        min_ranks = _checked_min_ranks(min_ranks)
        self._native.check_recoverable(min_ranks)
        self._end_parts()
        try:
            native = self._native.recover(min_ranks)
        finally:
            self._release_servers()
            release_done()
        return self._next(native)

    def admit(self, min_ranks: int | None = None) -> Communicator:
        """Admit processes that have called `gradientflow.join`. Called between two steps. Collective.

        If no process waits, this costs a broadcast of eight bytes, and returns this communicator. Otherwise it makes a
        new one and closes this one; joiners get theirs from `gradientflow.join`. The present ranks keep their order,
        and joiners come behind them, so rank 0 has the state that joiners lack, such as the weights. Ranks and joiners
        that die meanwhile are left out, as by `recover`. Only jobs whose ranks met over TCP can have joiners.

        Parameters
        ----------
        min_ranks : int, optional
            Least number of ranks, as in `recover`; joiners count.

        Returns
        -------
        Communicator
            Has the same settings; its first ``len(recovered_from)`` ranks are the earlier ones.

        Raises
        ------
        gradientflow.errors.PeerError
            If a rank has died before joiners were admitted: `recover` can follow, and the next `admit` admits the
            joiners. Also if too few ranks are left; this communicator is then closed.
        gradientflow.errors.MismatchError
            If ranks differ about `min_ranks`.
        """
        return self._admit(min_ranks)

    def _admit(self, min_ranks: int | None, before: Callable[[], object] | None = None) -> Communicator:
        """Admit processes. Before closing this communicator, call `before` in place of ending the parts. Collective."""
        if self._admission is None:
            self._native.check_open()
            return self
        native = self._admission.admit_pending(self, _checked_min_ranks(min_ranks), before or self._end_parts)
        if native is None:
            return self
        self._release_servers()
        release_done()
        return self._next(native)

    def _next(self, native: core.Communicator) -> Communicator:
        made = Communicator(native, self._config)
        made._transport_remark = self._transport_remark
        made._admission, self._admission = self._admission, None
        return made

    def _end_parts(self) -> None:
        for part in list(self._parts):
            part._end(False)

    @property
    def mpi(self) -> Any:
        """MPI communicator from which this communicator was made."""
        if self._mpi is None:
            raise ArgumentError(
                "MPI has no communicator of these ranks: it has one of ranks that its launcher has started, with "
                "MPI_THREAD_MULTIPLE, and none of ranks that recover() has left"
            )
        return self._mpi

    @property
    def closed(self) -> bool:
        """True if the communicator has been closed."""
        return bool(self._native.closed)

    def __enter__(self) -> Communicator:
        """Return the communicator itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Close the communicator; after an exception, without waiting for asynchronous calls."""
        self._end(kind is None)
        release_done()

    def __repr__(self) -> str:
        """Return this rank's position among ranks and nodes."""
        state = ", closed" if self.closed else ""
        return f"<Communicator rank {self.rank} of {self.size}, node {self.node} of {self.nodes}{state}>"

    # ---- memory --------------------------------------------------------------------------------------------------

    @overload
    def empty(
        self, shape: int | Sequence[int], dtype: npt.DTypeLike | str = "float32", device: Literal["cpu"] = "cpu"
    ) -> NodeArray: ...

    @overload
    def empty(
        self, shape: int | Sequence[int], dtype: npt.DTypeLike | str = "float32", *, device: str | int
    ) -> NodeArray | DeviceArray: ...

    def empty(
        self, shape: int | Sequence[int], dtype: npt.DTypeLike | str = "float32", device: str | int = "cpu"
    ) -> NodeArray | DeviceArray:
        """Return a new array in memory that the ranks of a node share; allreduce is fastest there: no copy, one pass.

        Collective: all ranks ask for the same size.

        Parameters
        ----------
        shape : int or sequence of int
            Shape of the array.
        dtype : dtype, default "float32"
            Its dtype; in memory of the host "bfloat16" needs the package ml_dtypes.
        device : str or int, default "cpu"
            "cpu" is memory of the host; "cuda", "cuda:1" or a number is memory of a CUDA device, see
            `gradientflow.device.DeviceArray`.

        Returns
        -------
        numpy.ndarray or DeviceArray
            Zero-filled. The memory lives as long as an array over it, even after `close`.

        Raises
        ------
        gradientflow.errors.NodeMemoryError
            If there is not enough memory.
        """
        if device != "cpu":
            return new_array(self._native.allocate_on_device, shape, dtype, device)
        sizes, element = checked_shape(shape), numpy_dtype(dtype)
        segment = self._native.allocate(checked_bytes(sizes, element))
        return array_over(segment, 0, sizes, element)

    # ---- collectives ---------------------------------------------------------------------------------------------

    @has_fast_path
    def allreduce(
        self,
        x: _Tensor,
        op: str = "sum",
        algorithm: str = "auto",
        out: _Tensor | None = None,
        wire: str | None = None,
        *,
        label: str | None = None,
    ) -> _Tensor:
        """Reduce `x` over all ranks; every rank gets the result.

        Parameters
        ----------
        x : array
            Same number of elements and dtype on every rank. Holds the result afterwards, unless `out` is given.
        op : {"sum", "mean", "max", "min", "prod"}
            mean needs a floating dtype; bool allows only max and min.
        algorithm : str
            "auto", "ring", "hierarchical", "hierarchical_lanes", "recursive_doubling", "shared", "mpi" or "nccl".
            "shared" works inside one node, "mpi" calls the MPI library, "nccl" calls NCCL (CUDA devices only); all
            remaining algorithms send messages. An algorithm that cannot serve the call is an error.
        out : array, optional
            Array for the result, in place of `x`; must not overlap `x` unless it is `x`.
        wire : {"float32", "float16", "bfloat16", "float8_e4m3"}, optional
            Format to which values of a float32 tensor are rounded when they are sent between nodes; by default they are
            not rounded. Sums are computed in float32. A mean is divided before it is sent; a sum of many values may
            overflow float16. Values of float8_e4m3 share a scale in each message: values far below the largest become
            0. Inside a node nothing is rounded, unless `algorithm` sends messages.
        label : str, optional
            Name of `x`. The ranks compare names and shapes of `x`: if these differ, all raise
            `gradientflow.errors.MismatchError`, which names them, even if the numbers of elements are equal. Either all
            ranks give a label or none does.

        Returns
        -------
        array
            `out`, or `x` without it.

        Notes
        -----
        Ring and hierarchical allreduce: GradientFlow paper, section 2.4; fp16 on the wire: section 2.5.
        """
        self._native.allreduce(x, op, wire, algorithm, label, out)
        return x if out is None else out

    def allreduce_async(
        self,
        x: TensorLike,
        op: str = "sum",
        algorithm: str = "auto",
        out: TensorLike = None,
        wire: str | None = None,
        *,
        label: str | None = None,
    ) -> Handle:
        """Start `allreduce` in the background. With `wire`, `Handle.nonfinite` counts infinite and NaN results."""
        native = self._native.allreduce_async(x, op, wire, algorithm, label, out)
        return self._started(native, x if out is None else out)

    def allreduce_init(
        self,
        x: TensorLike,
        op: str = "sum",
        algorithm: str = "auto",
        out: TensorLike = None,
        wire: str | None = None,
        *,
        label: str | None = None,
    ) -> Request:
        """Prepare `allreduce`, see `Request`."""
        return Request(self._native.allreduce_init(x, op, wire, algorithm, label, out, x if out is None else out))

    @has_fast_path
    def broadcast(self, x: _Tensor, root: int = 0, algorithm: str = "auto", *, label: str | None = None) -> _Tensor:
        """Copy the root's `x` to all ranks, in place.

        Parameters
        ----------
        x : array
            Same number of elements and dtype on every rank.
        root : int
            The rank whose values all ranks get.
        algorithm : {"auto", "shared", "mpi"}
            See `allreduce`.
        label : str, optional
            See `allreduce`.

        Returns
        -------
        array
            `x`.
        """
        self._native.broadcast(x, root, algorithm, label, None)
        return x

    def broadcast_async(
        self, x: TensorLike, root: int = 0, algorithm: str = "auto", *, label: str | None = None
    ) -> Handle:
        """Start `broadcast` in the background."""
        return self._started(self._native.broadcast_async(x, root, algorithm, label, None), x)

    def broadcast_init(
        self, x: TensorLike, root: int = 0, algorithm: str = "auto", *, label: str | None = None
    ) -> Request:
        """Prepare `broadcast`, see `Request`."""
        return Request(self._native.broadcast_init(x, root, algorithm, label, None, x))

    def reduce(
        self,
        x: TensorLike,
        root: int = 0,
        op: str = "sum",
        algorithm: str = "auto",
        out: TensorLike = None,
        *,
        label: str | None = None,
    ) -> TensorLike:
        """Reduce `x` over all ranks; the root gets the result, in place unless `out` is given.

        Parameters
        ----------
        x : array
            Same number of elements and dtype on every rank. Unchanged on ranks other than the root.
        root : int
            The rank that gets the result.
        op : {"sum", "mean", "max", "min", "prod"}
            See `allreduce`.
        algorithm : {"auto", "shared", "mpi"}
            See `allreduce`.
        label : str, optional
            See `allreduce`.
        out : array, optional
            Array for the result on the root, in place of `x`.

        Returns
        -------
        array
            `x`; on the root `out` if it was given.
        """
        target = out if self._is_root(root) else None
        self._native.reduce(x, op, root, algorithm, label, target)
        return x if target is None else target

    def reduce_async(
        self,
        x: TensorLike,
        root: int = 0,
        op: str = "sum",
        algorithm: str = "auto",
        out: TensorLike = None,
        *,
        label: str | None = None,
    ) -> Handle:
        """Start `reduce` in the background."""
        target = out if self._is_root(root) else None
        native = self._native.reduce_async(x, op, root, algorithm, label, target)
        return self._started(native, x if target is None else target)

    def reduce_init(
        self,
        x: TensorLike,
        root: int = 0,
        op: str = "sum",
        algorithm: str = "auto",
        out: TensorLike = None,
        *,
        label: str | None = None,
    ) -> Request:
        """Prepare `reduce`, see `Request`."""
        target = out if self._is_root(root) else None
        return Request(self._native.reduce_init(x, op, root, algorithm, label, target, x if target is None else target))

    def allgather(
        self, x: TensorLike, algorithm: str = "auto", out: TensorLike = None, *, label: str | None = None
    ) -> TensorLike:
        """Collect the `x` of all ranks on every rank.

        Parameters
        ----------
        x : array
            Same number of elements and dtype on every rank; see `allgatherv` for different numbers.
        algorithm : {"auto", "ring", "shared", "mpi"}
            See `allreduce`.
        label : str, optional
            See `allreduce`.
        out : array, optional
            ``size * x.size`` elements; by default a new array of shape ``(size, *x.shape)``, on the device of `x`.

        Returns
        -------
        array
            `out`; the values of rank r are ``out[r]``.
        """
        out = self._stacked(x) if out is None else out
        self._native.allgather(x, algorithm, label, out)
        return out

    def allgather_async(
        self, x: TensorLike, algorithm: str = "auto", out: TensorLike = None, *, label: str | None = None
    ) -> Handle:
        """Start `allgather` in the background."""
        out = self._stacked(x) if out is None else out
        return self._started(self._native.allgather_async(x, algorithm, label, out), out)

    def allgather_init(
        self, x: TensorLike, algorithm: str = "auto", out: TensorLike = None, *, label: str | None = None
    ) -> Request:
        """Prepare `allgather`, see `Request`."""
        out = self._stacked(x) if out is None else out
        return Request(self._native.allgather_init(x, algorithm, label, out, out))

    def allgatherv(
        self,
        x: TensorLike,
        counts: Sequence[int] | None = None,
        algorithm: str = "auto",
        out: TensorLike = None,
        *,
        label: str | None = None,
    ) -> TensorLike:
        """Collect the `x` of all ranks, of different lengths, on every rank.

        Parameters
        ----------
        x : array
            Same dtype on every rank, any number of elements.
        counts : sequence of int, optional
            The number of elements of each rank. Without it the ranks exchange their numbers first.
        algorithm : {"auto", "ring", "shared", "mpi"}
            See `allreduce`.
        label : str, optional
            See `allreduce`.
        out : array, optional
            As many elements as all ranks have together; by default a new one-dimensional array, on the device of `x`.

        Returns
        -------
        array
            `out`: the flattened values of rank 0, then of rank 1, and so on.
        """
        counts, out = self._uneven(x, counts, out)
        self._native.allgatherv(x, counts, algorithm, label, out)
        return out

    def allgatherv_async(
        self,
        x: TensorLike,
        counts: Sequence[int] | None = None,
        algorithm: str = "auto",
        out: TensorLike = None,
        *,
        label: str | None = None,
    ) -> Handle:
        """Start `allgatherv` in the background. Without `counts` it first waits for the counts of all ranks."""
        counts, out = self._uneven(x, counts, out)
        return self._started(self._native.allgatherv_async(x, counts, algorithm, label, out), out)

    def allgatherv_init(
        self,
        x: TensorLike,
        counts: Sequence[int] | None = None,
        algorithm: str = "auto",
        out: TensorLike = None,
        *,
        label: str | None = None,
    ) -> Request:
        """Prepare `allgatherv`, see `Request`. Without `counts` it first waits for the counts of all ranks."""
        counts, out = self._uneven(x, counts, out)
        return Request(self._native.allgatherv_init(x, counts, algorithm, label, out, out))

    def reduce_scatter(
        self,
        x: TensorLike,
        op: str = "sum",
        algorithm: str = "auto",
        out: TensorLike = None,
        *,
        label: str | None = None,
    ) -> TensorLike:
        """Reduce `x` over all ranks; rank r gets block r of the result.

        Blocks are cut from the flattened `x`: the first ``x.size % size`` ranks get one element more.

        Parameters
        ----------
        x : array
            Same number of elements and dtype on every rank. Not changed.
        op : {"sum", "mean", "max", "min", "prod"}
            See `allreduce`.
        algorithm : {"auto", "ring", "shared", "mpi"}
            See `allreduce`.
        label : str, optional
            See `allreduce`.
        out : array, optional
            Array of the size of this rank's block; by default a new one-dimensional array, on the device of `x`.

        Returns
        -------
        array
            `out`.
        """
        out = self._block(x) if out is None else out
        self._native.reduce_scatter(x, op, algorithm, label, out)
        return out

    def reduce_scatter_async(
        self,
        x: TensorLike,
        op: str = "sum",
        algorithm: str = "auto",
        out: TensorLike = None,
        *,
        label: str | None = None,
    ) -> Handle:
        """Start `reduce_scatter` in the background."""
        out = self._block(x) if out is None else out
        return self._started(self._native.reduce_scatter_async(x, op, algorithm, label, out), out)

    def reduce_scatter_init(
        self,
        x: TensorLike,
        op: str = "sum",
        algorithm: str = "auto",
        out: TensorLike = None,
        *,
        label: str | None = None,
    ) -> Request:
        """Prepare `reduce_scatter`, see `Request`."""
        out = self._block(x) if out is None else out
        return Request(self._native.reduce_scatter_init(x, op, algorithm, label, out, out))

    def alltoall(
        self, x: TensorLike, algorithm: str = "auto", out: TensorLike = None, *, label: str | None = None
    ) -> TensorLike:
        """Send block r of `x` to rank r; get a block from every rank.

        Parameters
        ----------
        x : array
            Same number of elements, a multiple of `size`, and dtype on every rank; block r of the flattened `x` goes
            to rank r. Not changed.
        algorithm : {"auto", "shared", "mpi"}
            See `allreduce`.
        label : str, optional
            See `allreduce`.
        out : array, optional
            Array of the size of `x`; by default a new array of its shape, on the device of `x`.

        Returns
        -------
        array
            `out`: the block from rank 0, then from rank 1, and so on.
        """
        out = new_like(x, shape_of(x)) if out is None else out
        self._native.alltoall(x, algorithm, label, out)
        return out

    def alltoall_async(
        self, x: TensorLike, algorithm: str = "auto", out: TensorLike = None, *, label: str | None = None
    ) -> Handle:
        """Start `alltoall` in the background."""
        out = new_like(x, shape_of(x)) if out is None else out
        return self._started(self._native.alltoall_async(x, algorithm, label, out), out)

    def alltoall_init(
        self, x: TensorLike, algorithm: str = "auto", out: TensorLike = None, *, label: str | None = None
    ) -> Request:
        """Prepare `alltoall`, see `Request`."""
        out = new_like(x, shape_of(x)) if out is None else out
        return Request(self._native.alltoall_init(x, algorithm, label, out, out))

    def gather(
        self, x: TensorLike, root: int = 0, algorithm: str = "auto", out: TensorLike = None, *, label: str | None = None
    ) -> TensorLike:
        """Collect the `x` of all ranks on the root.

        Parameters
        ----------
        x : array
            Same number of elements and dtype on every rank.
        root : int
            The rank that gets the result.
        algorithm : {"auto", "shared", "mpi"}
            See `allreduce`.
        label : str, optional
            See `allreduce`.
        out : array, optional
            On the root: ``size * x.size`` elements; by default a new array of shape ``(size, *x.shape)``, on the device
            of `x`.

        Returns
        -------
        array or None
            `out` on the root, None elsewhere.
        """
        out = self._on_root(x, root, out)
        self._native.gather(x, root, algorithm, label, out)
        return out

    def gather_async(
        self, x: TensorLike, root: int = 0, algorithm: str = "auto", out: TensorLike = None, *, label: str | None = None
    ) -> Handle:
        """Start `gather` in the background."""
        out = self._on_root(x, root, out)
        return self._started(self._native.gather_async(x, root, algorithm, label, out), out)

    def gather_init(
        self, x: TensorLike, root: int = 0, algorithm: str = "auto", out: TensorLike = None, *, label: str | None = None
    ) -> Request:
        """Prepare `gather`, see `Request`."""
        out = self._on_root(x, root, out)
        return Request(self._native.gather_init(x, root, algorithm, label, out, out))

    def scatter(
        self,
        x: TensorLike = None,
        root: int = 0,
        algorithm: str = "auto",
        out: TensorLike = None,
        *,
        label: str | None = None,
    ) -> TensorLike:
        """Send block r of the root's `x` to rank r.

        Parameters
        ----------
        x : array, on the root
            A multiple of `size` elements; block r of the flattened `x` goes to rank r. Not changed, and read on the
            root only.
        root : int
            The rank that has `x`.
        algorithm : {"auto", "shared", "mpi"}
            See `allreduce`.
        label : str, optional
            See `allreduce`.
        out : array
            Array of the size of a block. On the root by default a new one-dimensional array, on the device of `x`; all
            other ranks must give `out`, because only the root knows the length of a block.

        Returns
        -------
        array
            `out`.
        """
        out = self._received_block(x, root, out)
        self._native.scatter(x, root, algorithm, label, out)
        return out

    def scatter_async(
        self,
        x: TensorLike = None,
        root: int = 0,
        algorithm: str = "auto",
        out: TensorLike = None,
        *,
        label: str | None = None,
    ) -> Handle:
        """Start `scatter` in the background."""
        out = self._received_block(x, root, out)
        return self._started(self._native.scatter_async(x, root, algorithm, label, out), out)

    def scatter_init(
        self,
        x: TensorLike = None,
        root: int = 0,
        algorithm: str = "auto",
        out: TensorLike = None,
        *,
        label: str | None = None,
    ) -> Request:
        """Prepare `scatter`, see `Request`."""
        out = self._received_block(x, root, out)
        return Request(self._native.scatter_init(x, root, algorithm, label, out, out))

    @has_fast_path
    def barrier(self) -> None:
        """Wait until all ranks have called it."""
        self._native.barrier()

    def barrier_async(self) -> Handle:
        """Start `barrier` in the background."""
        return self._started(self._native.barrier_async(), None)

    def barrier_init(self) -> Request:
        """Prepare `barrier`, see `Request`."""
        return Request(self._native.barrier_init())

    # ---- between two ranks ---------------------------------------------------------------------------------------

    def send(self, x: TensorLike, dest: int) -> None:
        """Send `x` to rank `dest`, which calls `recv`.

        Not a collective call: only the two ranks take part. Tensors from one rank to another arrive in the order in
        which they were sent. Returns when `x` may change; a large tensor waits for its receiver.

        Parameters
        ----------
        x : array
            Tensor to send.
        dest : int
            Another rank.
        """
        self._native.send(x, dest)

    def recv(self, x: _Tensor, source: int) -> _Tensor:
        """Receive a tensor from rank `source` into `x`.

        Parameters
        ----------
        x : array
            Same number of elements and dtype as the sent tensor.
        source : int
            Another rank.

        Returns
        -------
        array
            `x`.

        Raises
        ------
        gradientflow.errors.MismatchError
            If the sent tensor has another number of elements or another dtype; the message is then lost.
        """
        self._native.receive(x, source)
        return x

    # ---- parts ---------------------------------------------------------------------------------------------------

    def split(self, color: int | None, key: int | None = None) -> Communicator | None:
        """Split the ranks into parts, each with a communicator of its own.

        Collective over all ranks; the parts are then independent of this communicator.

        Parameters
        ----------
        color : int or None
            Ranks with the same color, a number of 0 or more, share a new communicator; a rank with None gets none.
        key : int, optional
            Order of the ranks in the new communicator; by default, and among equal keys, their present order.

        Returns
        -------
        Communicator or None
            Has the same settings as this communicator.
        """
        return self._part(color, key, self._config, within=self)

    def _again(self, config: Mapping[str, str] | None) -> Communicator:
        """Make another communicator of the same ranks, with other settings. Collective over all ranks."""
        made = self._part(0, None, config)
        assert made is not None  # all ranks have a color
        return made

    def _part(
        self, color: int | None, key: int | None, config: Mapping[str, str] | None, within: Communicator | None = None
    ) -> Communicator | None:
        endpoint = self._native.split(color, key)
        if endpoint is None:
            return None
        if endpoint.mpi is None:
            made = Communicator(endpoint, config, within=within)
        else:
            over_mpi = endpoint.transport == "mpi"
            part = load_mpi().Comm.fromhandle(endpoint.release_mpi())
            try:
                made = _Part(part if over_mpi else endpoint, config, within=within, mpi=part)
            except BaseException:
                part.Free()
                raise
        made._transport_remark = self._transport_remark
        return made

    def _own_part(self, color: int) -> Communicator:
        """Split off a part for internal use; it is closed together with this communicator. Collective."""
        part = self.split(color)
        assert part is not None  # this rank has a color
        self._parts.add(part)
        return part

    # ---- timeline ------------------------------------------------------------------------------------------------

    def start_timeline(self, path: str | os.PathLike[str]) -> None:
        """Record a timeline into a file, for Chrome's or Perfetto's trace viewer.

        Every rank writes a file of its own: trace.json becomes trace.rank0.json, trace.rank1.json and so on; see
        ``gradientflow timeline merge``. GRADIENTFLOW_TIMELINE does the same from the start. Collective.

        Raises
        ------
        gradientflow.errors.SystemCallError
            If the file cannot be written.
        """
        try:
            name = os.fsdecode(path)
        except TypeError as error:
            raise ArgumentTypeError(f"path is the name of a file, not a {type(path).__name__}") from error
        self._native.start_timeline(name)

    def stop_timeline(self) -> None:
        """Stop recording, and close the file unless other communicators write to it. Harmless without a timeline."""
        self._native.stop_timeline()

    @contextmanager
    def span(self, name: str) -> Iterator[None]:
        """Record the ``with`` block as a span in the timeline, if one is written."""
        if not isinstance(name, str):
            raise ArgumentTypeError(f"the name of a span is text, not a {type(name).__name__}")
        begin = time.monotonic()
        try:
            yield
        finally:
            self._native.record_span(name, begin, time.monotonic())

    # ---- facts ---------------------------------------------------------------------------------------------------

    @property
    def bytes_sent(self) -> int | None:
        """Number of bytes that this rank has sent to other ranks in messages so far.

        Includes bytes from parts and gradient pools of this communicator, but not the traffic in memory that the ranks
        of a node share. None once uncounted bytes were sent: by ``algorithm="mpi"``, NCCL or a `ParameterServer`.
        """
        count = self._native.bytes_sent
        return None if count is None else int(count)

    def describe(self) -> JsonObject:
        """Return a readable summary: this rank's position, the paths of allreduce, and the settings in force."""
        facts: dict[str, object] = self._native.describe()
        path = settings_file().path
        return {
            **facts,
            "transport_remark": self._transport_remark,
            "settings_file": None if path is None else str(path),
        }

    # ---- helpers -------------------------------------------------------------------------------------------------

    def _started(self, native: tuple[core.Handle, object, object], result: object) -> Handle:
        return Handle(native[0], self._native, result, native[1:])

    def _stacked(self, x: TensorLike) -> TensorLike:
        return new_like(x, (self.size, *shape_of(x)))

    def _block(self, x: TensorLike) -> TensorLike:
        size = size_of(x)
        return new_like(x, (size // self.size + (self.rank < size % self.size),))

    def _is_root(self, root: int) -> bool:
        try:
            return operator.index(root) == self.rank
        except TypeError as error:
            raise ArgumentTypeError(f"root is the number of a rank, not {root!r} ({type(root).__name__})") from error

    def _on_root(self, x: TensorLike, root: int, out: TensorLike) -> TensorLike:
        if not self._is_root(root):
            return None
        return self._stacked(x) if out is None else out

    def _received_block(self, x: TensorLike, root: int, out: TensorLike) -> TensorLike:
        if out is not None:
            return out
        if not self._is_root(root):
            message = f"scatter needs out= on rank {self.rank}: only the root, rank {root}, knows how long a block is"
            raise ArgumentTypeError(message)
        return new_like(x, (size_of(x) // self.size,))

    def _uneven(self, x: TensorLike, counts: Sequence[int] | None, out: TensorLike) -> tuple[Sequence[int], object]:
        if counts is None:
            counts = self.allgather(np.array([size_of(x)], np.int64)).ravel().tolist()
        try:
            counts = [operator.index(count) for count in counts]
        except TypeError as error:
            message = f"counts is a sequence of whole numbers, one for each rank, not {counts!r}"
            raise ArgumentTypeError(message) from error
        if len(counts) != self.size or any(count < 0 for count in counts):
            message = f"counts must have a number of elements for each of the {self.size} ranks, not {counts}"
            raise ArgumentError(message)
        return counts, new_like(x, (sum(counts),)) if out is None else out


def address_of(mpi: object) -> int:
    """Return the address of an mpi4py communicator's handle; initialize MPI if needed."""
    MPI = load_mpi()  # noqa: N806
    if MPI.Is_finalized():
        raise ClosedError("MPI has been finalized: no communicator can be made any more")
    if not isinstance(mpi, MPI.Intracomm):
        message = f"a communicator is made from an mpi4py intracommunicator, not from {type(mpi).__name__}"
        raise ArgumentTypeError(message)
    if mpi == MPI.COMM_NULL:
        raise ArgumentTypeError("MPI.COMM_NULL has no ranks")
    start_mpi(MPI)
    return int(MPI._addressof(mpi))


def _checked_min_ranks(min_ranks: int | None) -> int | None:
    try:
        return None if min_ranks is None else operator.index(min_ranks)
    except TypeError as error:
        message = f"min_ranks is a whole number, not {min_ranks!r} ({type(min_ranks).__name__})"
        raise ArgumentTypeError(message) from error


class _Part(Communicator):
    """A communicator made by `Communicator.split`, which owns its MPI communicator."""

    def _end(self, drain: bool) -> None:
        super()._end(drain)
        if drain:
            self._free()

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        super().__exit__(kind, value, traceback)
        self._free()

    def _free(self) -> None:
        from mpi4py import MPI

        if self.mpi != MPI.COMM_NULL and not MPI.Is_finalized():
            self.mpi.Free()


@atexit.register
def _close_all() -> None:
    """Close open communicators when the interpreter exits, without waiting for other ranks."""
    for communicator in list(_open):
        communicator._native.close(False)
        communicator._release_servers()
    warn_of_unreported()


__all__ = ["Communicator", "address_of"]
