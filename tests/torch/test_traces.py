"""Steps that PyTorch's profiler has recorded, for the model of `gradientflow simulate`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from gradientflow.model import computation_of_events  # noqa: E402


def test_a_profile_gives_shapes_in_the_order_of_backpropagation(tmp_path: Path) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(64, 32), torch.nn.ReLU(), torch.nn.Linear(32, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], record_shapes=True) as profiler:
        for _ in range(4):
            optimizer.zero_grad()
            model(torch.randn(8, 64)).sum().backward()
            optimizer.step()
    profiler.export_chrome_trace(str(tmp_path / "trace.json"))
    found = computation_of_events(json.loads((tmp_path / "trace.json").read_text(encoding="utf-8"))["traceEvents"])
    assert sorted(found.shapes) == sorted(tuple(each.shape) for each in model.parameters())
    assert set(found.shapes[:2]) == {(10, 32), (10,)}
    assert 0 < found.ready[0] <= found.ready[-1] <= found.seconds
