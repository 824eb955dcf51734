"""DistributedOptimizer with strategies that let each rank train on weights of its own."""

from __future__ import annotations

import copy
from contextlib import nullcontext
from pathlib import Path
from typing import Any
from unittest import SkipTest, mock

import torch
from marks import on_ranks
from support import RANK, SIZE, raises, run_checks, same_everywhere
from tensor_places import PLACE, PLACED, on_host

import gradientflow as gf
import gradientflow.torch as gft
from gradientflow.errors import ArgumentError, ArgumentTypeError, ClosedError
from gradientflow.strategies import ArraySynchronizer, Layout, Strategy

torch.set_num_threads(1)


def step(model: torch.nn.Module, optimizer: Any) -> None:
    optimizer.zero_grad()
    parameter = next(iter(model.parameters()))
    model(torch.ones(2, parameter.shape[1], dtype=parameter.dtype, device=PLACED)).float().mean().backward()
    optimizer.step()


# What travels, and what becomes of weights, on the host and on a device.
EXAMPLES = Path(__file__).resolve().parents[2] / "docs" / "examples"
STAGED: tuple[tuple[str, torch.dtype, dict[str, Any]], ...] = (
    ("local_sgd(period=2)", torch.float32, {}),
    ("local_sgd(period=2)", torch.float64, {}),
    ("local_sgd(period=3, delay=1)", torch.float16, {"loss_scale": 8.0}),
    ("diloco(period=3, fragments=2, delay=1)", torch.float32, {"fused": True}),
    ("sparse_loco(period=2)", torch.float32, {}),
    ("psgd", torch.float32, {}),
    ("powersgd(rank=1, warmup=2)", torch.float32, {}),
    ("powersgd(rank=1, warmup=2)", torch.float32, {"fused": True, "loss_scale": 8.0}),
    (f"{EXAMPLES}/sign_sgd.py:SignSGD(scale=0.5)", torch.float32, {}),  # users' own, which say nothing of devices
    (f"{EXAMPLES}/top_k.py:TopK(density=0.2)", torch.float32, {"loss_scale": 8.0}),
    (f"{EXAMPLES}/local_sgd.py:LocalSGD(period=2)", torch.float32, {}),
)


def train(
    comm: gf.Communicator, place: torch.device, words: str, dtype: torch.dtype, options: dict[str, Any]
) -> torch.Tensor:
    """Return the weights after all steps, of which one is skipped where there is a loss scale, and in the end."""
    torch.manual_seed(7)
    model = torch.nn.Sequential(torch.nn.Linear(6, 40), torch.nn.Tanh(), torch.nn.Linear(40, 5)).to(place, dtype)
    sgd = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    seen = []
    with gft.DistributedOptimizer(sgd, model, comm, strategy=words, **options) as optimizer:
        for number in range(7):
            optimizer.zero_grad()
            x = torch.randn(4, 6, generator=torch.Generator().manual_seed(100 * number + RANK)).to(place, dtype)
            loss = (model(x) - x[:, :5].sin()).float().square().mean()
            optimizer.scale(loss * (float("inf") if number == 4 and "loss_scale" in options else 1)).backward()
            optimizer.step()
            seen += [each.detach().cpu().double().reshape(-1).clone() for each in model.parameters()]
            with optimizer.common_weights():
                seen += [each.detach().cpu().double().reshape(-1).clone() for each in model.parameters()]
        optimizer.finish()
        same_everywhere(model.parameters())
        seen += [each.detach().cpu().double().reshape(-1).clone() for each in model.parameters()]
    return torch.cat(seen)


@on_ranks(1, 3)
def check_training_is_that_on_the_host(comm: gf.Communicator) -> None:
    if PLACE == "host":
        raise SkipTest("on a device only")
    for words, dtype, options in STAGED:
        with on_host():
            wanted = train(comm, torch.device("cpu"), words, dtype, options)
        found = train(comm, PLACED, words, dtype, options)
        if PLACE == "cuda":  # which computes gradients with other roundings
            assert torch.allclose(found, wanted, rtol=1e-2, atol=1e-2 if dtype.itemsize == 2 else 1e-4), words
        else:
            assert torch.equal(found, wanted), (words, dtype, (found - wanted).abs().max())


