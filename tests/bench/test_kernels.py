"""What ``gradientflow bench kernels`` measures, and that it notices wrong results."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from figures import check_picture, rendered
from kernel_data import widen

from gradientflow.bench.core.plan import PlanError
from gradientflow.bench.kernels import check as kernels_check
from gradientflow.bench.kernels import plan as kernels_plan
from gradientflow.bench.kernels import session as kernels_session
from gradientflow.bench.kernels.columns import LAYOUT, KernelResult, summarize_kernel
from gradientflow.bench.kernels.contestants import (
    DEVICE_KERNELS,
    GRADIENTS,
    KERNELS,
    Kernel,
    active_level,
    item_size,
    stored,
)
from gradientflow.bench.kernels.plan import NAMES, NAMES_OF, KernelsPlan
from gradientflow.bench.kernels.selection import GROUP, SELECTIONS, Selection
from gradientflow.bench.kernels.session import KernelBench, take_times

BY_NAME = {(kernel.name, kernel.dtype): kernel for kernel in KERNELS}
IDS = [f"{kernel.name}-{kernel.dtype}" for kernel in KERNELS]
ALL = list({(kernel.name, kernel.dtype): kernel for kernel in (*KERNELS, *DEVICE_KERNELS)}.values())


# ---- what is measured ------------------------------------------------------------------------------------------------


def test_the_bytes_that_a_kernel_moves_are_counted() -> None:
    moved = {
        ("reduce", "float32"): 12,
        ("cast to float16", "float32"): 6,
        ("cast to bfloat16", "float32"): 6,
        ("cast to float32", "float16"): 6,
        ("count_nonfinite", "bfloat16"): 2,
        ("update_residual", "float32"): 16,
        ("update_residual streaming", "float16"): 12,
        ("gather", "float16"): 8,
        ("scatter", "float32"): 8,
        ("sum_of_squares", "float32"): 4,
        ("momentum_step", "float32"): 20,
        ("momentum_step to 16 bits", "bfloat16"): 20,
        ("glu_step", "float16"): 14,
        ("dc_step", "float32"): 20,
    }
    assert {key: BY_NAME[key].moved for key in moved} == moved
    assert {name for name, _ in moved} == set(NAMES)
    assert len(BY_NAME) == len(KERNELS)


def test_a_device_has_the_same_kernels_and_more_reductions_and_casts() -> None:
    moved = {(kernel.name, kernel.dtype): kernel.moved for kernel in DEVICE_KERNELS}
    assert len(moved) == len(DEVICE_KERNELS)
    own = {"reduce of 4": 20, "reduce of 8": 36}
    assert {name: moved[name, "float32"] for name in own} == own
    assert moved["cast to bfloat16", "float16"] == moved["cast to float16", "bfloat16"] == 4
    assert set(NAMES_OF["cuda"]) == set(NAMES) - {"update_residual streaming"} | set(own)
    assert all(
        moved[key] == kernel.moved for key, kernel in BY_NAME.items() if kernel.name != "update_residual streaming"
    )


@pytest.mark.parametrize("kernel", ALL, ids=[f"{kernel.name}-{kernel.dtype}" for kernel in ALL])
def test_all_values_are_exact_in_their_element_type(kernel: Kernel) -> None:
    blocks = kernel.fresh(4096, 1)
    expected = kernel.expect(blocks)
    assert set(expected.arrays) == set(kernel.writes)
    for name, values in {**blocks, **expected.arrays}.items():
        dtype = kernel.arrays[name]
        assert stored(values, dtype).itemsize == item_size(dtype)
        np.testing.assert_array_equal(widen(stored(values, dtype), dtype), values)
    assert kernel.spoils != all(np.isfinite(block).all() for block in blocks.values())


@pytest.mark.parametrize("size", [4, 4 * 257, 4 * 5003])
def test_every_kernel_is_right(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last size repeats the block of random values, and ends within it."""
    monkeypatch.setattr(kernels_check, "_BLOCK", 1009)
    monkeypatch.setattr(kernels_session, "take_times", lambda contestants, seconds: np.ones((2, 5), np.int64))
    bench = KernelBench(KernelsPlan((size,)), size, active_level())
    for kernel in KERNELS:
        result = bench.measure(kernel, 0.0)
        assert (result.wrong, result.elements, result.bytes) == (0, size // 4, size), kernel


def spoilt_call(kernel: Kernel, addend: float) -> Callable[[str, Sequence[int], int], float | None]:
    """Makes a call that leaves the last elements out, and gives another sum."""

    def call(level: str, addresses: Sequence[int], count: int) -> float | None:
        found = kernel.call(level, addresses, count - 9)
        return None if found is None else found + addend

    return call


@pytest.mark.parametrize("kernel", KERNELS, ids=IDS)
def test_what_is_wrong_is_noticed(kernel: Kernel) -> None:
    """In the last elements of what is written, and in what is returned; it is not timed then."""
    size = 4 * 1000
    bench = KernelBench(KernelsPlan((size,)), size, active_level())
    result = bench.measure(replace(kernel, call=spoilt_call(kernel, 1e6)), 1.0)
    assert result.wrong >= 1
    assert result.wrong <= 9 * len(kernel.writes) + 1
    assert result.iterations == 0
    assert result.median_us is result.ratio is None
    if not kernel.writes:
        assert result.wrong == 1


def test_an_input_that_was_written_to_is_noticed() -> None:
    kernel = BY_NAME["gather", "float32"]

    def call(level: str, addresses: Sequence[int], count: int) -> float | None:
        found = kernel.call(level, addresses, count)
        KERNELS[0].call(level, [addresses[1]] * 3, 4)  # of the float16 kinds: residual + residual is another number
        return found

    bench = KernelBench(KernelsPlan((4096,)), 4096, active_level())
    assert bench.measure(replace(kernel, call=call), 1.0).wrong >= 1


def test_selections_are_right_and_measured_where_they_are_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels_session, "take_times", lambda contestants, seconds: np.ones((2, 5), np.int64))
    for size in (4, 4 * 5003, 4 * 50_000):
        plan = KernelsPlan((size,), (GROUP, "reduce"))
        bench = KernelBench(plan, size, active_level())
        found = [bench.measure(kernel, 0.0) for kernel in plan.kernels]
        assert [result.wrong for result in found] == [0] * (len(GRADIENTS) + len(SELECTIONS))
    assert {kernel.name.split()[0] for kernel in SELECTIONS} >= {"select", "numpy.argpartition"}
    assert not [kernel for kernel in KernelsPlan((4,)).kernels if kernel in SELECTIONS]
    with pytest.raises(PlanError, match="selection"):
        KernelsPlan((4,), (GROUP,), "cuda")


