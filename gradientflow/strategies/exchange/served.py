"""Strategies on a parameter server: workers push gradients, servers make the step, and workers pull the weights."""

from __future__ import annotations

import ctypes
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import numpy as np
import numpy.typing as npt

from gradientflow._location import core
from gradientflow.annotations import State, StateDict, TensorLike
from gradientflow.arguments import checked_int
from gradientflow.communicator import Communicator
from gradientflow.errors import AbandonedError, ArgumentError, ArgumentTypeError, NonFiniteError
from gradientflow.memory import itemsize
from gradientflow.model.computation import Computation
from gradientflow.model.costs import Costs
from gradientflow.model.pooled import counts_of
from gradientflow.model.traffic import Served, Traffic
from gradientflow.policies import BSP, Policy
from gradientflow.pools.base import native_threshold
from gradientflow.server.optimizers import LARS, Adam, as_server_optimizer
from gradientflow.server.parameter_server import ParameterServer, Pull, Push
from gradientflow.strategies.contract import Strategy, Synchronizer
from gradientflow.strategies.layout import Layout
from gradientflow.strategies.update import Phase, Settings, SettingsOf, Update
from gradientflow.wires import check_single

from .nonfinite import nonfinite_error
from .places import PlacedSynchronizer
from .state import check_keys, check_names, in_order
from .survivable import Meeting, Survivable

Array = npt.NDArray[np.float32]

_RANGE = 4 << 20  # default bytes that travel together
_WIDTHS = {"float16": 2, "bfloat16": 2, "float32": 4}


class ServedStrategy(Strategy):
    """A strategy whose step is made by servers, with momentum SGD, LARS or Adam; the optimizer only gives its settings.

    Parameters
    ----------
    servers, optimizer, fusion_threshold
        As in `gradientflow.ParameterServer`.
    replicas : {0, 1}, default 0
        Number of other ranks that keep a copy of a server's state, so that its weights survive the loss of the server;
        for ``on_failure="continue"``.
    wire : {"float32", "float16", "bfloat16"}, optional
        Dtype to which gradients and weights are rounded in messages, also inside a node; by default the common dtype of
        all gradients, or float32 if they have several dtypes.
    """

    gradients = "consumed"
    effect = "stale"
    waits: bool = True  # True if a worker waits for the servers in every step
    local_passes: float = 0.0  # bytes of memory read and written, for each weight, in a worker's own step
    options = ("wire", "fusion_threshold")
    wire: str | None
    fusion_threshold: float | str
    not_taken = dict.fromkeys(
        ("density", "ratio"), "servers add up whole gradients; wire='float16' halves what travels"
    ) | {"algorithm": "pushes and pulls are no allreduce"}

    def __init__(
        self, *, servers: int | None = None, optimizer: str = "sgd", replicas: int = 0, **options: object
    ) -> None:
        super().__init__(**options)
        check_single(self.wire, self.name)
        if not isinstance(optimizer, str):
            raise ArgumentTypeError(f"optimizer is that of the servers, in words such as 'sgd', not {optimizer!r}")
        self.step = "core_rate_in_momentum" if as_server_optimizer(optimizer).rate_in_momentum else "core"
        self.servers = None if servers is None else checked_int("servers", servers, 1)
        self.optimizer = optimizer
        self.replicas = checked_int("replicas", replicas, 0, 1)

    @property
    @abstractmethod
    def policy(self) -> Policy:
        """The pushes that servers apply together, and the workers that may proceed."""

    def bind(self, comm: Communicator, layout: Layout) -> ServedSynchronizer:
        """Start servers with the weights of rank 0. Collective."""
        return ServedSynchronizer(comm, layout, self)

    def traffic(self, computation: Computation, costs: Costs) -> Traffic:
        """Return pushes, which overlap with backpropagation, and pulls."""
        counts = counts_of(computation)
        width = itemsize(self.wire or computation.dtype)
        threshold = native_threshold(self.fusion_threshold)
        ranges = core.selector.fuse([count * width for count in counts], _RANGE if threshold is None else threshold)
        return Served(
            tuple((sum(counts[begin:end]) * width, end) for begin, end in ranges),
            servers=self.servers or 0,
            period=self.profile().period,
            waits=self.waits,
            together=self.steps_together,
            passes=self.local_passes * sum(counts),
            passes_of_server=20.0 * sum(counts),  # a sum is read and written, then weights and momentum
            memory=8.0 * sum(counts),
        )

    @property
    def steps_together(self) -> float:
        """One more than the steps by which a worker may be ahead of the slowest; infinite if no worker waits."""
        return 1.0


