"""The order in which backpropagation reaches tensors, learned in the first iterations."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gradientflow.communicator import Communicator


class BackwardOrder:
    """The order in which rank 0's gradients become final, once learned."""

    def __init__(self, is_known: bool) -> None:
        self.is_known = is_known  # also True if the order does not matter
        self._seen: list[int] = []

    def note(self, final: Sequence[int]) -> None:
        """Note the tensors whose gradients are final in this iteration, in their order on this rank."""
        if not self.is_known:
            self._seen = list(final)

    def learn(self, comm: Communicator, count: int) -> list[int] | None:
        """Return the order of all tensors if it becomes known now. Collective, unless known before."""
        if self.is_known:
            return None
        seen = [*self._seen, *(index for index in range(count) if index not in set(self._seen))]
        everything = np.array([bool(self._seen), *seen], np.int64)
        comm.broadcast(everything)
        if not everything[0]:
            return None
        self.is_known = True
        order: list[int] = everything[1:].tolist()
        return order

    def common(self, comm: Communicator, names: Sequence[str]) -> list[int]:
        """Return the order of tensors on a rank that knows it, or else on the first rank. Collective."""
        is_known = comm.allgather(np.array([self.is_known])).ravel()
        root = int(is_known.argmax())
        self.is_known = bool(is_known[root])
        numbers = {name: number for number, name in enumerate(sorted(names))}
        order = comm.broadcast(np.array([numbers[name] for name in names], np.int64), root)
        own = {numbers[name]: index for index, name in enumerate(names)}
        return [own[number] for number in order.tolist()]


__all__ = ["BackwardOrder"]
