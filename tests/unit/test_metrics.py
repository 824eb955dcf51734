"""Names of metrics, and their sources in a process."""

from __future__ import annotations

import gc
import json
import re
import socket
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from gradientflow.errors import ArgumentError
from gradientflow.metrics import METRICS, Metric, registry, sources
from gradientflow.metrics.jsonl import JsonLines, file_of_rank
from gradientflow.metrics.prometheus import Prometheus
from gradientflow.metrics.tensorboard import TensorBoard
from gradientflow.pools.base import RangeReport
from gradientflow.pools.exchange_figures import exchange_figures
from gradientflow.training.meter import Meter

DOCS = Path(__file__).resolve().parents[2] / "docs"


def test_the_page_has_all_metrics() -> None:
    table = (DOCS / "metrics.md").read_text(encoding="utf-8").partition("## All metrics")[2].partition("\n\n\n")[0]
    rows = re.findall(r"^\| `(\w+)` \| (.*) \| (.*) \|$", table, re.MULTILINE)
    assert rows == [(metric.name, ", ".join(metric.sources), metric.help) for metric in METRICS]


def test_queries_of_the_dashboard_name_metrics() -> None:
    panels = json.loads((DOCS / "examples" / "grafana.json").read_text(encoding="utf-8"))["panels"]
    named = [re.findall(r"gradientflow_\w+", target["expr"]) for panel in panels for target in panel["targets"]]
    assert len(named) > 10
    assert all(named)
    assert {name for each in named for name in each} <= {metric.name for metric in METRICS}


@pytest.mark.parametrize("metric", METRICS, ids=lambda metric: metric.name)
def test_names_are_those_of_openmetrics(metric: Metric) -> None:
    name = metric.name.removesuffix("_total")
    assert re.fullmatch(r"gradientflow(_[a-z]+)+", name)
    assert (metric.kind == "counter") == metric.name.endswith("_total")
    if metric.unit not in ("", "rank", "ranks"):
        assert name.endswith("_" + metric.unit.replace(" ", "_"))


class Owner:
    def metrics(self) -> dict[str, float]:
        return {"gradientflow_participants": 1.0}


def test_sources_live_as_long_as_their_owners() -> None:
    first, second = Owner(), Owner()
    keys = [registry.register("training", "loop", rank, each.metrics) for rank, each in enumerate((first, second))]
    assert [(each.name, each.rank, each.metrics()) for each in sources()] == [
        ("loop", 0, {"gradientflow_participants": 1.0}),
        ("loop 2", 1, {"gradientflow_participants": 1.0}),
    ]
    registry.unregister(keys[1])
    registry.unregister(keys[1])
    del first
    gc.collect()
    assert not sources()


@pytest.mark.parametrize("steps", [102, 250])
def test_a_meter_keeps_the_last_hundred_steps(steps: int) -> None:
    meter = Meter()
    for step in range(steps):
        meter.exchanged(meter.waited_from, [100 / 3, 100.0, 50.0] if step else None)
        meter.waited = float(step)
        meter.stepped(10 * step)
    found = meter.values()
    assert found["gradientflow_steps_total"] == steps
    assert found["gradientflow_exposed_seconds"] == steps - 1
    assert found["gradientflow_mean_exposed_seconds"] == np.mean(range(steps - 100, steps))
    assert found["gradientflow_step_sent_bytes"] == found["gradientflow_mean_step_sent_bytes"] == 10
    assert found["gradientflow_last_rank"] == 1
    assert np.isclose(found["gradientflow_last_rank_lag_seconds"], 1.75)
    assert json.dumps(found)


def test_figures_of_ranges() -> None:
    def report(started: float, ended: float) -> RangeReport:
        return RangeReport(100, 60, None, "ring", started, started, ended)

    # Of 7 seconds in which a range is under way, 3 have passed before the wait.
    found = exchange_figures(
        [report(1, 3), report(2, 5), report(6, 9)], shares_memory=True, has_times=True, waited_from=4.0
    )
    assert found == {
        "gradientflow_step_sent_bytes": 180,
        "gradientflow_step_node_bytes": 300,
        "gradientflow_exchange_seconds": 7,
        "gradientflow_sent_bytes_per_second": 180 / 7,
        "gradientflow_node_bytes_per_second": 300 / 7,
        "gradientflow_hidden_ratio": 3 / 7,
    }


@pytest.mark.parametrize(
    ("name", "path"),
    [("run.jsonl", "run.rank3.jsonl"), ("a/{rank}/run.jsonl", "a/3/run.jsonl"), ("b/x.y.jsonl", "b/x.y.rank3.jsonl")],
)
def test_files_of_ranks(name: str, path: str) -> None:
    assert file_of_rank(name, 3) == Path(path)


def test_a_file_in_use_stays(tmp_path: Path) -> None:
    name = str(tmp_path / "run.jsonl")
    first, second = JsonLines(name, 2), JsonLines(name, 2)
    assert [Path(str(each)).name for each in (first, second)] == ["run.rank2.jsonl", "run.rank2.1.jsonl"]
    first.close()
    assert str(JsonLines(name, 2)) == str(first)


def test_lines_are_json_when_a_value_is_not_finite(tmp_path: Path) -> None:
    lines = JsonLines(str(tmp_path / "run.jsonl"), 0)
    lines.write(registry.Source("training", "one", 0, dict), {"gradientflow_gradient_norm": float("nan")})
    lines.close()
    text = (tmp_path / "run.rank0.jsonl").read_text()
    assert json.loads(text, parse_constant=pytest.fail)["gradientflow_gradient_norm"] is None


@pytest.mark.parametrize(
    ("package", "make"),
    [
        ("prometheus_client", lambda folder: Prometheus("prometheus:9090", 0, folder, True)),
        ("torch.utils.tensorboard", lambda folder: TensorBoard(str(folder), 0)),
    ],
)
def test_a_missing_package_is_named(
    package: str, make: Callable[[Path], object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ArgumentError, match=r"needs .*pip install 'gradientflow\[.*metrics\]'"):
        make(tmp_path)


def test_a_port_that_is_taken(tmp_path: Path) -> None:
    pytest.importorskip("prometheus_client")
    with socket.create_server(("127.0.0.1", 0)) as server:
        name = f"prometheus:{server.getsockname()[1]}"
        with pytest.raises(ArgumentError, match=f"{name} cannot be served"):
            Prometheus(name, 0, tmp_path / "own", True)
