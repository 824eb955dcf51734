"""One iteration of a training loop: its phases, and all transitions between them."""

from __future__ import annotations

from gradientflow.strategies.update import Phase, Update

# Read in each step: a name of the module is faster than an attribute of the enum.
_ADDS, _HANDS, _HANDED, _AVERAGED = Phase.ACCUMULATING, Phase.HANDING_OVER, Phase.HANDED_OVER, Phase.AVERAGED
_IDLE = Phase.IDLE

_BEGUN = (_HANDS, _ADDS, _HANDED)
_ENDED = (_AVERAGED, Phase.LOST)  # phases with an update
_UNTOLD = (_HANDED, Phase.BEGIN_FAILED, Phase.WAIT_FAILED, Phase.STEP_FAILED)


class Progress:
    """The phase of the current iteration, and its data. Only methods of this class change the phase."""

    def __init__(self) -> None:
        self.order: list[int] = []  # tensors whose gradients are final, in the order in which they became final
        self.reset()

    def reset(self) -> None:
        """Forget the iteration: its gradients are zeroed or replaced."""
        self.phase = Phase.IDLE
        self.order.clear()
        self.passes = 0  # backward passes since the last step
        self.update: Update | None = None  # the result of the last exchange; None after the step
        self.overflowed = False  # an exchange since the last step had gradients that are not finite: skip the next step
        self.unscaled = False  # gradients have been divided by the loss scale

    @property
    def has_begun(self) -> bool:
        """True if the synchronizer has begun the iteration, and not ended it."""
        return self.phase in _BEGUN

    @property
    def is_untold(self) -> bool:
        """True if other ranks wait for this rank's part. To give up the iteration, this rank then has to tell them."""
        return bool(self.order) or self.phase in _UNTOLD

    def begin_pass(self, *, only_adds: bool) -> None:
        """Forget the update, and begin a backward pass. Gradients are handed over, or just add up if `only_adds`."""
        self.phase = _ADDS if only_adds else _HANDS
        self.update = None

    def hand_over(self) -> None:
        """Note that the synchronizer has all gradients."""
        self._expect(_HANDS, _ADDS)
        self.phase = _HANDED

    def average(self, update: Update) -> None:
        """Note that the exchange has ended with an update."""
        self._expect(_HANDED)
        self.phase, self.update = _AVERAGED, update
        self.overflowed |= update.kind == "skipped"

    def end_without_update(self) -> None:
        """Note that the exchange has ended on all ranks with an error, and without an update."""
        self._expect(_HANDED)
        self.phase, self.overflowed = Phase.IDLE, False

    def drop(self) -> None:
        """Note that the exchange has ended, and all ranks drop it."""
        self._expect(_HANDED)
        self.phase, self.overflowed, self.passes = Phase.DROPPED, False, 0

    def fail(self, *, after_step: bool = False) -> None:
        """Note that the synchronizer's `begin` or `wait` has failed, or with `after_step` a call after the step."""
        failed = Phase.WAIT_FAILED if self.phase is Phase.HANDED_OVER else Phase.BEGIN_FAILED
        self.phase = Phase.STEP_FAILED if after_step else failed

    def give_up(self) -> Phase:
        """Return the phase in which this rank gives up the iteration, now IDLE; other ranks are being told.

        ACCUMULATING is returned as HANDING_OVER: gradients handed over before still wait for other ranks.
        """
        phase, self.phase = self.phase, Phase.IDLE
        return _HANDS if phase is _ADDS else phase

    def lose(self) -> None:
        """Note that the iteration was lost with a rank: its step is skipped."""
        self.reset()
        self.phase, self.update = Phase.LOST, Update("skipped")

    def forget_update(self) -> None:
        """Forget the last update: no step will use it."""
        self.update = None
        if self.phase in _ENDED:
            self.phase = _IDLE

    def step(self) -> None:
        """Note that the step was made, or skipped."""
        self.forget_update()
        self.passes = 0
        self.overflowed = self.unscaled = False

    def _expect(self, *phases: Phase) -> None:
        if self.phase not in phases:
            message = f"an iteration that is {self.phase.name} was to be one that is {phases[-1].name}"
            raise AssertionError(message)


__all__ = ["Progress"]
