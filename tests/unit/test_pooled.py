"""A synchronizer with several pools, one of which fails."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import pytest

from gradientflow.errors import PeerError
from gradientflow.strategies.exchange.pooled import PoolSynchronizer
from gradientflow.strategies.update import Phase


class Pool:
    """A pool of one tensor, for which somebody is missing or not."""

    has_failed = False

    def __init__(self, *, fails: bool) -> None:
        self.shapes = [(1,)]
        self.extra = np.zeros(1)
        self._fails = fails
        self.given_up = False

    def is_ready(self, number: int) -> bool:
        """Return False: nothing is."""
        return False

    def ready(self, number: int) -> None:
        """Fail, or not."""
        if self._fails:
            raise PeerError("rank 1 has died")

    def rollback(self, stream: Any) -> None:
        """Note it."""
        self.given_up = True


def test_an_iteration_is_given_up_in_all_pools() -> None:
    synchronizer = cast("Any", object.__new__(PoolSynchronizer))
    synchronizer.pools = [Pool(fails=True), Pool(fails=False)]
    synchronizer.extra = np.ones(1)
    with pytest.raises(PeerError, match="rank 1 has died"):
        synchronizer.rollback(Phase.HANDED_OVER)
    assert [pool.given_up for pool in synchronizer.pools] == [False, True]
