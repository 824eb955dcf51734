"""The numbers of steps: one whose gradients are lost is given out again."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator

from gradientflow.arguments import checked_int

_UNDONE = 8  # more exchanges than are ever undone


class Steps:
    """Gives out the numbers of steps.

    Attributes
    ----------
    next : int
        The number that follows the last exchange that has ended.
    """

    def __init__(self) -> None:
        self.next = 0
        self._before: deque[int] = deque(maxlen=_UNDONE)  # the values of `next` before, the last one last
        self._number = 0
        self._goes_back = False
        self._is_undone = False  # a step, since `finish` was called
        self._is_first = True  # of the calls of `count`: newcomers begin with it

    def count(self, total: int, meet: Callable[[], object], finish: Callable[[], object]) -> Iterator[int]:
        """Give out numbers from 0 to below `total`; before each, in the first call, `meet` is called.

        Behind the last one `finish` is called: steps that are undone in it are given out again.
        """
        total = checked_int("total", total)
        self.next = self._number = number = 0
        is_first, self._is_first = self._is_first, False
        while True:
            if is_first and number < total:
                meet()  # exchanges in it count for the step before
            self._number = number = self._or_back(number)
            if number >= total:
                self._is_undone = False
                finish()
                if not self._is_undone:  # who was lost in it was past all steps, or others are in their next training
                    self._goes_back = False
                    return
                number = self._or_back(number)
                continue
            yield number
            number = self._or_back(number + 1)

    def ended(self) -> None:
        """Note that the exchange of the step has ended."""
        self._before.append(self.next)
        self.next = self._number + 1

    def undo(self, number: int) -> None:
        """Note that the last exchanges, as many as `number`, count as if they had not ended."""
        self._is_undone = True
        for _ in range(number):
            self.next = self._before.pop() if self._before else self.next

    def go_back(self) -> None:
        """Go back to the number that follows the last exchange that has ended."""
        self._goes_back = True

    def _or_back(self, number: int) -> int:
        goes_back, self._goes_back = self._goes_back, False
        return self.next if goes_back else number


__all__ = ["Steps"]
