"""A notebook that trains on ranks of gf.spawn."""

from __future__ import annotations

import os

import pytest

TRAIN = """
import torch
import gradientflow as gf
import gradientflow.torch as gft

def train(steps):
    comm = gf.init()
    torch.manual_seed(0)
    model = torch.nn.Linear(10, 1)
    optimizer = gft.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model, comm)
    x = torch.randn(32, 10, generator=torch.Generator().manual_seed(comm.rank))
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        print(f"rank {comm.rank}: {losses[-1]:.3f}")
    return losses
"""
CALL = "losses = gf.spawn(train, 2, 20)\n[each[-1] < each[0] / 2 for each in losses]"
FAIL = "def fail():\n    raise KeyError('of a rank')\ngf.spawn(fail, 2)"


@pytest.mark.real("nbclient", "ipykernel")
@pytest.mark.timeout(300)
def test_ranks_of_a_notebook() -> None:
    """Its functions, results, prints and errors."""
    import nbclient
    import nbformat

    cells = [nbformat.v4.new_code_cell(source) for source in (TRAIN, CALL, FAIL)]
    notebook = nbformat.v4.new_notebook(cells=cells)
    # With this variable of pytest a kernel would not pass on what ranks print.
    env = {name: value for name, value in os.environ.items() if name != "PYTEST_CURRENT_TEST"}
    nbclient.NotebookClient(notebook, timeout=250, allow_errors=True, kernel_name="python3").execute(env=env)
    outputs = [cell.outputs for cell in cells]
    results = [each.data["text/plain"] for each in outputs[1] if each.output_type == "execute_result"]
    assert results == ["[True, True]"], outputs
    printed = "".join(each.text for each in outputs[1] if each.output_type == "stream")
    assert all(printed.count(f"rank {rank}: ") == 20 for rank in (0, 1)), printed
    assert [each.ename for each in outputs[2] if each.output_type == "error"] == ["KeyError"]
