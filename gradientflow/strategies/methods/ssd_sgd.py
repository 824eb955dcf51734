"""SSD-SGD: workers push in every step, pull in every k-th step, and update their own weights in between."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from gradientflow.annotations import State, StateDict
from gradientflow.arguments import checked_float, checked_int, checked_nonnegative
from gradientflow.communicator import Communicator
from gradientflow.errors import ArgumentError
from gradientflow.policies import BSP, Policy
from gradientflow.pools.residual import check_rank
from gradientflow.server.parameter_server import Push
from gradientflow.strategies.contract import Synchronizer
from gradientflow.strategies.exchange.served import ServedStrategy, ServedSynchronizer
from gradientflow.strategies.exchange.state import in_order
from gradientflow.strategies.layout import Layout
from gradientflow.strategies.options import ServedOptions
from gradientflow.strategies.update import Phase, Profile, Settings

if TYPE_CHECKING:
    from typing_extensions import Unpack

Array = npt.NDArray[np.float32]

_RULES = ("glu", "sgd", "dc_asgd", "none")


class SSDSGD(ServedStrategy):
    """Several steps delay SGD (SSD-SGD paper): synchronous steps on the servers, asynchronous steps in the workers.

    After `warmup` iterations of synchronous SGD a worker no longer waits for peers: it pushes its gradient, updates its
    own weights, and proceeds. Every `k` iterations it pulls the servers' weights, in the background, during the next
    iteration. They replace the worker's weights just before the next update of these. Two runs give the same bits.

    Parameters
    ----------
    k : int, default 5
        Steps from one pull to the next.
    warmup : int, default 500
        Iterations of synchronous SGD, a positive multiple of `k`.
    local_update : {"glu", "sgd", "dc_asgd", "none"}, default "glu"
        Update of a worker's weights: by its own gradient and a gradient derived from the servers' last rounds; by its
        own gradient; by its own gradient with delay compensation; or no update.
    alpha, beta : float, default 2.0, 0.5
        The weights of the two gradients in "glu".
    loc_lr : float, optional
        Learning rate of the local update; by default the servers' rate times the number of workers.
    lambda_0, decay, epsilon : float, default 2.0, 0.95, 1e-7
        Strength of the compensation in "dc_asgd", and decay and epsilon of the mean square that divides it.
    optimizer : str, default "sgd(rate_in_momentum=True)"
        Optimizer of the servers, by default momentum SGD as in the paper; "glu" needs "sgd", in either form.
    servers, wire, fusion_threshold
        As in `ServedStrategy`.

    Raises
    ------
    gradientflow.errors.ArgumentError
        If a number is out of range, or there is no such local update.

    Examples
    --------
    >>> import gradientflow.torch as gft
    >>> optimizer = gft.DistributedOptimizer(
    ...     torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), model, strategy="ssd_sgd(k=5, warmup=500)"
    ... )
    """

    name = "ssd_sgd"
    waits = False

    def __init__(
        self,
        k: int = 5,
        warmup: int = 500,
        local_update: str = "glu",
        *,
        alpha: float = 2.0,
        beta: float = 0.5,
        loc_lr: float | None = None,
        lambda_0: float = 2.0,
        decay: float = 0.95,
        epsilon: float = 1e-7,
        optimizer: str = "sgd(rate_in_momentum=True)",
        **options: Unpack[ServedOptions],
    ) -> None:
        super().__init__(optimizer=optimizer, **options)
        self.k = checked_int("k", k, 1)
        self.warmup = checked_int("warmup", warmup)
        if self.warmup == 0 or self.warmup % self.k:
            nearest = max(1, round(self.warmup / self.k)) * self.k
            message = f"warmup is a positive multiple of k, {self.k}: {nearest}, for example, not {self.warmup}"
            raise ArgumentError(message)
        if local_update not in _RULES:
            raise ArgumentError(f"local_update is 'glu', 'sgd', 'dc_asgd' or 'none', not {local_update!r}")
        if local_update == "glu" and not optimizer.startswith("sgd"):
            message = f"'glu' works out what momentum SGD has done: with {optimizer!r} let local_update be another one"
            raise ArgumentError(message)
        for name, value in (("alpha", alpha), ("beta", beta)):
            if not math.isfinite(checked_float(name, value)):
                raise ArgumentError(f"{name} is finite, not {value}")
        if not 0 <= checked_float("decay", decay) < 1:
            raise ArgumentError(f"decay is from 0 to below 1, not {decay}")
        if not checked_nonnegative("epsilon", epsilon) > 0:
            raise ArgumentError(f"epsilon is above 0, not {epsilon}")
        self.local_update = local_update
        self.alpha = alpha
        self.beta = beta
        self.loc_lr = None if loc_lr is None else checked_nonnegative("loc_lr", loc_lr)
        self.lambda_0 = checked_nonnegative("lambda_0", lambda_0)
        self.decay = decay
        self.epsilon = epsilon

    @classmethod
    def typical(cls, steps: int) -> SSDSGD:
        """Return the strategy with a warm-up of at most about a quarter of the steps."""
        k = min(5, max(1, steps // 4))
        return cls(k, min(500, k * max(1, steps // (4 * k))))

    def profile(self) -> Profile:
        """Return the warm-up, and as period the iterations from one pull to the next."""
        return super().profile()._replace(period=self.k)

    @property
    def policy(self) -> Policy:
        """The rounds of the servers are synchronous, but workers do not wait for them after the warm-up."""
        return BSP()

    def bind(self, comm: Communicator, layout: Layout) -> DelayedSynchronizer:
        """Start servers with the weights of rank 0. Collective."""
        return DelayedSynchronizer(comm, layout, self)

    @property
    def steps_together(self) -> float:
        """The steps from one pull to the next, plus the step that hides a pull."""
        return self.k + 1.0

    @property
    def local_passes(self) -> float:  # type: ignore[override]
        """Bytes of memory that the local update reads and writes, for each weight."""
        return {"none": 0.0, "sgd": 12.0, "glu": 20.0, "dc_asgd": 28.0}[self.local_update]


class DelayedSynchronizer(ServedSynchronizer):
    """A worker with weights of its own.

    Attributes
    ----------
    pre_weights : list of arrays
        The servers' weights as last pulled, or the weights with which local updates began; for "glu".
    mean_squares : list of arrays
        The mean squares of this rank's gradients; for "dc_asgd".
    """

    strategy: SSDSGD
    keeps_gradients = True

    def __init__(self, comm: Communicator, layout: Layout, strategy: SSDSGD) -> None:
        super().__init__(comm, layout, strategy)
        rule = strategy.local_update
        self.pre_weights: list[Array] = [_zeros(n) for n in layout.counts] if rule == "glu" else []
        self.mean_squares: list[Array] = [_zeros(n) for n in layout.counts] if rule == "dc_asgd" else []
        self._before: list[Array] = [_zeros(n) for n in layout.counts] if rule == "dc_asgd" else []
        self._has_pre_weights = False
        self._unseen: list[Push] = []  # pushes whose rounds have not been waited for
        self._was_skipped = False  # a skipped round has been waited for since the last pull

    # ---- the moments of an iteration -----------------------------------------------------------------------------

    def pulls_with(self, push: int) -> bool:
        """Return True if the push of this number is in the warm-up."""
        return push <= self.strategy.warmup

    def outcome(self, push: Push) -> str:
        """Wait for the round in the warm-up. After it, wait only if the weights of the last pull are needed.

        Rounds skipped for a gradient that is not finite are reported at that time: in the same iteration on all ranks.
        """
        if self.pulls_with(self.pushes):
            return super().outcome(push)
        skipped = False
        if self._pull is not None:
            self._see_rounds()
            skipped, self._was_skipped = self._was_skipped, False
        self._unseen.append(push)
        return "skipped" if skipped else "applied"

    def after_step(self) -> None:
        """Take pulled weights, if any, and make the local update."""
        if self.pulls_with(self.pushes):
            super().after_step()
            return
        has_pulled = self._pull is not None
        if has_pulled:
            for before, weight in zip(self._before, self.weights, strict=False):
                before[...] = weight
            self._take_pull()
        self._pull_if_due()
        update = getattr(self, f"_{self.strategy.local_update}")
        for index in range(len(self.layout)):
            update(index, has_pulled)
        self._has_pre_weights = True

    def rollback(self, phase: Phase, stream: object = None) -> None:
        """Give up the iteration. Its round on the servers then changes nothing."""
        super().rollback(phase, stream)
        if phase is Phase.HANDING_OVER and not self.pulls_with(self.pushes):
            self._pull_if_due()

    def finish(self) -> None:
        """Take the servers' weights. Report rounds that were skipped since the last pull."""
        self._see_rounds()
        skipped, nonfinite = self._was_skipped, self._nonfinite
        super().finish()
        if skipped and not self.skips_nonfinite:
            self._nonfinite = nonfinite
            self._pending_error = self._why_skipped()

    def restart(self) -> None:
        """Continue from the servers' weights, without a second warm-up."""
        self.pushes = min(self.pushes, self.strategy.warmup)
        self._has_pre_weights = self._was_skipped = False
        self._nonfinite = None
        self._unseen = []

    def _pull_if_due(self) -> None:
        if self._pull is None and self.pushes % self.strategy.k == 0:
            self._begin_pull()

    def _see_rounds(self) -> None:
        """Wait for the rounds of all pushes so far."""
        for push in self._unseen:
            if push.wait() == "skipped":
                self._was_skipped = True
                self._nonfinite = self._nonfinite or push.nonfinite
        self._unseen = []

    # ---- state ---------------------------------------------------------------------------------------------------

    def state_dict(self) -> StateDict:
        """Return the state of the servers, and this rank's own."""
        self._see_rounds()
        return {
            **super().state_dict(),
            "rank": self.comm.rank,
            "ranks": self.comm.size,
            "is_pulling": self._pull is not None,
            "was_skipped": self._was_skipped,
            "has_pre_weights": self._has_pre_weights,
            **{name: [np.copy(each) for each in values] for name, values in self._entries().items()},
        }

    def consolidated_state_dict(self) -> StateDict:
        """Return the state of the servers, which any number of workers can load. Collective."""
        self._see_rounds()
        return super().consolidated_state_dict()

    def _entries(self) -> dict[str, list[Array]]:
        """Return the arrays that this rank has for each tensor."""
        entries = {"weights": self.weights, "pre_weights": self.pre_weights, "mean_squares": self.mean_squares}
        return {name: values for name, values in entries.items() if values}

    def check_state_dict(self, state: Mapping[str, object]) -> None:
        """Raise unless the state is for these tensors, and for this rank or any."""
        super().check_state_dict(state)
        if state.get("rank") is None:
            return
        check_rank(self.comm, state)
        if not {*self._entries(), "is_pulling", "was_skipped", "has_pre_weights"} <= set(state):
            raise ArgumentError(f"the state is of another local update than {self.strategy.local_update}")

    def load_state_dict(self, state: State | None) -> None:
        """Load a state; without a state, begin again with the weights of rank 0. Collective."""
        is_own = state is not None and state.get("rank") is not None
        if state is not None and not is_own:
            state = {**state, "pushes": min(int(state["pushes"]), self.strategy.warmup)}
        super().load_state_dict(state)
        if state is None or not is_own:
            for square in self.mean_squares:
                square[...] = 0
            return
        for name, values in self._entries().items():
            for mine, saved in zip(values, in_order(state[name], state["names"], self.layout), strict=True):
                mine[...] = saved
        self._has_pre_weights, self._was_skipped = bool(state["has_pre_weights"]), bool(state["was_skipped"])
        if state["is_pulling"]:
            self._begin_pull()

    def summary(self, state: Mapping[str, object]) -> dict[str, str]:
        """Return the pushes of a state, and its kind: for one rank, or for any rank."""
        return {"pushes": str(state["pushes"]), "kind": "for any rank" if state.get("rank") is None else "of its rank"}

    def take_over(self, other: Synchronizer) -> None:
        """Take the servers' and this rank's state of another synchronizer, by the names of tensors. Collective."""
        assert isinstance(other, DelayedSynchronizer)
        if other.is_lost:  # local updates begin again, as after `finish`
            super().take_over(other)
            self._take_entries(other, "mean_squares")
            return
        other._see_rounds()
        is_pulling = other._pull is not None
        super().take_over(other)
        self._has_pre_weights, self._was_skipped = other._has_pre_weights, other._was_skipped
        for pre_weight, weight in zip(self.pre_weights, self.weights, strict=False):
            pre_weight[...] = weight
        self._take_entries(other, *self._entries())
        if is_pulling:
            self._begin_pull()

    def _take_entries(self, other: DelayedSynchronizer, *names: str) -> None:
        theirs = other._entries()
        for name, values in self._entries().items():
            if name in names:
                found = in_order(theirs[name], other.layout.names, self.layout, values)
                for mine, taken in zip(values, found, strict=True):
                    mine[...] = taken

    # ---- local updates -------------------------------------------------------------------------------------------

    def _glu(self, index: int, has_pulled: bool) -> None:
        pre_weight, weight, settings = self.pre_weights[index], self.weights[index], self._settings[index]
        if not self._has_pre_weights:
            pre_weight[...] = weight
        if not self._is_updated(index):
            if has_pulled:
                pre_weight[...] = weight
            return
        of_rounds = settings.rate * self.strategy.k
        rule = self.strategy.alpha, self.strategy.beta, (1 - settings.momentum) / of_rounds if of_rounds else 0.0
        self._core.glu_step(weight, pre_weight, *self._gradient(index), has_pulled, *self._rates(settings), *rule)

    def _sgd(self, index: int, has_pulled: bool) -> None:
        if self._is_updated(index):
            rates = self._rates(self._settings[index])
            self._core.sgd_step(self.weights[index], *self._gradient(index), *rates)

    def _dc_asgd(self, index: int, has_pulled: bool) -> None:
        if not self._is_updated(index):
            return
        before = self._before[index] if has_pulled else None
        rule = self.strategy.lambda_0, self.strategy.decay, self.strategy.epsilon
        self._core.dc_step(
            self.weights[index],
            self.mean_squares[index],
            before,
            *self._gradient(index),
            *self._rates(self._settings[index]),
            *rule,
        )

    def _none(self, index: int, has_pulled: bool) -> None:
        pass

    def _is_updated(self, index: int) -> bool:
        """Return True if this rank has a gradient of the tensor, and all of its gradients are finite."""
        return self._found is None and self._used[index]

    def _gradient(self, index: int) -> tuple[int, str]:
        return self._addresses[index], self.layout.dtypes[index]

    def _rates(self, settings: Settings) -> tuple[float, float, float]:
        loc_lr = self.strategy.loc_lr
        rate = self.comm.size * settings.rate if loc_lr is None else loc_lr
        return rate, 1.0 / self._scale, settings.weight_decay


def _zeros(count: int) -> Array:
    return np.zeros(count, np.float32)


__all__ = ["SSDSGD", "DelayedSynchronizer"]