@on_ranks(1, 3)
def check_hpsgd_loses_nothing(comm: gf.Communicator) -> None:
    """Gradients are whole numbers, so that their sum is exact whenever a round takes them."""
    model = torch.nn.Linear(64, 1, bias=False).to(PLACED)
    torch.nn.init.zeros_(model.weight)
    optimizer = gft.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.5), model, comm, strategy="hpsgd")
    total = torch.zeros(64)
    for number in range(12):
        batches = [torch.arange(64.0) % (3 + number) * SIZE + 2 * rank for rank in range(SIZE)]
        total += sum(batches)
        optimizer.zero_grad()
        model(batches[RANK].to(PLACED)).sum().backward()
        if number == 5:
            optimizer.synchronize()  # which has made the step of HPSGD
            continue
        optimizer.step()
        own = model.weight.detach().clone()
        with optimizer.common_weights():
            assert optimizer.synchronizer.counter or torch.equal(model.weight, own)
        assert torch.equal(model.weight, own)
    optimizer.finish()
    assert torch.equal(model.weight.detach().cpu()[0], -0.5 * total / SIZE)
    optimizer.close()


def check_a_group_that_cannot_be_added(comm: gf.Communicator) -> None:
    """Too early, or with a dtype without a step, it changes nothing; what binding refuses ends the optimizer."""
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 1)).to(PLACED)
    model[0].requires_grad_(False)
    optimizer = gft.DistributedOptimizer(torch.optim.SGD(model[1].parameters(), lr=0.1), model, comm, strategy="hpsgd")
    for number in range(3):
        optimizer.zero_grad()
        model(torch.full((4, 4), 1.0 + RANK + number, device=PLACED)).square().mean().backward()
        optimizer.step()
    model[0].requires_grad_(True)
    with raises(ArgumentError, "a change of the model comes after finish"):
        optimizer.add_param_group({"params": list(model[0].parameters())})
    model[0].requires_grad_(False)
    optimizer.finish()
    same_everywhere(model.parameters())
    wide = torch.nn.Parameter(torch.ones(3, dtype=torch.float64, device=PLACED))
    model.register_parameter("wide", wide)
    with raises(ArgumentTypeError, "wide is torch.float64"):
        optimizer.add_param_group({"params": [wide]})
    del model.wide
    optimizer.zero_grad()
    model(torch.ones(4, 4, device=PLACED)).square().mean().backward()
    optimizer.step()
    optimizer.finish()
    optimizer.close()
    inner = torch.optim.SGD(model[1].parameters(), lr=0.1)
    optimizer = gft.DistributedOptimizer(inner, model, comm, strategy="top_k(ratio=4)")
    model.register_parameter("wide", wide)
    with raises(ArgumentTypeError, "selection of entries is for gradients of", "float64"):
        optimizer.add_param_group({"params": [wide]})
    with raises(ClosedError, ""):
        optimizer.step()


def check_parameters_without_gradient(comm: gf.Communicator) -> None:
    """They do not decay, in rounds and on replicas, as in PyTorch; one that is set by hand counts."""
    names = ("used", "unused", "by_hand", "at_first")
    model = torch.nn.ParameterDict({name: torch.nn.Parameter(torch.ones(3)) for name in names}).to(PLACED)
    sgd = torch.optim.SGD(model.parameters(), lr=0.125, weight_decay=0.5)
    with gft.DistributedOptimizer(sgd, model, comm, strategy="hpsgd") as optimizer:
        for number in range(4):
            optimizer.zero_grad(set_to_none=number != 1)
            model["by_hand"].grad = torch.full((3,), 2.0, device=PLACED)
            those = ("used", "at_first") if number == 0 else ("used",)
            on_the_host = getattr(optimizer.synchronizer, "host", optimizer.synchronizer)
            with mock.patch.object(on_the_host, "round_is_running", return_value=number % 2 == 1):
                sum(0 * model[name].sum() for name in those).backward()
                optimizer.step()
            assert (model["unused"] == 1).all()
        optimizer.finish()
        decay = 0.125 * 0.5
        assert (model["unused"] == 1).all()
        assert torch.allclose(model["used"], torch.tensor((1 - decay) ** 4, device=PLACED), atol=0.02)
        assert torch.allclose(
            model["at_first"], torch.tensor((1 - decay) ** 2, device=PLACED), atol=0.02
        )  # zeros in the second step
        assert (model["by_hand"] < 1 - 4 * 0.125 * 2).all()


