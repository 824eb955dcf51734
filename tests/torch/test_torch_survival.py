"""PyTorch goes on when ranks die: what is left is to the bit what a replay of those who took part gives."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
import torch
from needs_reconfigure import needs_reconfigure
from survival_groups import rate_of
from survivors import Fate, Training, run_ranks, train

import gradientflow as gf
import gradientflow.torch as gft
from gradientflow.errors import ArgumentError, ArgumentTypeError, CommunicationError
from gradientflow.plain import Tagged, pack, unpack
from gradientflow.torch.plain_tensors import from_plain, to_plain

from survive import training_replay
from survive.task import SIZES

Command = Callable[[str | Path], list[str]]


DIE = [
    Training("dense", [Fate(5, -1)]),
    Training("dense", [Fate(2, 9, "miss"), Fate(0, 10), Fate(1, 20, "die", 0.001)]),  # as the learning rate falls
    Training("csc", [Fate(2, 10)]),
    Training("hpsgd", [Fate(3, 9, "miss"), Fate(4, 20, "die", 0.001)]),
]
COME_BACK = [Training(name, [Fate(0, 5)]) for name in ("top_k", "ssgd", "hpsgd")]


@pytest.mark.parametrize(
    ("ranks", "trainings"),
    [pytest.param(6, DIE, id="they die"), pytest.param(3, COME_BACK, id="they come back", marks=pytest.mark.thorough)],
)
def test_survivors_go_on(
    process_command: Command,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    ranks: int,
    trainings: Sequence[Training],
) -> None:
    """Chunks are cut from tensors in the order of the backward pass; newcomers get the momentum and the rate."""
    tensors = np.split(np.arange(sum(SIZES)), np.cumsum(SIZES)[:-1])
    monkeypatch.setattr(training_replay, "places_of", lambda _: [np.concatenate(tensors[::-1])])
    restart = trainings is COME_BACK
    found = train(process_command("torch_survival"), tmp_path, ranks, trainings, restart=restart, rate=rate_of)
    sizes = [[len(members) for members in ending.steps] for ending in found[: 2 if restart else 3]]
    if restart:
        assert all((each[4], each[5], each[-1]) == (3, 2, 3) for each in sizes)
    else:
        assert (sizes[0][-1], [sizes[1][step] for step in (9, 10, -1)], sizes[2][9:11]) == (5, [5, 4, 3], [3, 2])


def test_what_needs_all_ranks_is_refused() -> None:
    model = torch.nn.Linear(3, 2)

    def refuse(match: str, **options: object) -> None:
        with pytest.raises(ArgumentError, match=match), gf.init(transport="tcp") as comm:
            make(comm, **options)

    def make(comm: gf.Communicator, **options: object) -> gft.DistributedOptimizer:
        inner = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        return gft.DistributedOptimizer(inner, model, comm, **options)

    refuse("share='node' needs on_failure='raise'", share="node", on_failure="continue")
    refuse("min_ranks goes with on_failure='continue'", min_ranks=2)
    refuse("'raise' or 'continue', not 'ignore'", on_failure="ignore")
    for on_failure in ("raise", "continue"):
        with gf.init(transport="tcp") as comm, make(comm, on_failure=on_failure) as optimizer:
            assert list(optimizer.steps(3)) == [0, 1, 2]
            assert (optimizer.changed, optimizer.membership) == (False, gf.training.Membership(0, 1, (0,)))
    with gf.init(transport="tcp") as comm, make(comm, on_failure="continue") as optimizer:
        with pytest.raises(ArgumentError, match=r"step.closure. does not go with on_failure='continue'"):
            optimizer.step(lambda: model(torch.ones(3)).sum())
        scaler = torch.amp.GradScaler("cpu")
        scaler.scale(model(torch.ones(3)).sum()).backward()
        with pytest.raises(ArgumentError, match=r"GradScaler does not go with .*on_failure='continue'"):
            scaler.step(optimizer)


@pytest.mark.thorough
def test_the_example_with_ddp(process_command: Command) -> None:
    """All ranks that are left have the same weights, and have learnt."""
    output = run_example(process_command, "survive_ddp.py")
    found = re.findall(r"rank (\d) of 2: accuracy (\S+), sum of the weights (\S+)", output)
    assert sorted(rank for rank, _, _ in found) == ["0", "1"], output
    assert len({weights for _, _, weights in found}) == 1
    assert float(found[0][1]) > 0.9


@pytest.mark.slow
@pytest.mark.parametrize("name", ["come_back.py", pytest.param("reconfigure_ddp.py", marks=needs_reconfigure)])
def test_the_examples_whose_ranks_come_back(process_command: Command, name: str) -> None:
    output = run_example(process_command, name, restart=True)
    found = re.findall(r"rank (\d) of 3: accuracy (\S+)(.*)", output)
    assert sorted(rank for rank, _, _ in found) == ["0", "1", "2"], output
    assert len({(accuracy, weights) for _, accuracy, weights in found}) == 1
    assert float(found[0][1]) > 0.9


def run_example(process_command: Command, name: str, *, restart: bool = False) -> str:
    """Run an example on three ranks, of which one dies; return what is printed."""
    return run_ranks(process_command(Path(__file__).resolve().parents[2] / "docs/examples" / name), 3, restart=restart)


def test_buffers_have_to_be_the_same_on_newcomers() -> None:
    model = torch.nn.BatchNorm1d(3)
    inner = torch.optim.SGD(model.parameters(), lr=0.1)
    with (
        gf.init(transport="tcp") as comm,
        gft.DistributedOptimizer(inner, model, comm, on_failure="continue") as optimizer,
    ):
        assert optimizer._ranks.entries["models"]["running_mean"] == "torch.float32 (3,)"


def test_groups_that_could_not_be_sent_are_refused_before_a_rank_is_lost() -> None:
    model = torch.nn.Linear(3, 2)
    inner = torch.optim.SGD([{"params": model.parameters(), "part": Fraction(1, 2)}], lr=0.1)
    with (
        gf.init(transport="tcp") as comm,
        pytest.raises(ArgumentTypeError, match=r"param_groups\[0\]\['part'\] is a fractions\.Fraction: ranks send"),
    ):
        gft.DistributedOptimizer(inner, model, comm, on_failure="continue")


def test_a_replica_arrives_as_it_was() -> None:
    model = torch.nn.BatchNorm1d(3)
    inner = torch.optim.AdamW(model.parameters(), lr=torch.tensor(0.1), betas=(0.5, 0.25))
    model(torch.ones(2, 3)).sum().backward()
    inner.step()
    state = (dict(model.named_parameters()), inner.state_dict(), dict(model.named_buffers()))
    found = from_plain(unpack(pack(to_plain(state))))
    torch.testing.assert_close(found, state, rtol=0, atol=0)
    assert found[1]["param_groups"][0]["betas"] == (0.5, 0.25)
    inner.load_state_dict(found[1])


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float8_e4m3fn", "complex64", "int64", "bool"])
def test_tensors_of_any_dtype_arrive(dtype: str) -> None:
    kind = getattr(torch, dtype)
    tensors = [torch.tensor(1.0), torch.zeros(0, 3), torch.arange(6.0).view(2, 3).T, torch.ones(1 << 17)]
    mine = [each.to(kind) for each in tensors]
    theirs = from_plain(unpack(pack(to_plain(mine))))
    for each, other in zip(mine, theirs, strict=True):
        assert (each.dtype, each.shape) == (other.dtype, other.shape)
        assert torch.equal(each.contiguous().view(-1).view(torch.uint8), other.view(-1).view(torch.uint8))


def test_what_is_no_tensor_here_is_an_error() -> None:
    memory = np.zeros(4, np.uint8)
    for value in (("nn", (1,), memory), ("float32", (2,), memory), ("float64", (1,), memory), (memory,), 3):
        with pytest.raises(CommunicationError, match="another rank has sent what is no tensor"):
            from_plain(Tagged("torch", value))
    with pytest.raises(ArgumentTypeError, match=r"it is a torch\.Tensor: ranks send"):
        pack(to_plain(torch.eye(2).to_sparse()), "it")


def test_a_state_that_does_not_fit_changes_nothing() -> None:
    model = torch.nn.Linear(3, 2)
    before = [parameter.detach().clone() for parameter in model.parameters()]
    with (
        gf.init(transport="tcp") as comm,
        gft.DistributedOptimizer(
            torch.optim.Adagrad(model.parameters()), model, comm, on_failure="continue"
        ) as optimizer,
    ):
        parameters, state, buffers = optimizer._replica(True)
        theirs = {name: each + 1 for name, each in parameters.items()}
        groups = [{**state["param_groups"][0], "params": [number]} for number in range(2)]
        with pytest.raises(ArgumentError, match="2 groups"):
            optimizer._load_replica((theirs, {**state, "param_groups": groups}, buffers), True)
        assert all(map(torch.equal, model.parameters(), before))
        optimizer._load_replica((theirs, state, buffers), True)
        assert not any(map(torch.equal, model.parameters(), before))
