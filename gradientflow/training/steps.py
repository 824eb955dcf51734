"""Numbers of steps: the number of a step whose gradients are lost is given out again."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator

from gradientflow.arguments import checked_int

_UNDONE = 8  # more exchanges than are ever undone


class Steps:
    """Source of the numbers of steps.

    Attributes
    ----------
    next : int
        Number of the step that follows the last exchange that has ended.
    undone : int
        Exchanges that had ended on this rank and were undone later; never decreases.
    """

    def __init__(self) -> None:
        self.next = self.undone = 0
        self._before: deque[int] = deque(maxlen=_UNDONE)  # earlier values of `next`, the latest last
        self._number = 0
        self._goes_back = False
        self._counts = 0  # number of calls of `count`; only the first admits joining ranks

    def count(self, total: int, meet: Callable[[], object], finish: Callable[[], object]) -> Iterator[int]:
        """Give out numbers from 0 to below `total`. The first call of `count` calls `meet` before each number.

        `finish` is called after the last number: steps that are undone in it are given out again.
        """
        total = checked_int("total", total)
        self.next = self._number = number = 0
        self._counts += 1
        is_first = self._counts == 1
        while True:
            if is_first and number < total:
                meet()  # exchanges in it count for the step before
            self._number = number = self._or_back(number)
            if number >= total:
                undone = self.undone
                finish()
                if self.undone == undone:  # lost ranks had completed all steps, or peers are in their next training
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
        """Note that the last `number` exchanges are undone, as if they had not ended."""
        self.undone += number
        for _ in range(number):
            self.next = self._before.pop() if self._before else self.next

    def go_back(self) -> None:
        """Go back to the number after the last exchange that has ended."""
        self._goes_back = True

    def _or_back(self, number: int) -> int:
        goes_back, self._goes_back = self._goes_back, False
        return self.next if goes_back else number


__all__ = ["Steps"]