def check_a_checkpoint_that_is_loaded_in_mid_run(comm: gf.Communicator) -> None:
    """Of a model and then of its optimizer: what is under way is dropped."""
    model = torch.nn.Linear(8, 4, bias=False).to(PLACED)
    sgd = torch.optim.SGD(model.parameters(), lr=0.001)
    loaded = {"weight": torch.full((4, 8), 5.0, device=PLACED)}
    with gft.DistributedOptimizer(sgd, model, comm, strategy="hpsgd") as optimizer:
        start = copy.deepcopy(optimizer.state_dict())
        for _ in range(3):
            step(model, optimizer)
        model.load_state_dict(loaded)
        with raises(ArgumentError, "the weights were changed while gradients are under way"):
            step(model, optimizer)
        optimizer.load_state_dict(start)
        assert torch.equal(model.weight, loaded["weight"])
        for _ in range(3):
            step(model, optimizer)
        optimizer.load_state_dict(sgd.state_dict())  # of the optimizer alone: what is under way is applied
        same_everywhere(model.parameters())
        assert abs(model.weight.mean() - 5) < 0.05


def check_a_checkpoint_for_weights_that_have_moved(comm: gf.Communicator) -> None:
    """On one rank: it is refused on all, and changes nothing."""
    model = torch.nn.Linear(8, 4, bias=False).to(PLACED)
    sgd = torch.optim.SGD(model.parameters(), lr=0.001)
    with gft.DistributedOptimizer(sgd, model, comm, strategy="hpsgd") as optimizer:
        start = optimizer.state_dict()
        step(model, optimizer)
        before = model.weight.data
        if RANK == 0:
            model.weight.data = before.clone()
        with raises(ArgumentError, "parameters have memory of their own now"):
            optimizer.load_state_dict(start)
        model.weight.data = before
        optimizer.load_state_dict(start)
        step(model, optimizer)
        optimizer.finish()
        same_everywhere(model.parameters())


def check_fragments_that_change(comm: gf.Communicator) -> None:
    """What travels in a fragment when parameters are added is applied once, to the tensors that it was measured of."""
    model = torch.nn.Sequential(*[torch.nn.Linear(4, 4, bias=False) for _ in range(4)]).to(PLACED)
    for layer in (0, 2):
        model[layer].requires_grad_(False)
    sgd = torch.optim.SGD([*model[1].parameters(), *model[3].parameters()], lr=0.1)
    strategy = "diloco(period=4, outer_rate=1.0, outer_momentum=0.0, fragments=2, delay=3, mixing=0.5)"
    with gft.DistributedOptimizer(sgd, model, comm, strategy=strategy) as optimizer:

        def train(steps: int) -> None:
            for number in range(steps):
                optimizer.zero_grad()
                model(torch.full((2, 4), 1.0 + RANK + number, device=PLACED)).square().mean().backward()
                optimizer.step()

        train(4)
        before: Any = optimizer.synchronizer
        (part, _), due = before._parts, before.due
        assert (part, due) == ([0], [7, 5])
        before._wait_for_all()
        common = {name: each.copy() for name, each in zip(before.layout.names, before.common, strict=True)}
        means = {name: each.copy() for name, each in zip(before.layout.names, before.differences, strict=True)}
        for layer in (0, 2):
            model[layer].requires_grad_(True)
        optimizer.add_param_group({"params": [*model[0].parameters(), *model[2].parameters()]})
        after: Any = optimizer.synchronizer
        there = dict(zip(after.layout.names, after.common, strict=True))
        for name, each in common.items():
            assert abs(there[name] - (each - means[name])).max() < 1e-6, name
        for layer in (0, 2):  # added: those at hand
            assert (there[f"{layer}.weight"] == model[layer].weight.detach().cpu().numpy().ravel()).all()
        assert after.due == [-1, -1]
        train(9)
        optimizer.finish()
        same_everywhere(model.parameters())


def check_states_between_exchanges(comm: gf.Communicator) -> None:
    """They have the weights of the model, as the optimizer has left them."""
    if SIZE == 1:
        reason = "one rank has no state of its own"
        raise SkipTest(reason)
    for words in ("local_sgd(period=10)", "diloco(period=10)", "psgd"):
        model = torch.nn.Linear(8, 4, bias=False).to(PLACED)
        sgd = torch.optim.SGD(model.parameters(), lr=0.1 * (1 + RANK))
        with gft.DistributedOptimizer(sgd, model, comm, strategy=words) as optimizer:
            for _ in range(3):
                step(model, optimizer)
            mine = model.weight.detach().cpu().numpy().ravel().copy()
            assert (optimizer.state_dict()["gradientflow"]["synchronizer"]["weights"][0] == mine).all(), words
            mean = comm.allreduce(mine.copy(), "mean")
            state = optimizer.consolidated_state_dict()
            assert (state["gradientflow"]["synchronizer"]["weights"][0] == mean).all(), words
            assert (model.weight.detach().cpu().numpy().ravel() == mine).all(), words


