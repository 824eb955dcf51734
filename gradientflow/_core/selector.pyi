from __future__ import annotations

import collections.abc

__all__: list[str] = [
    "Selector",
    "automatic_threshold",
    "chunks_bytes",
    "entries_bytes",
    "fuse",
    "is_direct",
    "largest_along",
    "statement_bytes",
    "top_k_messages",
]

class Selector:
    def __init__(
        self, nodes: collections.abc.Sequence[int], transport: str, settings: collections.abc.Mapping[str, str]
    ) -> None: ...
    def path_of(
        self, kind: str, bytes: int, wire: bool, algorithm: str, in_node_memory: bool
    ) -> tuple[str, str, str]: ...
    @property
    def segment_bytes(self) -> int: ...
    @property
    def stretch_bytes(self) -> int: ...

def automatic_threshold(bytes: int, nodes: int) -> int: ...
def fuse(bytes: collections.abc.Sequence[int], threshold: int) -> list[tuple[int, int]]: ...
def is_direct(nodes: int) -> bool: ...
def top_k_messages(
    counts: collections.abc.Sequence[int],
    layers: collections.abc.Sequence[int],
    ratios: collections.abc.Sequence[float],
    ranks: int,
    dtype: str,
    values: str,
    merge_bytes: int,
) -> list[tuple[int, int, bool, int]]: ...

chunks_bytes: int
entries_bytes: int
largest_along: int
statement_bytes: int
