"""Tables 1 and 2 of the GradientFlow paper, predicted: two columns of each are fitted, and the others are free."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from gradientflow.model import Computation, Costs, Link, computation_of, layers_of
from gradientflow.model.cluster import hosts
from gradientflow.model.fit import fit_nonnegative
from gradientflow.model.pooled import chunk_traffic, dense_traffic
from gradientflow.model.traffic import CallSequence, EveryStep

_RANKS = 8  # on each machine
_DENSITY = 0.15  # of CSC: that of the paper's run of AlexNet to full accuracy
_CHUNK = 32_000  # elements
_THRESHOLDS = ("64KiB", "256KiB", "1MiB", "4MiB", "16MiB", "64MiB", "inf")
_PER_BYTE_OF_PASS = 1 / 300e9  # memory of these GPUs
FITTED = ("ring", "ring, fp16")
COLUMNS = (*FITTED, "ring, fp16, overlap", "ring, fp16, lazy, overlap", "ring, fp16, lazy, CSC, overlap")


@dataclass(frozen=True)
class Row:
    """A model on a cluster of the paper.

    Attributes
    ----------
    model : str
        The model.
    cluster : str
        "P" or "V".
    machines : int
        How many, of 8 GPUs.
    batches : tuple of int
        Images of a GPU in a step, for each of `COLUMNS`.
    alone : tuple of float
        Images a second of one GPU, for each of them, from sections 2.3 to 3.2.
    found : tuple of float
        Images a second of all GPUs, from the table.
    """

    model: str
    cluster: str
    machines: int
    batches: tuple[int, ...]
    alone: tuple[float, ...]
    found: tuple[float, ...]


ROWS = (
    Row("alexnet", "P", 16, (128,) * 5, (1670, *(1976,) * 4), (75.7e3, 110.3e3, 119.5e3, 172.8e3, 245.4e3)),
    Row("alexnet", "V", 64, (128,) * 5, (2900, *(3692,) * 4), (240.0e3, 326.7e3, 349.1e3, 780.3e3, 1514.3e3)),
    Row(
        *("resnet50", "P", 16, (64, 64, 128, 128, 128)),
        (172, 223, *(239.6,) * 3),
        (15.5e3, 17.8e3, 26.9e3, 29.6e3, 29.6e3),
    ),
    Row("resnet50", "V", 64, (128,) * 5, (301, *(621,) * 4), (56.8e3, 71.8e3, 80.0e3, 269.5e3, 273.2e3)),
)


class Predicted(NamedTuple):
    """A cell of the tables.

    Attributes
    ----------
    row : Row
        Its row.
    column : str
        Its column.
    fitted : bool
        Whether the link was fitted to it.
    images : float
        Images a second, as predicted.
    error : float
        Over those of the paper, less 1.
    """

    row: Row
    column: str
    fitted: bool
    images: float
    error: float


def predict_tables() -> list[Predicted]:
    """Fit a latency and a rate to two columns of each cluster, and predict all columns but that of MPI."""
    found = []
    for cluster in sorted({row.cluster for row in ROWS}):
        rows = [row for row in ROWS if row.cluster == cluster]
        link = _fit(rows)
        for row in rows:
            costs = Costs(hosts(row.machines, _RANKS), link)
            for place, column in enumerate(COLUMNS):
                seconds = _shortest(_traffics(row, place, costs), _computation(row, place), costs)
                images = row.batches[place] * costs.cluster.ranks / seconds
                found.append(Predicted(row, column, column in FITTED, images, images / row.found[place] - 1))
    return found


def _computation(row: Row, place: int) -> Computation:
    return computation_of(layers_of(row.model), row.batches[place] / row.alone[place])


def _fit(rows: list[Row]) -> Link:
    """Return the latency and the rate with the least squares of relative errors of a step, without overlap."""
    table, rest = [], []
    for row in rows:
        costs = Costs(hosts(row.machines, _RANKS), Link())
        for place in range(len(FITTED)):
            step = row.batches[place] * costs.cluster.ranks / row.found[place]
            (traffic,) = _traffics(row, place, costs)
            calls = [costs.schedule(call) for exchange in traffic.exchanges for call in exchange.calls]
            rounds, leaving = sum(each.rounds for each in calls), sum(float(each.leaving.max()) for each in calls)
            table.append([rounds / step, leaving / step])
            rest.append((step - _computation(row, place).seconds) / step)
    weights = np.array(rest)
    latency, per_byte = fit_nonnegative(np.array(table), weights)
    return Link(0.0, float(latency), float(per_byte), 0.0, 0.0, 0.0, _PER_BYTE_OF_PASS)


def _shortest(traffics: list[EveryStep], computation: Computation, costs: Costs) -> float:
    return min(each.step(computation, costs).seconds for each in traffics)


def _traffics(row: Row, place: int, costs: Costs) -> list[EveryStep]:
    """Return the traffic of a column; of lazy ones with each threshold, since the paper selects a proper one."""
    computation = _computation(row, place)
    dense = replace(computation, dtype="float32" if place == 0 else "float16")
    nodes = len(costs.cluster.nodes)
    if place < len(FITTED):
        return [replace(dense_traffic(dense, nodes, 0, None, "ring"), in_backward=False)]
    if place == len(FITTED):
        return [dense_traffic(dense, nodes, 0, None, "ring")]
    if place == len(FITTED) + 1:
        return [dense_traffic(dense, nodes, threshold, None, "ring") for threshold in _THRESHOLDS]
    sparse = [
        chunk_traffic(computation, costs.cluster, _DENSITY, _CHUNK, threshold, None, "ring")
        for threshold in _THRESHOLDS
    ]
    return [replace(each, exchanges=tuple(map(_as_float16, each.exchanges))) for each in sparse]


def _as_float16(exchange: CallSequence) -> CallSequence:
    calls = (replace(call, dtype="float16") if call.dtype == "float32" else call for call in exchange.calls)
    return exchange._replace(calls=tuple(calls))


__all__ = ["COLUMNS", "FITTED", "ROWS", "Predicted", "Row", "predict_tables"]
