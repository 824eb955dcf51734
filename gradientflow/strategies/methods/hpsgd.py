"""HPSGD: gradients are averaged in rounds, in the background, while each rank trains on a replica of its own."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cached_property

import numpy as np
import numpy.typing as npt

from gradientflow._location import core
from gradientflow.annotations import State, StateDict
from gradientflow.communicator import Communicator
from gradientflow.errors import ArgumentError, GradientFlowError
from gradientflow.handle import Handle
from gradientflow.memory import aligned_offsets
from gradientflow.model.computation import Computation
from gradientflow.model.costs import Call, Costs
from gradientflow.model.pooled import counts_of
from gradientflow.model.traffic import InBackground, Traffic
from gradientflow.plain import Plain
from gradientflow.strategies.contract import Strategy, Synchronizer
from gradientflow.strategies.exchange.nonfinite import first_nonfinite, nonfinite_error
from gradientflow.strategies.exchange.places import PlacedSynchronizer, aligned_zeros
from gradientflow.strategies.exchange.state import check_keys, in_order
from gradientflow.strategies.exchange.survivable import Meeting, Survivable
from gradientflow.strategies.layout import Layout
from gradientflow.strategies.update import Phase, Profile, SettingsOf, Update

Floats = npt.NDArray[np.float32]


class HPSGD(Strategy):
    """Hierarchical parallel SGD (HPSGD paper, algorithms 2 and 3): training never waits for the network.

    Each rank sums its gradients. A round averages the sums over the ranks in the background, while each rank trains on
    a replica, which has weights of its own. When the round is done, its mean is applied to the common weights, the
    replica is dropped, and the next round starts with the sums made in the meantime.

    Learning rates are as for plain SGD. All ranks apply a round with the same rate: the mean of the ranks' rates at its
    start.

    Parameters
    ----------
    wire : str, optional
        Format to which sums of gradients are rounded between nodes, as in `gradientflow.Communicator.allreduce`. The
        sums add up in float32.
    algorithm : str, default "auto"
        As in `gradientflow.Communicator.allreduce`.
    """

    name = "hpsgd"
    effect = "stale"
    gradients = "consumed"
    not_taken = dict.fromkeys(
        ("density", "ratio"),
        "choosing what is sent would keep the trainer waiting, and a slow round has the gradients of more steps",
    ) | {"fusion_threshold": "a round is one call", "period": "a round ends when it is done"}

    options = ("wire", "algorithm")
    wire: str | None
    algorithm: str

    def profile(self) -> Profile:
        """Return a profile that does not allow the optimizer a momentum."""
        return Profile(takes_momentum=False)

    def bind(self, comm: Communicator, layout: Layout) -> HPSGDSynchronizer:
        """Make the synchronizer, with its sums and common weights. Collective."""
        return HPSGDSynchronizer(comm, layout, self)

    def traffic(self, computation: Computation, costs: Costs) -> Traffic:
        """Return the allreduce of the sums, in the background."""
        parameters = sum(counts_of(computation))
        call = Call("allreduce", parameters, "float32", self.wire, self.algorithm)
        # A step reads the gradient, and reads and writes replica and sums; a round applies the mean and copies weights.
        return InBackground((call,), 20.0 * parameters, 24.0 * parameters, 12.0 * parameters)


class HPSGDSynchronizer(PlacedSynchronizer, Survivable):
    """The trainer of the paper; the paper's synchronizer is the communicator's thread here.

    The weights of the model are the replica once there is one, and the common weights otherwise.

    Attributes
    ----------
    rounds : int
        Rounds that this rank has started.
    counter : int
        Steps since the last round was started; there is a replica from the first of these steps on.
    sums : list of arrays
        Sums of this rank's gradients since the last round was started.
    """

    gradient_source = "elsewhere_until_wait"
    meets_in: Meeting = "rounds"
    strategy: HPSGD

    def __init__(self, comm: Communicator, layout: Layout, strategy: HPSGD) -> None:
        super().__init__(comm, layout, strategy)
        for name, dtype in zip(layout.names, layout.dtypes, strict=True):
            if dtype == "float64":
                raise ArgumentError(f"hpsgd is for weights of float32, float16 and bfloat16, and {name} is float64")
        self._steps = core.local_updates
        # Rounds have a communicator of their own: they may wait long for other ranks.
        self._background, self._foreground = comm._own_part(0), comm._own_part(0)
        self.rounds = self.counter = 0
        places = aligned_offsets([count * 4 for count in layout.counts])
        self._sums, self._means = (comm.empty(places[-1] // 4, "float32") for _ in range(2))
        self._common: Floats = np.zeros(places[-1] // 4, np.float32)
        self._parts = [
            slice(begin // 4, begin // 4 + count) for begin, count in zip(places[:-1], layout.counts, strict=True)
        ]
        self._rates: npt.NDArray[np.float64] = np.zeros(len(layout))  # learning rates of the round under way
        self._handles: tuple[Handle, ...] = ()
        self._has_mean = False  # a round is under way, or done and not applied
        self._sent: Floats | None = None  # sums sent by this rank in the round, to be sent again if ranks are lost
        self._sent_rates = np.zeros_like(self._rates)
        self._failure: GradientFlowError | None = None  # error of the round, to be raised after the step
        self._at: list[int | None] = [None] * len(layout)  # addresses of this iteration's gradients; None if absent
        self._left_behind: bytes | None = None  # some weights after the last step, to notice writes by the user

    # ---- memory --------------------------------------------------------------------------------------------------

    def _allocate(self, nbytes: int) -> npt.NDArray[np.uint8]:
        return aligned_zeros(nbytes)  # not touched where gradients are read elsewhere

    @property
    def sums(self) -> list[Floats]:
        """Sums of this rank's gradients since the last round was started."""
        return [self._sums[place] for place in self._parts]

    # ---- the moments of an iteration -----------------------------------------------------------------------------

    def check_settings(self, settings: SettingsOf) -> None:
        """Raise if the optimizer is not plain SGD."""
        for index, name in enumerate(self.layout.names):
            its = settings(index)
            if its.momentum or its.trust:
                what = f"a momentum of {its.momentum}" if its.momentum else "the local rates of LARS"
                raise ArgumentError(f"hpsgd makes steps of plain SGD, and the optimizer has {what} for {name}")
            if its.rate < 0:
                raise ArgumentError(f"the learning rate of {name} is {its.rate}, below 0")

    def prepare(self) -> None:
        """Raise if the optimizer's settings do not go with the strategy, or the user has written the weights."""
        self.check_settings(self.settings)
        if self._weights_were_written():
            raise self._written()

    def ready(self, index: int, stream: object = None, elsewhere: int | None = None) -> None:  # noqa: D102
        if self._at[index] is not None:
            raise ArgumentError(f"the gradient of {self.layout.names[index]} was already ready in this iteration")
        self._at[index] = self._addresses[index] if elsewhere is None else elsewhere

    def flush(self, stream: object = None) -> None:
        """Do nothing: a tensor that is not ready has no gradient, and its weights stay as they are."""

    def wait(self, stream: object = None) -> Update:
        """Train on the replica, or start a round if the last round is done. Does not wait."""
        places, self._at = self._at, [None] * len(self._at)
        if self.skips_nonfinite and self._first_nonfinite(places) is not None:
            return Update("skipped")
        if self._round_has_ended():
            self._end_round(places)
            self._start_round()
        else:
            self._train(places)
        self._left_behind = self._weights_fingerprint()
        return Update("written")

    def after_step(self) -> None:
        """Raise the error of the round, if it has failed and survivors continue."""
        if self._failure is not None:
            raise self._failure.with_traceback(None)

    def rollback(self, phase: Phase, stream: object = None) -> None:
        """Give up the iteration. Nothing has used its gradients yet."""
        self._at = [None] * len(self._at)

    def finish(self) -> None:
        """Catch up with the rounds of all ranks, and make a last round for all remaining gradients. Collective.

        Raises
        ------
        gradientflow.errors.ArgumentError
            On all ranks, if the user has written the weights of a rank while gradients are under way.
        """
        self.rollback(Phase.HANDING_OVER)
        rounds, were_written, _ = self._meet()
        if were_written.any():
            raise self._written(int(were_written.argmax()))
        with self.comm.span("finish"):
            self._drain(int(rounds.max()))

    def _drain(self, most: int) -> None:
        while self.rounds <= most:  # the last round has the remaining gradients
            self._end_round()
            self._start_round()
        self._end_round()

    def _meet(self) -> npt.NDArray[np.int64]:
        """Return for each rank: the rounds started; 1 if its weights were written; 1 if it has gradients under way."""
        mine = [self.rounds, self._weights_were_written(), self._is_under_way]
        everyone = self._foreground.allgather(np.array(mine, np.int64))
        return np.asarray(everyone.reshape(-1, len(mine)).T)

    def _weights_were_written(self) -> bool:
        """Return True if the user has written weights that would be lost or differ between ranks."""
        return self._is_under_way and self._left_behind is not None and self._weights_fingerprint() != self._left_behind

    def _weights_fingerprint(self) -> bytes:
        """Return the first and the last weight of each tensor: loading weights changes some of them."""
        return np.concatenate(self._ends).tobytes() if self._ends else b""

    @cached_property
    def _ends(self) -> list[Floats]:
        return [weight[:: max(1, len(weight) - 1)] for weight in self.weights if len(weight)]

    def _written(self, rank: int | None = None) -> ArgumentError:
        where = f" of rank {rank}" if rank is not None else ""
        return ArgumentError(
            f"the weights{where} were changed while gradients are under way, which would undo it: change them after "
            "finish(); or load them, and then a state of the optimizer, which drops what is under way"
        )

    def close(self, orderly: bool = True) -> None:
        """Close the communicators.

        Raises
        ------
        gradientflow.errors.ArgumentError
            If `orderly`, and gradients have not been applied.
        """
        is_busy = orderly and self._is_busy
        for communicator in (self._background, self._foreground):
            communicator._end(orderly and not is_busy)
        for handle in self._handles:
            with suppress(GradientFlowError):  # no rank needs the round
                handle.wait()
        self._failure = None  # its traceback refers to this object, and would keep memory and connections
        if is_busy:
            raise _busy("close()")

    @property
    def bytes_sent(self) -> int | None:
        """Bytes that this rank has sent in messages so far, in rounds and otherwise; None if unknown."""
        sent = [communicator.bytes_sent for communicator in (self._background, self._foreground)]
        return None if None in sent else sum(each for each in sent if each is not None)

    def round_is_running(self) -> bool:
        """Return True if a round that this rank has started is not done; other ranks may not have started it yet."""
        return not all(handle.done for handle in self._handles)

    # ---- rounds --------------------------------------------------------------------------------------------------

    def _train(self, places: Sequence[int | None]) -> None:
        """Make a step on the replica; the first step of a round saves the common weights."""
        for index, place in enumerate(places):
            settings, part = self.settings(index), self._parts[index]
            if place is None:
                if self.counter == 0:
                    self._common[part] = self._weight(index)
                continue
            is_finite = self._steps.replica_step(
                self._weight(index),
                self._common[part] if self.counter == 0 else None,
                self._sums[part],
                place,
                self.layout.dtypes[index],
                settings.rate,
                1 / self.loss_scale,
                settings.weight_decay,
            )
            if not is_finite:  # this step has made the sums of the tensor non-finite
                self._drop_replica(index)
                return
        self.counter += 1

    def _drop_replica(self, culprit: int) -> None:
        """Go back to the common weights, and drop the sums."""
        for index, part in enumerate(self._parts):
            if self.counter or index < culprit:  # in a round's first step later tensors have not changed
                self._weight(index)[...] = self._common[part]
        self.counter = 0
        self._drop_sums(culprit)

    def _drop_sums(self, culprit: int) -> None:
        self._sums[...] = 0
        outcome = "this rank goes back to the common weights, and adds up anew; the others go on"
        self._pending_error = nonfinite_error(f"the gradient of {self.layout.names[culprit]}", self.comm.rank, outcome)

    def _end_round(self, places: Sequence[int | None] | None = None) -> None:
        """Apply the mean of the last round, drop the replica, and add gradients, if any, to the sums."""
        self._wait_for_round()
        culprit = None
        for index, part in enumerate(self._parts):
            place = None if places is None else places[index]
            is_finite = self._steps.round_step(
                self._weight(index),
                self._common[part] if self.counter else None,
                self._means[part] if self._has_mean else None,
                float(self._rates[index]),
                self._sums[part],
                place or 0,
                self.layout.dtypes[index],
                1 / self.loss_scale,
                self.settings(index).weight_decay if place is not None else 0.0,
            )
            if not is_finite and culprit is None:
                culprit = index
        if culprit is not None:
            self._drop_sums(culprit)
        self.counter = 0
        self._has_mean = False

    def _round_has_ended(self) -> bool:
        """Return True if no round is under way. A failed round counts as under way if survivors repeat it."""
        if self.round_is_running():
            return False
        try:
            self._wait_for_round()
        except GradientFlowError:
            if self._failure is None:
                raise
        return self._failure is None

    def _wait_for_round(self) -> None:
        if self._failure is not None:
            raise self._failure
        handles, self._handles = self._handles, ()
        try:
            with self.comm.span("wait for round"):
                for handle in handles:
                    handle.wait()
        except GradientFlowError as error:
            if self._sent is not None:
                self._failure = error
                raise
            for index, part in enumerate(self._parts if self.counter else ()):
                self._weight(index)[...] = self._common[part]  # the same on all ranks
            self._reset()
            raise
        if not handles:
            return
        self.exchanges += 1
        if self._has_mean and handles[0].nonfinite:  # the sums are finite, but not after rounding
            found = first_nonfinite(self._means[part] for part in self._parts)
            assert found is not None
            what = f"the gradient of {self.layout.names[found]} in round {self.rounds}"
            outcome = "all ranks drop the round, and go back to the common weights"
            self._pending_error = nonfinite_error(what, None, outcome)
            self._has_mean = False
            self._means[...] = 0

    def _reset(self) -> None:
        """Drop sums and means."""
        self._has_mean, self.counter = False, 0
        self._means[...] = 0
        self._sums[...] = 0

    def _start_round(self) -> None:
        """Start to average the sums."""
        self._sums, self._means = self._means, self._sums
        self._rates[:] = [self.settings(index).rate for index in range(len(self.layout))]
        self.rounds += 1
        self._has_mean = True
        if self._sent is not None:
            self._sent[...], self._sent_rates[...] = self._means, self._rates
        self._send()

    def _send(self) -> None:
        wire = {"wire": self.strategy.wire} if self.strategy.wire else {}
        average = self._background.allreduce_async
        label = f"round {self.rounds}"
        try:
            self._handles = (average(self._means, "mean", self.strategy.algorithm, label=label, **wire),)
            self._handles += (average(self._rates, "mean", label=f"rates of {label}"),)
        except GradientFlowError as error:
            if self._sent is None:
                raise
            self._failure = error

    def _weight(self, index: int) -> Floats:
        weight = self.weights[index]
        if weight.dtype != np.float32:
            raise ArgumentError(
                f"hpsgd makes steps on float32, and {self.layout.names[index]} is {weight.dtype}: use master weights, "
                "which the optimizers of the core have"
            )
        return weight  # type: ignore[no-any-return]

    def _first_nonfinite(self, places: Sequence[int | None]) -> int | None:
        """Return the index of the first tensor whose gradient is not finite, or None."""
        count = self._steps.count_nonfinite
        triples = zip(places, self.layout.dtypes, self.layout.counts, strict=True)
        found = (i for i, (place, dtype, n) in enumerate(triples) if place is not None and count(place, dtype, n))
        return next(found, None)

    # ---- ranks that are lost -------------------------------------------------------------------------------------

    def check_survival(self) -> None:
        """Keep the sums that are sent from now on."""
        self._sent = np.empty_like(self._common)

    def shared_state(self, with_arrays: bool) -> object:
        """Return the common weights, and the number of rounds that have led to them."""
        common = [self._common[part] for part in self._parts] if self.counter else list(self.weights)
        rounds = self.rounds - self._has_mean
        return {"names": self.layout.names, "common": common, "rounds": rounds, "exchanges": self.exchanges}

    def catch_up(self, state: Plain, begins: bool) -> None:
        """Take the common weights of a rank that is ahead; keep this rank's sums since the last round was started."""
        for index, common in enumerate(in_order(state["common"], state["names"], self.layout)):
            self._weight(index)[...] = common
        self.rounds, self.exchanges = state["rounds"], state["exchanges"]
        self.counter, self._has_mean, self._failure = 0, False, None
        self._means[...] = 0

    # ---- state ---------------------------------------------------------------------------------------------------

    @contextmanager
    def common_weights(self) -> Iterator[None]:
        """Put the common weights of the last round applied here into the model in a ``with`` block."""
        if self.counter == 0:
            yield
            return
        for index, part in enumerate(self._parts):
            _swap(self._weight(index), self._common[part])
        try:
            yield
        finally:
            for index, part in enumerate(self._parts):
                _swap(self._weight(index), self._common[part])

    def state_dict(self) -> StateDict:
        """Return the number of rounds: after `finish` there is no other state.

        Raises
        ------
        gradientflow.errors.ArgumentError
            If gradients have not been applied.
        """
        if self._is_busy:
            raise _busy("a checkpoint")
        return {"rounds": self.rounds}

    def consolidated_state_dict(self) -> StateDict:
        """Return the same state as `state_dict`."""
        return self.state_dict()

    def check_state_dict(self, state: Mapping[str, object]) -> None:
        """Raise unless it is a state of hpsgd."""
        check_keys("hpsgd", ["rounds"], state)

    def load_state_dict(self, state: State | None) -> None:
        """Load a state. Collective.

        If a rank has loaded weights before, gradients under way are dropped, and ranks that have loaded no weights take
        the weights of that rank. Otherwise gradients under way are applied, as by `finish`.
        """
        self.rollback(Phase.HANDING_OVER)
        rounds, were_written, are_under_way = self._meet()
        most = int(rounds.max())
        if are_under_way.any() and not were_written.any():
            self._drain(most)
        while self.rounds < most:
            self._wait_for_round()
            self._start_round()
        self._wait_for_round()
        self._reset()
        if were_written.any() and not were_written.all():
            for index in range(len(self.layout)):
                self._foreground.broadcast(self._weight(index), int(were_written.argmax()))
        self.rounds = 0 if state is None else int(state["rounds"])

    def summary(self, state: Mapping[str, object]) -> dict[str, str]:
        """Return the number of rounds."""
        return {"the number of rounds": str(state["rounds"])}

    def check_change(self) -> None:
        """Raise if gradients have not been applied."""
        if self._is_busy:
            raise _busy("a change of the model")

    def take_over(self, other: Synchronizer) -> None:
        """Take the number of rounds of another synchronizer, which has finished.

        If `other` is closed, the ranks have changed: take all its state, and repeat the round under way.
        """
        assert isinstance(other, HPSGDSynchronizer)
        self.rounds, self.exchanges, self._pending_error = other.rounds, other.exchanges, other._pending_error
        if other._sent is None:
            return
        self._sent = np.empty_like(self._common)
        if not other.comm.closed:
            return
        self.counter, self._has_mean = other.counter, other._has_mean
        parts = dict(zip(other.layout.names, zip(other._parts, other._sent_rates, strict=True), strict=True))
        for index, (name, mine) in enumerate(zip(self.layout.names, self._parts, strict=True)):
            theirs, self._rates[index] = parts[name]
            self._sums[mine], self._common[mine] = other._sums[theirs], other._common[theirs]
            if self._has_mean:
                self._means[mine] = other._sent[theirs]
        if self._has_mean:
            self._sent[...], self._sent_rates[...] = self._means, self._rates
            self._send()

    @property
    def has_state(self) -> bool:
        """True: the number of rounds is state, even while `state_dict` refuses to return it."""
        return True

    @property
    def _is_under_way(self) -> bool:
        return self._has_mean or self.counter > 0

    @property
    def _is_busy(self) -> bool:
        return self._is_under_way or bool(self._sums.any())


def _busy(what: str) -> ArgumentError:
    return ArgumentError(f"gradients have not been applied on all ranks yet: {what} comes after finish()")


def _swap(one: Floats, other: Floats) -> None:
    before = one.copy()
    one[...] = other
    other[...] = before


__all__ = ["HPSGD", "HPSGDSynchronizer"]
