"""The turns that strategies take under the settings of checks, which are others with another number of ranks."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from support import LAYOUTS, SIZE
from table_of_strategies import PROMISES, Promise

import gradientflow as gf

PROMISE_OF = {promise.words: promise for promise in PROMISES}
TURNS = [
    {**LAYOUTS[(number // 2 + SIZE) % len(LAYOUTS)], "strategy": promise.words}
    for number, promise in enumerate(PROMISES)
]
_communicators: dict[Any, gf.Communicator] = {}


@contextmanager
def with_promise(settings: Mapping[str, Any]) -> Iterator[tuple[gf.Communicator, Promise]]:
    """Give a strategy, and a communicator, which others get, too, unless something has failed on it."""
    layout = {name: value for name, value in settings.items() if name != "strategy"}
    key = str(layout), os.environ.get("GRADIENTFLOW_TRANSPORT")
    if key not in _communicators:
        _communicators[key] = gf.init(config=gf.Config(**layout))
    try:
        yield _communicators[key], PROMISE_OF[settings["strategy"]]
    except BaseException:
        _communicators.pop(key).close()
        raise
