"""Which ranks share a node: from the hosts' keys, and in jobs whose hosts are cut by GRADIENTFLOW_NODE_SIZE."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from native import collective

group_ranks: Callable[[list[int], int], list[list[int]]] = collective.group_ranks


@pytest.mark.parametrize(
    ("keys", "node_size", "nodes"),
    [
        ([7], 0, [[0]]),
        ([7, 7, 7], 0, [[0, 1, 2]]),
        ([7, 7, 7], 1, [[0], [1], [2]]),
        ([7, 7, 7], 2, [[0, 1], [2]]),
        ([7, 7, 7], 100, [[0, 1, 2]]),
        ([5, 9, 5, 9, 5], 0, [[0, 2, 4], [1, 3]]),  # ranks dealt out to two hosts in turn
        ([5, 9, 5, 9, 5], 2, [[0, 2], [1, 3], [4]]),
        ([9, 5, 5, 9, 5, 5, 5], 2, [[0, 3], [1, 2], [4, 5], [6]]),
        ([1, 1, 1, 2], 0, [[0, 1, 2], [3]]),  # uneven hosts
        ([1, 1, 1, 2], 2, [[0, 1], [2], [3]]),
        ([2, 1, 0], 0, [[0], [1], [2]]),  # nodes are numbered by their lowest rank, not by their key
        ([2**63, 0, 2**63], 0, [[0, 2], [1]]),
    ],
)
def test_group_ranks(keys: list[int], node_size: int, nodes: list[list[int]]) -> None:
    assert group_ranks(keys, node_size) == nodes


@given(keys=st.lists(st.integers(0, 4), min_size=1, max_size=40), node_size=st.integers(0, 5))
def test_every_rank_is_in_one_node_of_its_host(keys: list[int], node_size: int) -> None:
    nodes = group_ranks(keys, node_size)
    assert sorted(rank for node in nodes for rank in node) == list(range(len(keys)))
    assert [node[0] for node in nodes] == sorted(node[0] for node in nodes)
    for node in nodes:
        assert node == sorted(node)
        assert len({keys[rank] for rank in node}) == 1
        assert node_size == 0 or len(node) <= node_size
    for key in set(keys):
        of_host = [node for node in nodes if keys[node[0]] == key]
        assert len(of_host) == (1 if node_size == 0 else -(-keys.count(key) // node_size))


def test_what_communicators_say(mpirun: Callable[..., Any]) -> None:
    """Five ranks of one host, and nodes of 1, 2 and 3 of them."""
    finished = mpirun(5, "topology", env={"GRADIENTFLOW_NODE_SIZE": "2"})
    facts = json.loads(finished.line("describe "))
    assert facts["nodes"] == [[0, 1], [2, 3], [4]]
    assert facts["settings"]["node_size"] == "2"
    assert "GRADIENTFLOW_NODE_SIZE=2" in facts["nodes_remark"]
