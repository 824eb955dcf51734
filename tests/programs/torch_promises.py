"""What every strategy promises, through PyTorch's door: a check for each promise, over one table of strategies."""

from __future__ import annotations

import copy
import importlib.util
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from marks import on_ranks
from strategy_turns import PROMISE_OF, TURNS, with_promise
from support import RANK, SIZE, bits, quick_link, raises, require_same_state, run_checks, same_everywhere
from table_of_strategies import PROMISES, Promise
from tensor_places import PLACE, PLACED
from torch import nn
from torch_support import saved

import gradientflow as gf
import gradientflow.torch as gft
from gradientflow.errors import NonFiniteError
from gradientflow.optimizers import LossScale

LAST = SIZE - 1

# Some strategies have arrays of NumPy of the gradients, which are bfloat16 only with that package.
NARROW = torch.bfloat16 if importlib.util.find_spec("ml_dtypes") else torch.float16


class Turned(nn.Module):
    """Backpropagation comes to its parameters in another order, and not to all of them in every pass."""

    def __init__(self) -> None:
        super().__init__()
        self.last, self.unused, self.first = nn.Linear(16, 5), nn.Linear(4, 3), nn.Linear(6, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(torch.tanh(self.first(x)))


def loss_of(model: nn.Module, step: int) -> torch.Tensor:
    dtype = next(model.parameters()).dtype
    x = torch.randn(4, 6, generator=torch.Generator().manual_seed(100 * step + RANK)).to(PLACED)
    return (model(x.to(dtype)).float() - x[:, :5].sin()).square().mean()


@contextmanager
def trained(
    comm: gf.Communicator, promise: Promise, dtype: Any = torch.float32, kind: Any = torch.optim.SGD, **options: Any
) -> Iterator[tuple[Any, Any]]:
    torch.manual_seed(7)
    model = Turned().to(PLACED, dtype)
    rates = {"lr": 0.05, "momentum": promise.momentum, "weight_decay": 0.01}
    inner = kind(model.parameters(), **(rates if kind is torch.optim.SGD else {"lr": 0.01}))
    with gft.DistributedOptimizer(inner, model, comm, strategy=promise.words, **options) as optimizer:
        yield model, optimizer


def step_of(model: nn.Module, optimizer: Any, step: int, spoil: Callable[[Any], Any] = lambda loss: loss) -> None:
    optimizer.zero_grad()
    optimizer.scale(spoil(loss_of(model, step))).backward()
    optimizer.step()


def finish(model: nn.Module, optimizer: Any) -> bytes:
    optimizer.finish()
    same_everywhere(model.parameters())
    assert all(each.isfinite().all() for each in model.parameters())
    return bits(model.parameters())


def takes_any(promise: Promise) -> bool:
    """Tell whether the optimizer may be any of PyTorch's."""
    return promise.uneven == "told" or promise.silent


@on_ranks(2, 3)
def check_training_goes_on_bit_for_bit(comm: gf.Communicator, promise: Promise) -> None:
    """From what torch.save has written, though pools are laid out anew; with masters and a loss scale, too."""
    for number, taken in enumerate(promise.taken[-2:], PROMISES.index(promise) + SIZE):
        dtype = (torch.float32, NARROW)[number % 2]
        scales = [LossScale(value, growth_interval=3) if dtype == NARROW else None for value in (4.0, 16.0)]
        with trained(comm, promise, dtype, loss_scale=scales[0]) as (model, optimizer):
            for step in range(taken):
                step_of(model, optimizer, step)
            if promise.finished:
                optimizer.finish()
            state = saved((model.state_dict(), optimizer.state_dict()))
            for step in range(taken, taken + 4):
                step_of(model, optimizer, step)
            wanted = bits(model.parameters())
            at_end = finish(model, optimizer)
        with trained(comm, promise, dtype, loss_scale=scales[1]) as (model, optimizer):
            for step in range(90, 90 + 2 * (number // 2 % 2)):  # whose order is known, or is not
                step_of(model, optimizer, step)
            for group in optimizer.param_groups:
                group["lr"] = 9.0
            model.load_state_dict(state[0])
            optimizer.load_state_dict(state[1])
            assert bits(model.parameters()) == bits(state[0].values()), (promise.words, dtype, taken)
            for step in range(taken, taken + 4):
                step_of(model, optimizer, step)
            assert promise.finished or bits(model.parameters()) == wanted, (promise.words, dtype, taken)
            assert (finish(model, optimizer) == at_end) or promise.finished, (promise.words, dtype, taken)
            assert str(scales[0] and scales[0].state_dict()) == str(scales[1] and scales[1].state_dict())


@on_ranks(2, 3)
def check_consolidated_states(comm: gf.Communicator, promise: Promise) -> None:
    """They are the same on all ranks, and have the means of what each rank's optimizer keeps."""
    kind = torch.optim.AdamW if takes_any(promise) and (PROMISES.index(promise) + SIZE) % 2 else torch.optim.SGD
    with trained(comm, promise, kind=kind) as (model, optimizer):
        for step in range(5):
            with_own = [lambda loss: loss + model.unused(torch.ones(4, device=PLACED)).sum()]
            step_of(model, optimizer, step, *(with_own if RANK == 0 else []))
        if not promise.is_same:
            optimizer.finish()
        own = copy.deepcopy(optimizer.state_dict()["state"])
        state = saved(optimizer.consolidated_state_dict())
        require_same_state(state, (promise.words, kind))
        buffer = "exp_avg" if kind is torch.optim.AdamW else "momentum_buffer"
        for number, parameter in enumerate(model.parameters() if takes_any(promise) else ()):
            mine = own.get(number, {}).get(buffer, torch.zeros_like(parameter)).reshape(-1).cpu().numpy()
            mean = comm.allreduce(mine.copy(), "mean")
            found = state["state"][number][buffer].reshape(-1).cpu()
            assert np.allclose(found, mean, atol=1e-6), (promise.words, number)
        optimizer.load_state_dict(state)
        require_same_state(optimizer._inner.state_dict()["state"], (promise.words, kind))
        step_of(model, optimizer, 9)
        finish(model, optimizer)


@on_ranks(2, 3)
def check_gradients_that_are_not_finite(comm: gf.Communicator, promise: Promise) -> None:
    """The error comes out of `backward` or `step`, names parameter and rank, and training goes on."""
    name = ("first.bias", "last.weight", "first.weight")[PROMISES.index(promise) % 3]
    kind = torch.optim.Adam if takes_any(promise) else torch.optim.SGD  # what it keeps is finite, too
    if promise.told == "none":
        return
    with trained(comm, promise, kind=kind) as (model, optimizer):
        told: list[str] = []

        def spoil(loss: torch.Tensor) -> torch.Tensor:
            return loss + model.get_parameter(name).sum() * float("nan")

        def tell(attempt: Callable[[], object]) -> None:
            try:
                attempt()
            except NonFiniteError as error:
                told.append(str(error))
                optimizer.zero_grad()

        for step in range(6):
            before = bits(model.parameters())
            bad = step == 2 and RANK == LAST
            tell(lambda: step_of(model, optimizer, step, *([spoil] if bad else [])))  # noqa: B023
            if step == 2 and promise.told == "all" and promise.given_up:
                assert bits(model.parameters()) == before, promise.words
        tell(optimizer.finish)
        assert len(told) == (RANK == LAST or promise.told == "all"), (promise.words, told)
        for text in told:
            assert f"is not finite on rank {LAST}:" in text, (promise.words, text)
            assert f" of {name} is" in text or promise.name == "csc", (promise.words, text)  # chunks of several
        if promise.told == "all":
            same_everywhere(np.frombuffer(told[0].encode(), np.uint8))
        finish(model, optimizer)
        for state in optimizer.state.values():
            assert all(torch.as_tensor(each).isfinite().all() for each in state.values())


@on_ranks(2, 3)
def check_a_backward_pass_that_fails_on_one_rank(comm: gf.Communicator, promise: Promise) -> None:
    """The others are told, and all drop the iteration; or, where gradients are a rank's own, nobody need know."""
    with trained(comm, promise) as (model, optimizer):
        for step in range(4):
            step_of(model, optimizer, step)
        optimizer.zero_grad()
        before = bits(model.parameters())
        if RANK == 0:
            hook = model.first.register_full_backward_hook(lambda *_: 1 / 0)
            with raises(ZeroDivisionError):
                model(torch.ones(4, 6, requires_grad=True, device=PLACED)).sum().backward()
            hook.remove()
            optimizer.zero_grad()
            if promise.uneven == "told":
                step_of(model, optimizer, 4)
        elif not promise.given_up:
            step_of(model, optimizer, 4)
        else:
            words = ["rank 0"] if not promise.is_served else ["a rank gave up"]
            with raises(promise.given_up, *words):
                loss_of(model, 4).backward()
                optimizer.step()
            optimizer.zero_grad()
        if promise.given_up:
            assert bits(model.parameters()) == before, promise.words
        for step in range(5, 8):
            step_of(model, optimizer, step)
            assert not promise.given_up or same_everywhere(model.parameters()) is None
        finish(model, optimizer)


@on_ranks(2, 3)
def check_parameters_that_are_added(comm: gf.Communicator, promise: Promise) -> None:
    """What is kept of the others goes along by name, and training goes on."""
    torch.manual_seed(7)
    model = Turned().to(PLACED)
    model.unused.requires_grad_(False)
    model.first.requires_grad_(False)
    inner = torch.optim.SGD(model.last.parameters(), lr=0.05, momentum=promise.momentum)
    with gft.DistributedOptimizer(inner, model, comm, strategy=promise.words) as optimizer:
        for step in range(7):
            step_of(model, optimizer, step)
        if promise.finished or not promise.is_same:
            optimizer.finish()
        before, kept = bits(model.parameters()), kept_by(optimizer)
        model.first.requires_grad_(True)
        optimizer.add_param_group({"params": list(model.first.parameters())})
        now = kept_by(optimizer)
        assert bits(model.parameters()) == before, promise.words
        if promise.is_same:  # else servers may have a push of another rank in between
            assert all(np.array_equal(now[name], each) for name, each in kept.items()), promise.words
        for step in range(7, 10):
            step_of(model, optimizer, step)
        finish(model, optimizer)
        assert bits(model.parameters()) != before


def kept_by(optimizer: Any) -> dict[str, Any]:
    """Return residuals, and the momentum of servers, by what they are of."""
    synchronizer = optimizer.synchronizer
    names = synchronizer.layout.names
    found = {}
    for name, each in zip(names, getattr(synchronizer, "residuals", None) or (), strict=False):
        found[f"residual of {name}"] = np.array(each).reshape(-1)
    if hasattr(synchronizer, "server"):
        for name, each in zip(names, synchronizer.server.state_dict().get("momentum", ()), strict=False):
            found[f"momentum of {name}"] = each.copy()
    return found


@on_ranks(2, 3)
def check_parameters_without_gradient(comm: gf.Communicator, promise: Promise) -> None:
    """Neither momentum nor weight decay moves what no rank uses, or uses no more; zeros are gradients."""
    with trained(comm, promise) as (model, optimizer):
        start = copy.deepcopy(model.unused.state_dict())
        for step in range(2):
            step_of(model, optimizer, step)
        optimizer.finish()
        before = copy.deepcopy(model.last.state_dict())
        for step in range(4):
            optimizer.zero_grad()
            model.first(torch.full((1, 6), 1.0 + step, device=PLACED)).sum().backward()
            optimizer.step()
        optimizer.finish()
        same = torch.allclose if takes_any(promise) else torch.equal  # the mean of three equal weights may be rounded
        assert all(map(same, model.unused.parameters(), start.values())), promise.words
        assert all(each.grad is None for each in model.unused.parameters())
        assert model.unused.weight not in optimizer.state or promise.is_served or promise.own
        assert promise.remembers or all(map(same, model.last.parameters(), before.values())), promise.words
        same_everywhere(model.parameters())
        assert optimizer.bytes_copied == 0, promise.words


@on_ranks(2, 3)
def check_weights_of_16_bits_that_are_loaded(comm: gf.Communicator, promise: Promise) -> None:
    """Into a model whose master weights are there already, by hand and from a checkpoint."""
    state: Any = None
    for _ in range(2):
        torch.manual_seed(7)
        model = nn.Linear(8, 4, bias=False).to(PLACED, torch.half)
        inner = torch.optim.SGD(model.parameters(), lr=0.001)
        with gft.DistributedOptimizer(inner, model, comm, strategy=promise.words, loss_scale=8.0) as optimizer:
            model.load_state_dict({"weight": torch.full((4, 8), 5.0)} if state is None else state[0])
            if state is not None:
                optimizer.load_state_dict(state[1])
            for _ in range(4):
                optimizer.zero_grad()
                optimizer.scale(model(torch.ones(2, 8, device=PLACED).half()).float().mean()).backward()
                optimizer.step()
            finish(model, optimizer)
            assert abs(model.weight.float().mean() - 5) < 0.05, promise.words
            state = saved((model.state_dict(), optimizer.state_dict()))


@on_ranks(2, 3)
def check_explain(comm: gf.Communicator, promise: Promise) -> None:
    if promise.is_own:
        return
    with quick_link(), trained(comm, promise) as (model, optimizer):
        found = optimizer.explain(compute_seconds=0.01)
        assert found.parameters == sum(each.numel() for each in model.parameters())
        assert promise.name in str(found)


ON_THE_HOST = ("top_k", "random_k", "lags", "slgs", "dgc")  # there is no top-k pool on devices yet

run_checks(
    [each for each in TURNS if PLACE == "host" or PROMISE_OF[each["strategy"]].name not in ON_THE_HOST],
    around=with_promise,
)
