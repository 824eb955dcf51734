"""The bench of the model: the paper's tables, and a round trip of measurements through JSON."""

from __future__ import annotations

import json
from dataclasses import asdict

import numpy as np
import pytest
from gradientflow_paper import COLUMNS, FITTED, ROWS, predict_tables
from ssd_sgd_paper import FREE, predict_speed_ups

from gradientflow.bench.model.command import measurement_of
from gradientflow.model import Call
from gradientflow.model.cluster import hosts
from gradientflow.model.fit import Measurement, Point


def test_free_columns_of_the_paper_are_predicted_within_a_tenth_in_the_median() -> None:
    cells = predict_tables()
    assert len(cells) == len(ROWS) * len(COLUMNS)
    free = [cell for cell in cells if not cell.fitted]
    assert len(free) == len(ROWS) * (len(COLUMNS) - len(FITTED))
    assert np.median(np.abs([cell.error for cell in free])) < 0.1
    for cell in cells:
        computing = cell.row.batches[COLUMNS.index(cell.column)] / cell.row.alone[COLUMNS.index(cell.column)]
        most = cell.row.batches[COLUMNS.index(cell.column)] * cell.row.machines * 8 / computing
        assert 0 < cell.images <= most * (1 + 1e-9)


def test_speed_ups_of_ssd_sgd_have_the_order_of_the_paper() -> None:
    fitted, *free = predict_speed_ups()
    assert abs(fitted.error) < 0.05
    assert [row._replace(predicted=0.0) for row in free] == list(FREE)
    resnet, alexnet = ([row.predicted for row in free if row.model == model] for model in ("resnet50", "alexnet"))
    assert 1 < max(resnet) < min(alexnet) < 2.1  # more to gain where more is sent for each computation


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row.model}-{row.cluster}")
def test_a_row_has_a_figure_for_each_column(row: object) -> None:
    assert {len(getattr(row, name)) for name in ("batches", "alone", "found")} == {len(COLUMNS)}


def test_measurements_survive_json() -> None:
    points = (Point(Call("allreduce", 1000), 1e-4), Point(Call("allreduce", 5000), 3e-4))
    found = Measurement(hosts(3, 2), points, points[:1], 1e-11, 2e-10, 2.0, "busy")
    assert measurement_of(json.loads(json.dumps(asdict(found)))) == found