class ServedSynchronizer(PlacedSynchronizer, Survivable):
    """A worker of a parameter server: it pushes every gradient, and takes the servers' weights after every push.

    Attributes
    ----------
    server : gradientflow.ParameterServer
        The servers.
    pushes : int
        Iterations that this worker has pushed since training began, or since the last `finish`.
    """

    strategy: ServedStrategy
    gradient_source = "elsewhere"
    meets_in: Meeting = "servers"
    keeps_gradients = False  # True if gradients stay in their places until the step

    def __init__(self, comm: Communicator, layout: Layout, strategy: ServedStrategy) -> None:
        for name, dtype in zip(layout.names, layout.dtypes, strict=True):
            if dtype not in _WIDTHS:
                message = f"{strategy.name}: {name} is {dtype}: servers have float32, for gradients of up to 32 bits"
                raise ArgumentTypeError(message)
        super().__init__(comm, layout, strategy)
        self._core = core.local_updates
        self._is_zero = [True] * len(layout.groups)  # flags by dtype: True if the memory of its gradients is zero
        self._groups = [0] * len(layout)
        for group, (_, indices) in enumerate(layout.groups):
            for index in indices:
                self._groups[index] = group
        for index, weight in enumerate(layout.weights):
            if layout.dtypes[index] != "float32":  # used until there are master weights
                self.weights[index] = np.zeros(layout.counts[index], np.float32)
                self._core.follow(self.weights[index], weight)
        wires = {*layout.dtypes}
        self.server = ParameterServer(
            comm,
            [weight.reshape(shape) for weight, shape in zip(self.weights, layout.shapes, strict=True)],
            strategy.policy,
            strategy.optimizer,
            _servers_of(strategy, comm),
            strategy.wire or (wires.pop() if len(wires) == 1 else None),
            None if strategy.fusion_threshold == "auto" else strategy.fusion_threshold,
            layout.names,
            strategy.replicas or None,
        )
        self.pushes = 0
        self._initial_momentum: Mapping[str, TensorLike] = {}  # momentum with which servers begin, by tensor name
        self._servers_know = False  # servers have the initial weights, which may change until the first iteration
        self._pull: Pull | None = None  # pull whose weights have not been taken
        self._pending: Push | None = None
        self._settings: list[Settings] = []
        self._scale = 1.0
        self._found: int | None = None  # first tensor of the iteration on this rank whose gradient is not finite
        self._nonfinite: tuple[int, int] | None = None  # rank and tensor that caused the skip of a round
        self._used: Sequence[bool] = ()  # flags of tensors whose gradient this rank has pushed in the iteration
        self._start_next_iteration()

    # ---- memory --------------------------------------------------------------------------------------------------

    def zero(self, group: int, stream: object = None) -> None:  # noqa: D102
        if not self._is_zero[group]:
            self._memory[group][...] = 0
            self._is_zero[group] = True

    def _itemsize(self, dtype: str) -> int:
        return _WIDTHS[dtype]

    # ---- the moments of an iteration -----------------------------------------------------------------------------

    def check_settings(self, settings: SettingsOf) -> None:
        """Raise unless the servers can make the optimizer's step."""
        of_all = [settings(index) for index in range(len(self.layout))]
        trusts = [each.trust for each in of_all]
        served = self.strategy.optimizer
        kind = as_server_optimizer(served)
        if any(trusts) and not isinstance(kind, LARS):
            message = f"the servers make the step: with LARS {self.strategy.name} has optimizer='lars', not {served!r}"
            raise ArgumentError(message)
        if not any(trusts) and isinstance(kind, LARS):
            message = "the servers take the trust coefficient of LARS from the optimizer, which is none: let it be LARS"
            raise ArgumentError(message)
        if isinstance(kind, Adam) and any(each.momentum for each in of_all):
            message = "the servers make the step of Adam, whose momentum is beta1: let that of the optimizer be 0"
            raise ArgumentError(message)

    def prepare(self) -> None:  # noqa: D102
        self._settings = [self.settings(index) for index in range(len(self.layout))]
        self._scale = self.loss_scale
        self._found = None
        if not self._servers_know:
            self._initialize_servers()

    def ready(self, index: int, stream: object = None, elsewhere: int | None = None) -> None:  # noqa: D102
        if self._is_ready[index]:
            raise ArgumentError(f"the gradient of {self.layout.names[index]} was already ready in this iteration")
        dtype, count = self.layout.dtypes[index], self.layout.counts[index]
        address = self._addresses[index] if elsewhere is None else elsewhere
        if self.server._native.ready_at(index, address, dtype):
            self._found = index if self._found is None else min(self._found, index)
        self._is_ready[index] = True
        if elsewhere is not None and self.keeps_gradients:
            ctypes.memmove(self._addresses[index], elsewhere, count * _WIDTHS[dtype])
        if elsewhere is None or self.keeps_gradients:
            self._is_zero[self._groups[index]] = False

    def flush(self, stream: object = None) -> None:  # noqa: D102
        self.pushes += 1
        if self.pulls_with(self.pushes):
            self._end_pull()
            self._pending, self._pull = self.server.push_pull(self._settings, self._scale, nonfinite=self._found)
        else:
            self._pending = self.server.push(self._settings, self._scale, nonfinite=self._found)

    def wait(self, stream: object = None) -> Update:  # noqa: D102
        if self._pending is None:
            self.flush(stream)
        push, found, used = self._pending, self._found, self._is_ready
        assert push is not None
        try:
            outcome = self.outcome(push)
        finally:
            self._start_next_iteration()
        self._note_end()
        self._found, self._used = found, used
        if outcome == "abandoned":
            raise AbandonedError(
                "a rank gave up the iteration, after an error there: no weight was changed; call zero_grad() and go on "
                "with the next one"
            )
        if outcome == "skipped" and not self.skips_nonfinite:
            self._pending_error = self._why_skipped()
        return Update("skipped" if outcome == "skipped" else "written")

    def _why_skipped(self) -> NonFiniteError:
        """Return the error for a round that was skipped."""
        if self._nonfinite is None:  # the round is older than the state that was loaded
            message = "a gradient is not finite on some rank: the round of its push has changed no weight"
            return NonFiniteError(message)
        (rank, tensor), self._nonfinite = self._nonfinite, None
        outcome = "the round of its push has changed no weight"
        return nonfinite_error(f"the gradient of {self.layout.names[tensor]}", rank, outcome)

    def after_step(self) -> None:
        """Take the servers' weights."""
        self._take_pull()

    def rollback(self, phase: Phase, stream: object = None) -> None:  # noqa: D102
        if phase is Phase.HANDING_OVER:  # the servers wait for a push
            self.pushes += 1
            self.server.push(self._settings, self._scale, "abandoned")
            self._note_end()
        self._start_next_iteration()

    def finish(self) -> None:
        """Wait until all workers have finished, and take the servers' weights: the same on all ranks."""
        self._end_pull()
        self.server.finish(self.weights)
        self.server._keep_state()
        self.restart()

    def close(self, orderly: bool = True) -> None:  # noqa: D102
        self.server.close(orderly)

    # ---- methods that a strategy may override --------------------------------------------------------------------

    def pulls_with(self, push: int) -> bool:
        """Return True if the push of this number comes with a pull."""
        return True

    def outcome(self, push: Push) -> str:
        """Wait for the push as long as the strategy requires, and return its outcome, as `Push.wait` does."""
        outcome = push.wait()
        self._nonfinite = push.nonfinite
        return outcome

    def restart(self) -> None:
        """Restart the count of pushes: training continues from the servers' weights."""
        self.pushes = 0

    # ---- servers -------------------------------------------------------------------------------------------------

    def _begin_pull(self) -> None:
        self._end_pull()
        self._pull = self.server.pull()

    def _end_pull(self) -> None:
        """Wait for a pull that is no longer needed: the servers answer one pull at a time."""
        if self._pull is not None:
            self._pull.wait()
            self._pull = None

    def _take_pull(self) -> None:
        if self._pull is not None:
            self._pull.take_all(self.weights)
            self._pull = None

    def _start_next_iteration(self) -> None:
        self._is_ready = [False] * len(self.layout)
        self._pending = None
        self._found = None

    def _initialize_servers(self) -> None:
        """Give the servers rank 0's current weights as initial weights. Collective."""
        for index, weight in enumerate(self.layout.weights):
            if self.layout.dtypes[index] != "float32":
                self._core.follow(self.weights[index], weight)
        state = self.server.state_dict()
        names = [name for name, value in state.items() if _is_per_tensor(value, len(self.layout))]
        fresh = {name: [np.zeros_like(each) for each in state[name]] for name in names}
        if "momentum" in fresh:
            kind = as_server_optimizer(self.strategy.optimizer)
            has_rate = kind.rate_in_momentum and not isinstance(kind, LARS)
            for index, (name, place) in enumerate(zip(self.layout.names, fresh["momentum"], strict=True)):
                if name in self._initial_momentum:
                    rate = self._settings[index].rate if has_rate else 1.0
                    place[...] = np.float32(rate) * self._initial_momentum[name].reshape(place.shape)
        fresh["weights"] = [w.reshape(s) for w, s in zip(self.weights, self.layout.shapes, strict=True)]
        self.server.load_state_dict({**state, **fresh})
        self._note_knowledge(True)

    @contextmanager
    def common_weights(self) -> Iterator[None]:
        """Put the servers' weights, with all pushes of this rank, into the model in a ``with`` block."""
        own = [weight.copy() for weight in self.weights]
        theirs = self.server.state_dict()["weights"] if self._servers_know else own
        for weight, common in zip(self.weights, theirs, strict=True):
            weight[...] = common.reshape(-1)
        try:
            yield
        finally:
            for weight, before in zip(self.weights, own, strict=True):
                weight[...] = before

    # ---- ranks that are lost -------------------------------------------------------------------------------------

    @property
    def in_step(self) -> bool:
        """True if each round has a push of every worker."""
        return isinstance(self.strategy.policy, BSP)

    @property
    def is_lost(self) -> bool:
        """True if its servers have ended, and another synchronizer continues from the state recovered from them."""
        return self.server._recovery is not None and self.server.closed

    def check_survival(self) -> None:
        """Have the servers keep the data for recovery."""
        recovery = self.server._make_recoverable()
        recovery.is_known = self._servers_know
        recovery.ended = 0 if self.in_step else None

    def agree_on_state(self, comm: Communicator, begins: bool) -> int:
        """Assemble the servers' state; return the number of iterations that have ended here and are missing in it."""
        recovery = self.server._recovery
        assert recovery is not None
        state, ended = recovery.find(comm, is_new=begins), recovery.ended
        if ended is None or state is None or begins:
            return 0
        undone = max(ended - state.round, 0)
        recovery.ended = ended - undone
        self.pushes -= undone
        return undone

    def shared_state(self, with_arrays: bool) -> int:
        """Return the number of pushes, which determines the next step."""
        return self.pushes

    def catch_up(self, state: int, begins: bool) -> None:  # noqa: D102
        self.pushes = state

    def _continue_from(self, other: ServedSynchronizer) -> None:
        self.server._follow(other.server)
        self.pushes = other.pushes
        self.restart()
        recovery = self.server._recovery
        assert recovery is not None
        self._servers_know = recovery.is_known
        if self._servers_know:
            self._begin_pull()
            self._take_pull()
        self.server._have_all_followed(other.server)

    def _note_end(self) -> None:
        """Note that an iteration has ended."""
        if self.server._recovery is not None:
            self.server._recovery.note_end()

    def _note_knowledge(self, servers_know: bool) -> None:
        """Note if the servers have the weights with which training begins or continues."""
        self._servers_know = servers_know
        if self.server._recovery is not None:
            self.server._recovery.is_known = servers_know
            self.server._recovery.state = None  # the former state no longer holds

    # ---- state ---------------------------------------------------------------------------------------------------

    def state_dict(self) -> StateDict:
        """Return the state of the servers, which holds for any number of ranks."""
        return {"names": list(self.layout.names), "pushes": self.pushes, "server": self.server.state_dict()}

    def consolidated_state_dict(self) -> StateDict:
        """Return the state of the servers once they have applied the pushes of all ranks. Collective."""
        self.server.state_dict()  # makes the servers apply the pushes of this rank
        self.comm.barrier()
        state = ServedSynchronizer.state_dict(self)
        self.comm.barrier()
        return state

    def check_state_dict(self, state: Mapping[str, object]) -> None:
        """Raise unless the state is for these tensors."""
        check_keys(self.strategy.name, ("names", "pushes", "server"), state)
        check_names(self.layout, state)

    def load_state_dict(self, state: State | None) -> None:
        """Load a state; without a state, begin again with the weights of rank 0. Collective."""
        self._end_pull()
        self.restart()
        self.pushes, self._initial_momentum = 0, {}
        self._note_knowledge(False)
        if state is not None:
            self.server.load_state_dict(self._in_order(state["server"], state["names"]))
            self.pushes = int(state["pushes"])
            self._note_knowledge(True)
            self._begin_pull()
            self._take_pull()

    def take_momentum(self, momentum: Mapping[str, TensorLike]) -> None:
        """Begin with rank 0's momentum, as with rank 0's weights."""
        self._initial_momentum = dict(momentum)

    def take_over(self, other: Synchronizer) -> None:
        """Take the servers' state of another synchronizer, by the names of tensors. Collective.

        If `other` has lost some of its ranks, continue from the state that was recovered from it.
        """
        assert isinstance(other, ServedSynchronizer)
        if other.server._recovery is not None:
            self.check_survival()
            if other.is_lost:
                self._continue_from(other)
                return
        other._end_pull()
        self._note_knowledge(other._servers_know)
        self.pushes, self._initial_momentum = other.pushes, other._initial_momentum
        if self._servers_know:
            theirs, mine = other.server.state_dict(), self.server.state_dict()
            for name, value in mine.items():
                if _is_per_tensor(value, len(self.layout)) and name in theirs:
                    mine[name] = in_order(theirs[name], other.layout.names, self.layout, value)
            self.server.load_state_dict(mine)

    def _in_order(self, state: State, names: Sequence[str]) -> dict[str, object]:
        """Return a state with its tensors in the order of the layout."""
        return {
            key: in_order(value, names, self.layout) if _is_per_tensor(value, len(names)) else value
            for key, value in state.items()
        }


def _servers_of(strategy: ServedStrategy, comm: Communicator) -> int | None:
    """Return the number of servers to make: after a loss, at most the number of survivors."""
    if strategy.servers is None or (comm.recovered_from is None and comm.size > 1):
        return strategy.servers
    return min(strategy.servers, comm.size)


def _is_per_tensor(value: object, tensors: int) -> bool:
    return isinstance(value, list) and len(value) == tensors and all(isinstance(each, np.ndarray) for each in value)


__all__ = ["ServedStrategy", "ServedSynchronizer"]