def check_weights_that_change_after_a_first_iteration_was_given_up(comm: gf.Communicator) -> None:
    """All begin with them, as with those that change before the first iteration."""
    if SIZE == 1:
        reason = "one rank has no common weights"
        raise SkipTest(reason)
    for words in ("local_sgd(period=10)", "diloco(period=10)"):
        model = torch.nn.Linear(8, 4, bias=False).to(PLACED)
        sgd = torch.optim.SGD(model.parameters(), lr=0.1)
        with gft.DistributedOptimizer(sgd, model, comm, strategy=words) as optimizer:
            optimizer.zero_grad()
            model(torch.ones(2, 8, device=PLACED)).mean().backward()
            optimizer.zero_grad()
            model.load_state_dict({"weight": torch.full((4, 8), 5.0)})
            step(model, optimizer)
            synchronizer: Any = optimizer.synchronizer
            assert (synchronizer.common[0] == 5).all(), words


def check_a_batch_that_is_not_used(comm: gf.Communicator) -> None:
    """What is loaded after it stays, whatever is asked of the optimizer then."""
    for words in ("hpsgd", "ssgd", "ssd_sgd(k=2, warmup=2)"):
        for then in ("state_dict", "load_state_dict", "backward"):
            model = torch.nn.Linear(8, 4, bias=False).to(PLACED)
            sgd = torch.optim.SGD(model.parameters(), lr=0.1)
            plain = copy.deepcopy(sgd.state_dict())
            with gft.DistributedOptimizer(sgd, model, comm, strategy=words) as optimizer:
                step(model, optimizer)
                if words == "hpsgd":
                    optimizer.finish()
                optimizer.zero_grad()
                model(torch.ones(2, 8, device=PLACED)).mean().backward()
                optimizer.synchronize()
                optimizer.zero_grad()
                if words == "hpsgd":
                    optimizer.finish()
                model.load_state_dict({"weight": torch.full((4, 8), 5.0)})
                if then == "state_dict":
                    optimizer.state_dict()
                elif then == "load_state_dict" and SIZE > 1:
                    optimizer.load_state_dict(plain)
                elif then == "backward":
                    model(torch.ones(2, 8, device=PLACED)).mean().backward()
                assert (model.weight == 5.0).all(), (words, then)
                optimizer.zero_grad()
                optimizer.finish()


class Ordered(Strategy):
    """Averages gradients, and notes what it is told after each step."""

    def __init__(self, *, reads_weights: bool = False) -> None:
        self.reads_weights = reads_weights

    def bind(self, comm: gf.Communicator, layout: Layout) -> ArraySynchronizer:
        return InOrder(comm, layout, self)


class InOrder(ArraySynchronizer):
    uses_backward_order = True
    strategy: Ordered

    def __init__(self, comm: gf.Communicator, layout: Layout, strategy: Ordered) -> None:
        super().__init__(comm, layout, strategy)
        self.weights_read = [each.copy() for each in self.weights] if strategy.reads_weights else []
        self.told: list[tuple[float, float]] = []

    def backward_done(self) -> None:
        for gradient in self.gradients:
            self.comm.allreduce(gradient, "mean")

    def after_step(self) -> None:
        self.told.append((self.settings(0).rate, self.loss_scale))


def check_a_strategy_that_is_bound_again_in_mid_iteration(comm: gf.Communicator) -> None:
    """In the order of backpropagation, on the host and on a device; what holds for the iteration still does."""
    late, early = torch.nn.Linear(5, 1), torch.nn.Linear(6, 5)
    model = torch.nn.ModuleList([late, early]).to(PLACED)
    sgd = torch.optim.SGD(model.parameters(), lr=0.25)
    with gft.DistributedOptimizer(sgd, model, comm, strategy=Ordered(), loss_scale=4.0) as optimizer:
        before: Any = optimizer.synchronizer
        optimizer.scale(late(early(torch.ones(2, 6, device=PLACED))).mean()).backward()
        optimizer.step()
        now: Any = optimizer.synchronizer
        assert {name[0] for name in before.layout.names[:2]} == {"1"}
        assert {name[0] for name in now.layout.names[:2]} == {"0"}
        assert now.told == [(0.25, 4.0)], now.told


def check_weights_that_a_strategy_may_read(comm: gf.Communicator) -> None:
    """Of strategies that average gradients, on the host only."""
    model = torch.nn.Linear(3, 2).to(PLACED)
    sgd = torch.optim.SGD(model.parameters(), lr=0.25)
    with nullcontext() if PLACE == "host" else raises(ArgumentError, "weights on a CUDA device are copied"):
        gft.DistributedOptimizer(sgd, model, comm, strategy=Ordered(reads_weights=True)).close()


run_checks([{}])
