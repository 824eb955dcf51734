"""Ranks count the messages and bytes of calls, and compare them with those of the model."""

from __future__ import annotations

import numpy as np

import gradientflow as gf
from gradientflow.model.cluster import Cluster
from gradientflow.model.schedule import schedule_of

COUNTS = (0, 1, 3, 1000, 6000, 20_001, 50_000, 1 << 20, (1 << 20) + 77)


def main() -> None:
    """Make calls of many sizes by each algorithm."""
    comm = gf.init()
    cluster = Cluster.of(comm)
    node = comm.describe()["node"]

    def compare(what: str, kind: str, count: int, algorithm: str = "auto", wire: str | None = None) -> None:
        data = np.ones(count, np.float32)
        expected = schedule_of(cluster, kind, count, wire=wire, algorithm=algorithm, in_node_memory=False)
        before = comm.describe()["messages_sent"], comm.bytes_sent
        if kind == "allreduce":
            comm.allreduce(data, "mean", algorithm=algorithm, wire=wire)
        elif kind == "allgather":
            comm.allgather(data)
        else:
            comm.barrier()
        after = comm.describe()["messages_sent"], comm.bytes_sent
        assert before[1] is not None
        assert after[1] is not None
        found = after[0] - before[0], after[1] - before[1]
        told = int(expected.messages[comm.rank]), int(expected.sent[comm.rank])
        assert found == told, f"{what} of {count} by {expected.path} on node {node}: {found}, the model says {told}"

    for count in COUNTS:
        for algorithm in ("auto", "ring", "recursive_doubling", "hierarchical", "hierarchical_lanes"):
            compare("allreduce", "allreduce", count, algorithm)
            for wire in ("float16", "float8_e4m3"):
                compare(f"allreduce in {wire}", "allreduce", count, algorithm, wire)
        compare("allgather", "allgather", count)
    compare("barrier", "barrier", 0)
    comm.close()


if __name__ == "__main__":
    main()
