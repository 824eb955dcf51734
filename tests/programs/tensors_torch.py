"""PyTorch's CPU tensors go through DLPack without a copy; what cannot go is refused with a reason."""

from __future__ import annotations

import numpy as np
import torch
from support import RANK, SIZE, WORLD, raises, run_checks

import gradientflow as gf
from gradientflow.errors import ArgumentError, ArgumentTypeError

TOTAL = SIZE * (SIZE + 1) // 2
DTYPES = [
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.float64,
    torch.int8,
    torch.uint8,
    torch.int32,
    torch.int64,
]


def check_dtypes(comm: gf.Communicator) -> None:
    for dtype in DTYPES:
        for count in (5, 3001):
            x = torch.full((count,), RANK + 1, dtype=dtype)
            address = x.data_ptr()
            assert comm.allreduce(x) is x
            assert x.data_ptr() == address
            assert (x == TOTAL).all()
            if dtype.is_floating_point:
                x = torch.full((count,), RANK + 1, dtype=dtype)
                wanted = torch.full((count,), TOTAL, dtype=torch.float32).div(SIZE).to(dtype)
                assert torch.equal(comm.allreduce_async(x, "mean").wait(), wanted)
    x = torch.tensor([RANK == 0, False, True])
    assert comm.allreduce(x, "max").tolist() == [True, False, True]


def check_shapes(comm: gf.Communicator) -> None:
    for shape in [(), (1,), (0,), (3, 0), (2, 3), (1, 4, 1)]:
        x = torch.full(shape, RANK + 1.0)
        assert (comm.allreduce(x) == TOTAL).all()
        assert tuple(x.shape) == shape
        assert comm.allgather(x).shape == (SIZE, *shape)
    part = torch.full((4, 6), RANK + 1.0)
    comm.allreduce(part[1:3])
    assert (part[1:3] == TOTAL).all()
    assert (part[[0, 3]] == RANK + 1).all()


def check_refusals(comm: gf.Communicator) -> None:
    for x in (torch.zeros(4, 6)[:, ::2], torch.zeros(3, 4).t(), torch.zeros(1).expand(5), torch.zeros(6)[::2]):
        with raises(ArgumentError, "is not contiguous"):
            comm.allreduce(x)
    with raises(ArgumentTypeError, "the tensor cannot be shared through DLPack", "gradient"):
        comm.allreduce(torch.zeros(3, requires_grad=True))
    with raises(ArgumentTypeError, "out cannot be shared through DLPack", "gradient"):
        comm.allreduce(torch.zeros(3), out=torch.zeros(3, requires_grad=True))
    with raises(ArgumentTypeError, "the tensor"):
        comm.allgather(torch.zeros(3, requires_grad=True), out=np.zeros(3 * SIZE, np.float32))
    for x, reason in [
        (torch._neg_view(torch.ones(3)), "is a negated view of other values; give tensor.resolve_neg()"),
        (
            torch._neg_view(torch.ones(3)).as_subclass(type("Own", (torch.Tensor,), {})),
            "is a negated view of other values",
        ),
        (torch._efficientzerotensor(3), "has no memory; make a copy of its values first"),
    ]:
        with raises(ArgumentError, f"the tensor {reason}"):
            comm.allreduce(x)
        with raises(ArgumentError, f"out {reason}"):
            comm.allreduce(torch.zeros(3), out=x)
    for dtype in (torch.complex64, torch.int16):
        with raises(ArgumentTypeError, "the tensor has dtype"):
            comm.allreduce(torch.zeros(3, dtype=dtype))
    with raises(ArgumentTypeError):
        comm.allreduce(torch.sparse_coo_tensor([[0]], [1.0], (3,)))
    with raises(ArgumentTypeError):
        comm.allreduce(torch.empty(3, device="meta"))
    with raises(ArgumentTypeError, "out has dtype float64"):
        comm.allreduce(torch.zeros(3), out=torch.zeros(3, dtype=torch.float64))
    x = torch.zeros(8)
    with raises(ArgumentError, "input and output overlap in allreduce, without being the same array"):
        comm.allreduce(x[:4], out=x[1:5])
    parameter = torch.nn.Parameter(torch.full((3,), RANK + 1.0))
    comm.allreduce(parameter.detach())
    assert (parameter == TOTAL).all()


def check_with_numpy(comm: gf.Communicator) -> None:
    out = np.zeros(6, np.float32)
    assert comm.allreduce(torch.full((2, 3), RANK + 1.0), out=out) is out
    assert (out == TOTAL).all()
    out = torch.zeros(SIZE, 3, dtype=torch.bfloat16)
    assert comm.allgather(torch.full((3,), RANK, dtype=torch.bfloat16), out=out) is out
    assert out[:, 0].tolist() == list(range(SIZE))
    mixed = torch.full((5,), RANK + 1.0) if RANK % 2 else np.full(5, RANK + 1, np.float32)
    assert comm.allreduce(mixed) is mixed
    assert list(map(float, mixed)) == [TOTAL] * 5


def check_node_memory(comm: gf.Communicator) -> None:
    array = comm.empty((50, 100))
    x = torch.from_dlpack(array)
    assert x.data_ptr() == array.ctypes.data
    x.fill_(RANK + 1)
    comm.allreduce(x)
    assert (array == TOTAL).all()
    del array
    x.fill_(RANK + 1)  # the tensor keeps the memory
    assert (comm.allreduce(x) == TOTAL).all()
    halves = torch.from_dlpack(comm.empty(5000, "int16")).view(torch.bfloat16)
    halves.fill_(RANK + 1)
    assert (comm.allreduce(halves) == TOTAL).all()
    model = torch.nn.Linear(30, 20)
    pool = gf.GradientPool(comm, [p.shape for p in model.parameters()])
    for parameter, view in zip(model.parameters(), pool.views, strict=True):
        parameter.grad = torch.from_dlpack(view)
    torch.manual_seed(RANK)
    inputs = torch.randn(8, 30)
    model(inputs).sum().backward()
    mine = [parameter.grad.clone() for parameter in model.parameters()]
    pool.ready()
    pool.wait()
    for parameter, gradient in zip(model.parameters(), mine, strict=True):
        total = WORLD.allreduce(gradient.numpy())
        assert np.allclose(parameter.grad.numpy(), total / SIZE, rtol=1e-6, atol=1e-6)


run_checks([{}, {"node_size": 1}])
