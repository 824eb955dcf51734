"""Parameter server: servers hold the weights; workers push gradients and pull weights."""

from __future__ import annotations

import atexit
import math
import os
import weakref
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any

import numpy as np
import numpy.typing as npt

from gradientflow.agreement import failing_together, on_rank_0
from gradientflow.annotations import StateDict, TensorLike
from gradientflow.arguments import checked_float, checked_instance, checked_int, checked_list
from gradientflow.communicator import Communicator
from gradientflow.description import words_of
from gradientflow.errors import ArgumentError, ArgumentTypeError, RecoverableError
from gradientflow.memory import NodeArray, numpy_dtype
from gradientflow.metrics.across import across_ranks as over_ranks
from gradientflow.metrics.registry import Values
from gradientflow.metrics.watch import watch
from gradientflow.policies import BSP, Policy, Trace, as_policy
from gradientflow.pools.base import native_threshold

from . import checkpoint
from .optimizers import ServerOptimizer, as_server_optimizer
from .push_pull import Pull, Push, WaitClock, checked_index
from .rank import make_native
from .records import Statistics, WorkerStatistics, events_of, statistics_of
from .recovery import Recovery
from .settings import SettingRows

_open: weakref.WeakSet[ParameterServer] = weakref.WeakSet()


class ParameterServer:
    """Weights on servers: workers push gradients and pull weights.

    Each server holds a part of every tensor and updates this part with the gradients that workers push. A server is a
    thread of a worker, or a rank of its own (``gradientflow run --servers``). A policy decides which pushes are applied
    together, and which workers may proceed. Collective: all ranks make a parameter server with the same arguments.

    Parameters
    ----------
    comm : Communicator
        The workers.
    weights : sequence of array
        float32, in the order in which backpropagation produces their gradients, last layer first. The servers begin
        with rank 0's weights; on all other ranks only the shapes count.
    policy : gradientflow.policies.Policy or str, default "bsp"
        Policy, or words for one, that decides when pushes are applied.
    optimizer : ServerOptimizer or str, default "sgd"
        Update of the weights with the mean g of the pushes of a round. "sgd": as `torch.optim.SGD`,
        ``v = momentum * v + g + weight_decay * w; w = w - rate * v``; the step of a round with momentum 0 does not use
        v and leaves it as it is. "sgd(rate_in_momentum=True)", as in the SSD-SGD paper:
        ``v = momentum * v + rate * (g + weight_decay * w); w = w - v``.
        "lars": as "sgd(rate_in_momentum=True)", but tensors whose trust is not 0 have the local rate
        ``rate * trust * |w| / (|g| + weight_decay * |w|)``.
        "adam(beta1=0.9, beta2=0.999, eps=1e-8)": as `torch.optim.Adam`, with settings that have no momentum.
    servers : int, optional
        Number of workers with a thread that serves, by default all. Only for jobs without ranks that only serve.
    wire : {"float32", "float16", "bfloat16"}, default "float32"
        Dtype to which gradients and weights are rounded for messages, also inside a node. The servers keep float32.
    fusion_threshold : int, float or str, optional
        Number of bytes that are sent together, split into a part for each server. By default 4 MiB.
    names : sequence of str, optional
        Names of the tensors in error messages.
    replicas : {0, 1}, optional
        If given, `recover` can be called after a loss of ranks. With 1, each server sends a copy of its state to
        another server after every round, on another node if possible, so that the loss of a server loses no weights.
        Not allowed with ranks that only serve.

    Attributes
    ----------
    policy : Policy
        Policy of pushes.
    optimizer : ServerOptimizer
        Optimizer of the weights.
    servers : int
        Number of servers.
    shapes : tuple of tuple of int
        Shapes of the tensors.
    wire : str
        Name of the wire dtype.
    rounds_before : int
        After `recover`: number of rounds in the state with which this parameter server began.

    Raises
    ------
    gradientflow.errors.ArgumentError
        If a server would have no part of the weights, or there are more servers than workers.
    gradientflow.errors.MismatchError
        On every rank, if two ranks give different arguments, including shapes and names.
    gradientflow.errors.NodeMemoryError
        If there is not enough memory.

    Examples
    --------
    >>> import numpy as np
    >>> import gradientflow as gf
    >>> from gradientflow.strategies import Settings
    >>> with gf.init() as comm:
    ...     weights = [np.zeros((784, 10), np.float32), np.zeros(10, np.float32)]
    ...     with gf.ParameterServer(comm, weights) as server:
    ...         push = server.push(Settings(0.1, momentum=0.9), gradients=[np.ones_like(w) for w in weights])
    ...         server.pull_into(weights)
    ...         server.finish(weights)
    """

    def __init__(
        self,
        comm: Communicator,
        weights: Sequence[TensorLike],
        policy: Policy | str = "bsp",
        optimizer: ServerOptimizer | str = "sgd",
        servers: int | None = None,
        wire: str | None = None,
        fusion_threshold: float | str | None = None,
        names: Sequence[str] | None = None,
        replicas: int | None = None,
    ) -> None:
        given = [_checked_weights(i, each) for i, each in enumerate(checked_list("weights", weights, "arrays"))]
        self.policy = as_policy(policy)
        self.optimizer: ServerOptimizer = as_server_optimizer(optimizer)
        called = (
            []
            if names is None
            else [checked_instance("a name", each, str) for each in checked_list("names", names, "text")]
        )
        if names is not None and len(called) != len(given):
            raise ArgumentError(f"names are {len(given)}, one for each tensor, not {len(called)}")
        self.shapes: tuple[tuple[int, ...], ...] = tuple(each.shape for each in given)
        self._comm: Communicator = checked_instance("comm", comm, Communicator)
        self.policy.start(comm.size)  # so that errors of the policy are raised here, on all ranks
        arguments = (
            [each.size for each in given],
            None if servers is None else checked_int("servers", servers, 1),
            None if fusion_threshold is None else native_threshold(fusion_threshold),
            wire,
            called,
            self.shapes,
            self.policy,
            0 if replicas is None else checked_int("replicas", replicas, 0, 1),
            self.optimizer.native,
        )
        self._asked_servers = servers
        self._further: dict[str, Any] = {
            "wire": wire,
            "fusion_threshold": fusion_threshold,
            "names": names,
            "replicas": replicas,
        }
        ranks = comm.server_ranks
        if ranks is None:
            self._native = make_native(comm, None, arguments)
        else:
            if servers not in (None, ranks.count):
                message = f"servers is {ranks.count}, the number of ranks that serve only, or not given: not {servers}"
                raise ArgumentError(message)
            ranks.start(comm, arguments)
            self._native = make_native(ranks.everyone, comm.size, arguments)
        _open.add(self)
        self._settings = SettingRows(len(given))
        self._clock, self._pushes = WaitClock(), 0
        self._watched = watch("server", f"ParameterServer with {self.policy}", comm, self._live, comm)
        self.servers: int = self._native.servers
        self.wire: str = self._native.wire
        self.rounds_before = 0
        self._recovery: Recovery | None = None
        if replicas is not None:
            self._make_recoverable().is_known = True
        if comm.rank == 0:
            self._native.load(0, checkpoint.flat(given))

    # ---- pushing -------------------------------------------------------------------------------------------------

    def gradients(self, timeout: float | None = None) -> list[NodeArray]:
        """Return arrays in node memory for the gradients of the next push, which then need no copy.

        Waits while pushes before the last one are under way, as `ready` would. Write to the arrays until the next push,
        and give them to `ready`, or to `push` or `push_pull` as `gradients`; from that push on they belong to the
        servers. Pushes alternate between two such memories, so call this method again for each push. All other arrays
        are copied, including arrays of an earlier push, unless they are in the same memory.

        Parameters
        ----------
        timeout : float, optional
            Seconds; by default GRADIENTFLOW_TIMEOUT.

        Returns
        -------
        list of array
            One array per tensor, of its shape, in the dtype of the wire. Their values are undefined.

        Raises
        ------
        gradientflow.errors.ArgumentTypeError
            If the wire is bfloat16 and the package ml_dtypes, which NumPy needs for it, is missing.
        gradientflow.errors.CommunicationTimeoutError, gradientflow.errors.PeerError
            If the memory does not become free.
        """
        found: list[NodeArray] = self._native.gradients(timeout, numpy_dtype(self.wire), self.shapes)
        return found

    def ready(self, index: int, gradient: TensorLike, stream: object = None) -> None:
        """Copy the gradient of tensor `index` into the current push; begin a push if there is none. From any thread.

        A gradient that is already in its array from `gradients` is not copied. Waits while pushes before the last one
        are under way.

        Parameters
        ----------
        index : int
            Index of the tensor in the constructor's `weights`.
        gradient : array or tuple
            float32, float16 or bfloat16, with as many elements as the tensor; or (address, dtype) of such memory.
        stream : optional
            Not used for memory of the host.

        Raises
        ------
        gradientflow.errors.ArgumentError
            If there is no such tensor, it is already ready in this push, or the gradient is in the array from
            `gradients` of another tensor.
        """
        tensor = checked_index(index, len(self.shapes))
        if isinstance(gradient, tuple):
            address, dtype = gradient
            self._native.ready_at(tensor, address, dtype)
        else:
            self._native.ready(tensor, gradient)

    def push(
        self,
        settings: object,
        loss_scale: float = 1.0,
        skip: bool | str = False,
        *,
        gradients: Sequence[TensorLike] | None = None,
        nonfinite: int | None = None,
    ) -> Push:
        """Complete and send the current push.

        A tensor that is not ready counts as zeros if another push of the round has it. If no push has it, the round
        leaves the tensor and its momentum unchanged, as PyTorch's optimizers do without a gradient.

        Several threads may push: each push, with its `gradients`, is complete before the next one begins.

        Parameters
        ----------
        settings : gradientflow.strategies.Settings or sequence of them
            Rate, momentum and so on, for all tensors or for each. All workers of a round give the same settings.
        loss_scale : float, default 1.0
            Factor by which the gradients are too large; the same for all pushes of a round.
        skip : bool or "abandoned", default False
            True or "abandoned" if the round of this push must change nothing: True if a gradient is not finite,
            "abandoned" if this worker gives up the iteration.
        gradients : sequence of array, optional
            One array per tensor, or None for a tensor without a gradient, in place of calls of `ready`. Arrays from
            `gradients()` are not copied.
        nonfinite : int, optional
            Tensor whose gradient is not finite: the round of the push is skipped, and all its workers find the tensor
            in `Push.nonfinite`.

        Returns
        -------
        Push
            Handle; there is no need to wait for it.

        Raises
        ------
        gradientflow.errors.ArgumentError, gradientflow.errors.ArgumentTypeError
            If the settings or a gradient are refused. None of the given gradients is ready then.
        """
        number = self._push(settings, loss_scale, skip, gradients, nonfinite, None)[0]
        return Push(self._native, number, self._clock)

    def push_pull(
        self,
        settings: object,
        loss_scale: float = 1.0,
        skip: bool | str = False,
        *,
        gradients: Sequence[TensorLike] | None = None,
        nonfinite: int | None = None,
        exact: bool = False,
    ) -> tuple[Push, Pull]:
        """Push and pull in one call, with one message to each server.

        The servers send the weights of the moment when the policy lets this worker proceed. These weights do not
        include later pushes, so all workers that proceed together get the same weights.

        Parameters
        ----------
        settings, loss_scale, skip, gradients, nonfinite
            See `push`.
        exact
            See `pull`.

        Returns
        -------
        tuple of Push and Pull
            Handles; there is no need to wait for them.

        Raises
        ------
        gradientflow.errors.ArgumentError
            See `push`; or if the last pull is still under way.
        """
        push, pull = self._push(settings, loss_scale, skip, gradients, nonfinite, bool(exact))
        return Push(self._native, push, self._clock), self._pull(pull, bool(exact))

    def _pull(self, pull: int, exact: bool) -> Pull:
        return Pull(self._native, pull, self.shapes, "float32" if exact else self.wire, self._clock)

    def _push(
        self,
        settings: object,
        loss_scale: float,
        skip: bool | str,
        gradients: Sequence[TensorLike] | None,
        nonfinite: int | None,
        pull: bool | None,
    ) -> tuple[int, int]:
        rows = self._settings.rows(settings)
        scale = checked_float("loss_scale", loss_scale)
        if skip not in (False, True, "abandoned"):
            raise ArgumentError(f"skip is False, True or 'abandoned', not {skip!r}")
        tensor = -1 if nonfinite is None else checked_index(nonfinite, len(self.shapes))
        why = skip if isinstance(skip, str) else "skipped" if skip or tensor >= 0 else "applied"
        found = [] if gradients is None else list(checked_list("gradients", gradients, "arrays"))
        if gradients is not None and len(found) != len(self.shapes):
            raise ArgumentError(f"gradients are {len(self.shapes)}, one for each tensor, not {len(found)}")
        numbers: tuple[int, int] = self._native.push(rows, scale, why, pull, found, tensor)
        self._pushes += 1
        return numbers

    # ---- pulling -------------------------------------------------------------------------------------------------

    def pull(self, exact: bool = False) -> Pull:
        """Request weights that include all pushes of this worker so far. Replaces the last pull, which must have ended.

        The weights come once the policy lets this worker proceed after its last push. Under "bsp" they are exactly the
        weights after the round of that push. Under policies that apply pushes as they come, the weights may include
        later pushes of other workers.

        Parameters
        ----------
        exact : bool, default False
            True for float32, whatever the wire.

        Raises
        ------
        gradientflow.errors.ArgumentError
            If the last pull is still under way.
        """
        return self._pull(self._native.pull(bool(exact)), bool(exact))

    def pull_into(self, arrays: Sequence[TensorLike], exact: bool = False, timeout: float | None = None) -> None:
        """Pull, wait, and copy all tensors into `arrays`."""
        self.pull(exact).take_all(arrays, timeout)

    def finish(self, arrays: Sequence[TensorLike] | None = None, timeout: float | None = None) -> None:
        """Wait until all workers have finished and all pushes are applied; then take the exact weights.

        Afterwards the policy starts again, with all workers. Collective over the workers, which may have pushed
        different numbers of times.

        Parameters
        ----------
        arrays : sequence of array, optional
            Arrays for the weights, as float32: the same bits on all ranks.
        timeout : float, optional
            Seconds; by default GRADIENTFLOW_TIMEOUT.
        """
        pull = self._pull(self._native.finish(timeout), exact=True)
        if arrays is not None:
            pull.take_all(arrays)

    # ---- records of the servers ------------------------------------------------------------------------------------

    def metrics(self, across_ranks: bool = False) -> Values:
        """Return this worker's metrics, by name; see `gradientflow.metrics`. `statistics` has those of server 0."""
        return over_ranks(self._comm, self._live()) if across_ranks else self._live()

    def _live(self) -> Values:
        return {
            "gradientflow_pushes_total": float(self._pushes),
            "gradientflow_waited_seconds_total": self._clock.seconds,
            "gradientflow_participants": float(self._comm.size),
        }

    def statistics(self, timeout: float | None = None) -> Statistics:
        """Return server 0's statistics so far. Not collective."""
        return statistics_of(self._native.statistics(timeout), self._comm.size)

    def trace(self, timeout: float | None = None) -> Trace:
        """Return server 0's trace of the policy: its events, with the policy's answers. Not collective.

        Only the first million events are kept. Seconds count from the creation of the servers.
        """
        return Trace(self._comm.size, words_of(self.policy), events_of(self._native.trace(timeout)), 0.0)

    # ---- checkpoints -----------------------------------------------------------------------------------------------

    def state_dict(self, timeout: float | None = None) -> StateDict:
        """Return the servers' weights and optimizer state, by tensor, in float32. Not collective.

        The state includes all pushes of this worker, as a pull does. A push of another worker that is applied meanwhile
        may be missing from the parts of some servers; under "bsp" there are no such pushes.
        """
        state: StateDict = {"format": checkpoint.FORMAT, "optimizer": repr(self.optimizer)}
        for place, name in enumerate(self.optimizer.arrays):
            state[name] = checkpoint.by_tensor(self._native.save(place, timeout), self.shapes)
        for place, name in enumerate(self.optimizer.counts, len(self.optimizer.arrays)):
            of_weights = checkpoint.by_tensor(self._native.save(place, timeout), self.shapes)
            state[name] = [np.array(each.max(initial=0), np.int64) for each in of_weights]
        return state

    def load_state_dict(self, state: Mapping[str, object]) -> None:
        """Load a state from `state_dict`, of any number of servers. Collective: the state of rank 0 counts.

        Raises
        ------
        gradientflow.errors.ArgumentError
            On every rank, before any change, if the state belongs to other tensors or to another optimizer.
        """
        with failing_together(self._comm):
            self._native.save(0, None)  # every server answers after it has applied the pushes under way
        on_rank_0(
            self._comm,
            "the state cannot be loaded",
            lambda: self._load(checkpoint.rows_of(state, self.optimizer, self.shapes)),
        )

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the state to a file, atomically. Collective; rank 0 writes.

        Raises
        ------
        gradientflow.errors.ArgumentError
            On every rank, if the file cannot be written: an older file is then kept.
        """
        what = f"the parameter server cannot be saved as {path}"
        on_rank_0(self._comm, what, lambda: checkpoint.write(path, self.state_dict()))

    def load(self, path: str | os.PathLike[str]) -> None:
        """Load a file from `save`, of any number of servers. Collective; rank 0 reads.

        Raises
        ------
        gradientflow.errors.ArgumentError
            On every rank, before any change, if the file cannot be read for any reason, or its state belongs to other
            tensors or to another optimizer.
        """
        what = f"{path} cannot be read as a parameter server's"
        self.load_state_dict(on_rank_0(self._comm, what, lambda: checkpoint.read(path)) or {})

    def _load(self, rows: Sequence[npt.NDArray[np.float32]]) -> None:
        for place, row in enumerate(rows):
            self._native.load(place, row)
        self.pull(exact=True).wait()  # a server handles the messages of a rank in order, so the loads are done

    # ---- recovery ------------------------------------------------------------------------------------------------

    def recover(self, comm: Communicator) -> ParameterServer:
        """Close this parameter server, and return a new one with its state among the survivors. Collective.

        The new state is the state after the last round that all servers have applied. Under policies that apply pushes
        as they come, a push that was under way may be missing from the parts of some servers. Wait for a pull to get
        the weights.

        Parameters
        ----------
        comm : Communicator
            Result of `Communicator.recover`.

        Returns
        -------
        ParameterServer
            Has the same arguments, but no more servers than `comm` has ranks.

        Raises
        ------
        gradientflow.errors.ArgumentError
            If this parameter server was made without `replicas`.
        gradientflow.errors.CommunicationError
            On every rank, if weights are lost with their servers.
        gradientflow.errors.PeerError
            If another rank is lost meanwhile: recover the communicator, and call this method again.
        """
        if self._recovery is None:
            message = "a parameter server can be recovered if it was made with replicas=0, or with 1 for copies"
            raise ArgumentError(message)
        self.close(orderly=False)
        self._recovery.find(comm)
        servers = self._asked_servers
        made = ParameterServer(
            comm,
            [np.zeros(shape, np.float32) for shape in self.shapes],
            self.policy,
            self.optimizer,
            None if servers is None else min(servers, comm.size),
            **self._further,
        )
        made._follow(self)
        made._have_all_followed(self)
        return made

    def _make_recoverable(self) -> Recovery:
        """Keep the records that `recover` needs from now on. Called on all ranks, before any push."""
        if self._comm.server_ranks is not None:
            raise ArgumentError("what ranks that only serve have is not recovered: let the workers serve")
        if self._recovery is None:
            rows = len(self.optimizer.arrays) + len(self.optimizer.counts)
            elements = sum(map(math.prod, self.shapes))
            self._recovery = Recovery(self._native, rows, elements, in_step=isinstance(self.policy, BSP))
        return self._recovery

    def _follow(self, former: ParameterServer) -> None:
        """Take over the state that was found for a former parameter server. Collective."""
        recovery, theirs = self._make_recoverable(), former._recovery
        assert theirs is not None
        recovery.follow(theirs)
        if recovery.state is None:
            return
        self.rounds_before, rows = recovery.state
        on_rank_0(self._comm, "the state cannot be loaded", lambda: self._load(rows))

    def _have_all_followed(self, former: ParameterServer) -> None:
        """Forget the state that was found, once all ranks have taken it. Collective.

        Raises nothing: a rank that calls this has taken the state, and continues.
        """
        recovery, theirs = self._recovery, former._recovery
        assert recovery is not None
        assert theirs is not None
        try:
            self._comm.barrier()
        except RecoverableError:
            return
        recovery.state = theirs.state = None

    def _keep_state(self) -> None:
        """Keep the whole state until it changes: training has ended, and other ranks may leave."""
        if self._recovery is not None:
            rows = range(len(self.optimizer.arrays) + len(self.optimizer.counts))
            self._recovery.keep([self._native.save(row, None) for row in rows])

    # ---- life ----------------------------------------------------------------------------------------------------

    def close(self, orderly: bool = True) -> None:
        """Close the parameter server. A rank with a server waits until all ranks have closed, too.

        Closing twice is harmless. While this process has another parameter server open, `close` does not wait, and the
        server continues to serve in the background. Closing the last parameter server waits for all of them, so ranks
        may close several in different orders.

        Parameters
        ----------
        orderly : bool, default True
            If False, tell all other ranks that this rank has given up, and do not wait.
        """
        self._watched.end()
        self._native.close(bool(orderly))

    @property
    def closed(self) -> bool:
        """True if the parameter server or its communicator has been closed."""
        return bool(self._native.closed)

    def __enter__(self) -> ParameterServer:
        """Return the parameter server itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Close the parameter server; not orderly after an exception."""
        self.close(kind is None)


def _checked_weights(index: int, given: object) -> npt.NDArray[np.float32]:
    if not isinstance(given, np.ndarray) or given.dtype != np.float32:
        kind = f"an array of {given.dtype}" if isinstance(given, np.ndarray) else f"a {type(given).__name__}"
        raise ArgumentTypeError(f"weights are NumPy arrays of float32, but number {index} is {kind}")
    if not given.flags.c_contiguous:
        raise ArgumentError(f"weights are contiguous arrays, but number {index} is not")
    return given


@atexit.register
def _close_all() -> None:
    """Close open parameter servers when the interpreter exits, without waiting for other ranks."""
    for server in list(_open):
        server._native.close(False)


__all__ = ["ParameterServer", "Pull", "Push", "Statistics", "WorkerStatistics"]