@pytest.mark.parametrize("selection", SELECTIONS, ids=[selection.name for selection in SELECTIONS])
def test_a_wrong_selection_is_noticed(selection: Selection) -> None:
    """One that leaves the last elements out, or gives what is not among the largest."""
    size = 4 * 100_000
    bench = KernelBench(KernelsPlan((size,), (GROUP,)), size, active_level())

    def short(level: str, at: Sequence[int], count: int) -> Any:
        return selection.call(level, at, count // 2)

    assert bench.measure(replace(selection, call=short), 1.0).wrong >= 1


def test_calls_are_timed_side_by_side() -> None:
    order: list[int] = []
    times = take_times([lambda: order.append(0), lambda: order.append(1)], 0.01)
    assert times.shape[0] == 2
    assert times.shape[1] >= 5
    assert (times >= 0).all()
    assert order.count(0) == order.count(1)
    half = len(order) // 2
    assert 0 < sum(order[:half]) < half


# ---- options ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"sizes": ()}, "--sizes names no size"),
        ({"sizes": (1022,)}, "1022 bytes is not a whole number of float32"),
        ({"names": ("gather", "sort")}, "--kernels does not know 'sort'"),
        ({"names": ()}, "--kernels names nothing"),
        ({"device": "tpu"}, "--device does not know 'tpu'"),
        (
            {"device": "cuda", "names": ("update_residual streaming",)},
            "--kernels does not know 'update_residual streaming'",
        ),
        ({"seconds": 0.0}, "--seconds needs more than 0"),
        ({"sizes": (1 << 50,)}, "GiB are free: choose smaller --sizes"),
    ],
)
def test_wrong_options_are_refused(options: Mapping[str, Any], message: str) -> None:
    with pytest.raises(PlanError, match=message):
        KernelsPlan(**{"sizes": (4096,), **options})


