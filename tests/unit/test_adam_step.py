"""The step of Adam: as NumPy, bit for bit, at every SIMD level; and as PyTorch, nearly."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_data import CASTABLE, LEVELS, LINE, STORAGE, Guarded, check_same, compute, narrow, random_bits, sample
from kernel_references import ADAM, adam_stepped


@settings(max_examples=150)
@given(data=st.data())
def test_adam_anywhere(data: st.DataObject) -> None:
    """Whatever the length, the alignments, the values and the rates, with and without a copy of the weights."""
    dtype = data.draw(st.sampled_from(CASTABLE), label="dtype")
    length = data.draw(st.integers(0, 600), label="length")
    offsets = data.draw(st.lists(st.integers(0, LINE // 4 - 1), min_size=5, max_size=5), label="offsets")
    make = data.draw(st.sampled_from([sample, random_bits]), label="values")
    copy = data.draw(st.sampled_from([None, "float16", "bfloat16"]), label="copy")
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32), label="seed"))
    rates = [data.draw(st.floats(0, 10, width=32), label=name) for name in ADAM]
    weight, mean, squares = (make("float32", length, rng) for _ in range(3))
    gradient = make(dtype, length, rng)
    with np.errstate(all="ignore"):
        expected = adam_stepped(weight, gradient, dtype, mean, squares, rates)
        narrowed = None if copy is None else narrow(expected[0], copy)
    for level in LEVELS:
        memory = [Guarded(each, 4 * offset) for each, offset in zip((weight, mean, squares), offsets, strict=False)]
        source = Guarded(gradient, offsets[3] * gradient.itemsize)
        target = None if copy is None else Guarded(np.ones(length, STORAGE[copy]), 2 * offsets[4])
        places = [each.address for each in memory]
        parameter = 0 if target is None else target.address, copy or "float16"
        compute.adam_step(level, places[0], source.address, dtype, *places[1:], length, *parameter, *rates)
        for each, values in zip((*memory, source), (*expected, gradient), strict=True):
            each.check_guards()
            check_same(each.values, values)
        if target is not None:
            target.check_guards()
            check_same(target.values, narrowed)


def test_pytorch_makes_the_same_steps() -> None:
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(1)
    weight = rng.normal(size=1000).astype(np.float32)
    mean, squares = np.zeros_like(weight), np.zeros_like(weight)
    theirs = torch.nn.Parameter(torch.from_numpy(weight.copy()))
    optimizer = torch.optim.Adam([theirs], lr=0.01, betas=(0.8, 0.99), eps=1e-6, weight_decay=0.1)
    for step in range(1, 8):
        gradient = rng.normal(size=1000).astype(np.float32)
        theirs.grad = torch.from_numpy(gradient.copy())
        optimizer.step()
        rates = [1.0, 0.1, 0.01 / (1 - 0.8**step), np.sqrt(1 - 0.99**step), 0.8, 0.2, 0.99, 0.01, 1e-6, 1.0]
        addresses = [each.ctypes.data for each in (weight, gradient, mean, squares)]
        compute.adam_step(LEVELS[-1], *addresses[:2], "float32", *addresses[2:], 1000, 0, "float16", *rates)
        np.testing.assert_allclose(weight, theirs.detach().numpy(), 1e-5, 1e-6)


def test_what_has_no_kernel_is_refused() -> None:
    with pytest.raises(TypeError, match="a copy of the weights is float16 or bfloat16, not float32"):
        compute.adam_step(LEVELS[0], 0, 0, "float32", 0, 0, 0, 64, "float32", *[0.0] * 10)
    with pytest.raises(TypeError, match="float16, bfloat16 or float32"):
        compute.adam_step(LEVELS[0], 0, 0, "float64", 0, 0, 0, 0, "float16", *[0.0] * 10)
