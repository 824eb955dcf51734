"""Benches without the packages that they need."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from gradientflow.bench.core import packages
from gradientflow.bench.core.plan import PlanError
from gradientflow.cli.bench import bench


@pytest.mark.parametrize(
    ("words", "missing", "sentence"),
    [
        ("allreduce -n 2 --compare gloo", "torch", "--compare gloo needs torch, which is not installed: {}[torch]"),
        ("allreduce -n 2 --plot x.png", "matplotlib", "--plot needs matplotlib, which is not installed: {}[plot]"),
        ("fusion -n 2 --compare gloo", "torch", "--compare gloo needs torch, which is not installed: {}[torch]"),
        ("ps -n 2 --compare rpc", "torch", "--compare rpc needs torch, which is not installed: {}[torch]"),
        ("sparse -n 2", "pybind11", "bench sparse needs pybind11, which is not installed: {}[bench]"),
        ("kernels", "pybind11", "bench kernels needs pybind11, which is not installed: {}[bench]"),
        ("zipline", "pybind11", "bench zipline needs pybind11, which is not installed: {}[bench]"),
        ("train -n 2", "torch sklearn", "train needs torch and scikit-learn, which are not installed: {}[bench]"),
        ("train -n 2", "torch", "bench train needs torch, which is not installed: {}[torch]"),
        (
            "train -n 2 --report x.html",
            "matplotlib jinja2",
            "--report needs matplotlib and jinja2, which are not installed: {}[bench]",
        ),
        ("first --jax", "jax", "bench first needs jax, which is not installed: {}[jax]"),
        ("torch", "torch", "bench torch needs torch, which is not installed: {}[torch]"),
        ("jax psum", "jax", "bench jax psum needs jax, which is not installed: {}[jax]"),
        ("jax step", "jax optax", "bench jax step needs jax and optax, which are not installed: {}[bench]"),
    ],
)
def test_the_extra_that_brings_a_missing_package_is_named(
    words: str, missing: str, sentence: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packages, "find_spec", lambda name: name not in missing.split() or None)
    with pytest.raises(PlanError) as caught:
        CliRunner().invoke(bench, words.split(), catch_exceptions=False)
    assert str(caught.value).endswith(sentence.format("pip install 'gradientflow") + "'")