def test_kernels_are_chosen_by_name() -> None:
    plan = KernelsPlan((4096,), names=("scatter", "gather"))
    assert [(kernel.name, kernel.dtype) for kernel in plan.kernels] == [
        (name, dtype) for name in ("gather", "scatter") for dtype in GRADIENTS
    ]
    assert plan.buffer_bytes(4096) == (3 * 4 + 12) * 1024


# ---- figures ---------------------------------------------------------------------------------------------------------


def made_up(kernel: Kernel, *, wrong: int = 0) -> KernelResult:
    """A result without a measurement."""
    times = np.array([[1000, 3000, 2000], [1500, 1000, 2000]])
    return summarize_kernel(kernel, "avx2", 4096, 1024, wrong, times)


def test_results_are_bandwidths_and_their_ratio() -> None:
    result = made_up(BY_NAME["update_residual", "float32"])
    assert (result.median_us, result.min_us, result.p95_us, result.copy_median_us) == (2.0, 1.0, 2.9, 1.5)
    assert (result.bytes_moved, result.bandwidth_GBps, result.ratio) == (16384, 8.192, 0.75)
    assert result.copy_GBps == pytest.approx(16.384 / 1.5)
    assert result.iterations == 3


def test_the_table_shows_every_kernel_once_and_what_is_wrong() -> None:
    results = [made_up(kernel, wrong=int(kernel.name == "gather")) for kernel in KERNELS]
    text = rendered(LAYOUT, results, width=100)
    assert all(text.count(f" {name}  ") == 1 for name in NAMES if name not in ("gather", "update_residual"))
    assert text.count("WRONG") == 3
    assert text.count("0.75x") == len(KERNELS) - 3
    assert "avx2" in LAYOUT.explain(results)
    narrow = rendered(LAYOUT, results, width=72, force_terminal=True)
    assert max(map(len, narrow.splitlines())) <= 72
    assert all(word in narrow for word in ("p95", "moved / copy"))


@pytest.mark.thorough
def test_the_picture_is_drawn(tmp_path: Path) -> None:
    from gradientflow.bench.kernels.plot import draw

    for name, results in (("some", [made_up(kernel) for kernel in KERNELS]), ("none", [])):
        check_picture(draw, results, tmp_path / f"{name}.png")


# ---- the command -----------------------------------------------------------------------------------------------------


def run_program(
    program: str, *arguments: str, env: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run the command line in a process of its own, after a few lines of Python."""
    return subprocess.run(
        [sys.executable, "-c", f"{program}\nfrom gradientflow.cli import main; main()", *arguments],
        env={**os.environ, "OMP_NUM_THREADS": "1", **(env or {})},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_the_command_measures_in_one_process(tmp_path: Path) -> None:
    path = tmp_path / "figures.json"
    ended = run_program("", "bench", "kernels", "--sizes", "4K,64K", "--seconds", "0.1", "--json", str(path))
    assert ended.returncode == 0, ended.stderr
    assert "moved / copy" in ended.stdout
    written = json.loads(path.read_text())
    assert written["environment"]["ranks"] == 1
    results = written["results"]
    assert len(results) == 2 * len(KERNELS)
    assert set(results[0]) == {field.name for field in fields(KernelResult)}
    assert all(result["wrong"] == 0 and result["ratio"] > 0 and result["iterations"] >= 5 for result in results)


def test_a_wrong_kernel_is_an_error_of_the_command() -> None:
    program = (
        "from dataclasses import replace\n"
        f"import {kernels_plan.__name__} as plan\n"
        "plan.KERNELS_OF['cpu'] = [replace(k, call=lambda level, at, count: None) for k in plan.KERNELS]"
    )
    ended = run_program(program, "bench", "kernels", "--sizes", "4K", "--kernels", "scatter", "--seconds", "0.1")
    assert ended.returncode == 1, ended.stderr
    assert ended.stdout.count("WRONG: scatter of") == 3


def test_the_command_refuses_a_job_of_several_ranks() -> None:
    ended = run_program("", "bench", "kernels", "--sizes", "4K", env={"OMPI_COMM_WORLD_SIZE": "2"})
    assert ended.returncode == 2
    assert "start it without mpirun" in ended.stderr
