"""Every rank of five finds itself where GRADIENTFLOW_NODE_SIZE puts it, also under another order of the ranks."""

from __future__ import annotations

import json
import os

from support import RANK, SIZE, WORLD, run, say

import gradientflow as gf

NODES = {
    "0": [[0, 1, 2, 3, 4]],
    "1": [[0], [1], [2], [3], [4]],
    "2": [[0, 1], [2, 3], [4]],
    "3": [[0, 1, 2], [3, 4]],
    "5": [[0, 1, 2, 3, 4]],
}


def check(comm: gf.Communicator, nodes: list[list[int]]) -> None:
    node = next(number for number, members in enumerate(nodes) if comm.rank in members)
    assert comm.node == node
    assert comm.nodes == len(nodes)
    assert comm.local_size == len(nodes[node])
    assert comm.local_rank == nodes[node].index(comm.rank)
    assert comm.describe()["nodes"] == nodes


def main() -> None:
    with gf.init() as comm:  # under the environment that the job was started in
        if RANK == 0:
            say("describe", json.dumps(comm.describe()))
        check(comm, NODES["2"])
    turned = WORLD.Split(0, SIZE - RANK)
    for node_size, nodes in NODES.items():
        os.environ["GRADIENTFLOW_NODE_SIZE"] = node_size
        with gf.init() as comm:
            assert (comm.rank, comm.size) == (RANK, SIZE)
            assert f"rank {RANK} of {SIZE}" in repr(comm)
            check(comm, nodes)
        with gf.init(turned) as comm:  # numbers are those of the communicator
            assert comm.rank == SIZE - 1 - RANK
            check(comm, nodes)
        with gf.init(config=gf.Config(node_size=4)) as comm:  # a setting goes before the environment
            check(comm, [[0, 1, 2, 3], [4]])


run(main)
