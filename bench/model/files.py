"""Measurements as JSON."""

from __future__ import annotations

from typing import Any

from gradientflow.model import Call, Cluster
from gradientflow.model.fit import Measurement, Point


def from_measurement(found: Measurement) -> dict[str, Any]:
    """Return a measurement as JSON data."""
    return {
        "nodes": found.cluster.nodes,
        "transport": found.cluster.transport,
        "points": [(point.call.count, point.seconds) for point in found.points],
        "inside": [(point.call.count, point.seconds) for point in found.inside],
        "per_byte_of_pass": found.per_byte_of_pass,
        "processor_per_byte": found.processor_per_byte,
        "cores": found.cores,
        "remark": found.remark,
    }


def to_measurement(data: dict[str, Any]) -> Measurement:
    """Return the measurement that JSON data describe."""

    def points(name: str) -> tuple[Point, ...]:
        return tuple(Point(Call("allreduce", count), seconds) for count, seconds in data[name])

    cluster = Cluster(tuple(data["nodes"]), data["transport"])
    rest = {name: data[name] for name in ("per_byte_of_pass", "processor_per_byte", "cores", "remark")}
    return Measurement(cluster, points("points"), points("inside"), **rest)


__all__ = ["from_measurement", "to_measurement"]
