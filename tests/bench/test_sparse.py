"""What ``gradientflow bench sparse`` measures, what it compares with, and that it notices wrong gradients."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from figures import check_picture, rendered

from gradientflow.bench.core.case import Case
from gradientflow.bench.core.measure import Times
from gradientflow.bench.core.plan import PlanError, parse_densities
from gradientflow.bench.core.shapes import MODELS
from gradientflow.bench.sparse.columns import LAYOUT, SparseResult, summarize_sparse
from gradientflow.bench.sparse.contestants import CSC, DENSE, SparseContestant
from gradientflow.bench.sparse.plan import SparsePlan, chunks_sent, parse_models
from gradientflow.bench.sparse.reference import Layout, PaddedSource, Reference, choose

RESULT_FIELDS = {
    *("backend", "method", "model", "tensors", "parameters", "bytes", "chunk_size", "density", "sent_share", "dtype"),
    *(
        "wire",
        "device",
        "transport",
        "ranks",
        "nodes",
        "iterations",
        "median_us",
        "min_us",
        "p95_us",
        "refill_median_us",
        "cpu_us",
    ),
    *("bookkeeping_us", "bytes_sent", "bytes_reported", "link_share", "wrong"),
}


# ---- options ---------------------------------------------------------------------------------------------------------


def make_plan(**changes: Any) -> SparsePlan:
    return SparsePlan(**{"models": (MODELS["mlp"],), "densities": (0.1,), "chunk_sizes": (4096,), **changes})


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"models": ()}, "--model names nothing"),
        ({"densities": ()}, "--density names nothing"),
        ({"densities": (0.1, 0.0)}, "--density needs more than 0 and at most 1, not 0"),
        ({"densities": (1.01,)}, "--density needs more than 0 and at most 1, not 1.01"),
        ({"densities": (float("nan"),)}, "--density"),
        ({"chunk_sizes": ()}, "--chunk names nothing"),
        ({"momentum": 1.1}, "--momentum needs a number from 0 to 1, not 1.1"),
        ({"wires": ("int8",)}, "--wire does not know 'int8'"),
        ({"wires": ("float8_e4m3",)}, "--wire does not know 'float8_e4m3'"),
        ({"peers": ("nccl",)}, "--compare does not know 'nccl'"),
        ({"iterations": 0}, "--iterations"),
        ({"seconds": 0.0}, "--seconds"),
    ],
)
def test_what_cannot_be_measured_is_refused(change: dict[str, Any], words: str) -> None:
    with pytest.raises(PlanError, match=words):
        make_plan(**change)


def test_jobs_that_could_only_fail_are_refused() -> None:
    with pytest.raises(PlanError, match="at least 1 rank"):
        make_plan().check_job(0, on_this_machine=True)
    with pytest.raises(PlanError, match=r"perceptron with 1 densities and 100000 ranks need \d+\.\d GiB"):
        make_plan().check_job(100_000, on_this_machine=True)
    make_plan().check_job(100_000, on_this_machine=False)


def test_models_and_numbers_of_gradients_are_read() -> None:
    assert [model.title for model in parse_models("mlp,resnet50", None)] == ["perceptron", "ResNet-50"]
    for elements in (1, 15, 16, 17, 1000):
        (model,) = parse_models("mlp", str(elements))
        assert model.parameters == elements
        assert len(model.shapes) <= 17
    assert parse_densities("1, 0.1,1") == (1.0, 0.1)
    for refused in (lambda: parse_models("lenet", None), lambda: parse_densities("0.1,half")):
        with pytest.raises(PlanError):
            refused()


def test_a_share_of_the_chunks_is_rounded_up_but_not_for_the_sake_of_a_rounding_error() -> None:
    assert [chunks_sent(density, 20) for density in (0.15, 1 - 0.85, 0.151, 0.0001, 1.0)] == [3, 3, 4, 1, 20]


# ---- the reference ---------------------------------------------------------------------------------------------------


class Fixed:
    """Gradients written down, one row for each rank."""

    def __init__(self, *rows: list[float]) -> None:
        self._rows = np.array(rows, np.float32)

    def values(self, rank: int, begin: int, end: int) -> np.ndarray[Any, Any]:
        return self._rows[rank, begin:end].copy()


def test_the_reference_does_what_the_paper_says() -> None:
    # Five elements in chunks of two; two ranks; residuals are halved.
    layout = Layout([(0, 5)], 5, 2)
    reference = Reference(layout, range(3), range(2), 0.5)
    first = reference.iterate(Fixed([2, 0, 4, 8, 1], [0, 2, 4, 0, 3]), np.array([True, False, True]))
    assert first.mean.tolist() == [1, 1, 0, 0, 2]
    assert first.norms.tolist() == [2 * (1 + 1), (4 + 8) + (4 + 0), 2 * 2]
    assert reference.residuals[0].tolist() == [0, 0, 2, 4, 0]
    assert reference.residuals[1].tolist() == [0, 0, 2, 0, 0]
    assert choose(first.norms, 0.3).tolist() == [False, True, False]
    assert choose(first.norms, 0.6).tolist() == [True, True, False]  # of equal norms the first
    second = reference.iterate(Fixed([1, 1, 1, 1, 1], [1, 1, 1, 1, 1]), np.array([False, True, False]))
    assert second.mean.tolist() == [0, 0, 3, 3, 0]
    assert second.magnitude.tolist() == [1, 1, 3, 3, 1]
    assert second.norms.tolist() == [4, 2 * (3 + 3), 2]
    assert reference.residuals[0].tolist() == [0.5, 0.5, 0, 0, 0.5]


def test_the_reference_can_be_divided_by_chunks_and_by_ranks() -> None:
    random = np.random.default_rng(7)
    layout = Layout([(0, 3), (16, 40)], 48, 5)
    sources = [PaddedSource(Fixed(*random.integers(-9, 10, (3, 48)).tolist()), layout) for _ in range(3)]
    whole = Reference(layout, range(layout.chunks), range(3), 0.5)
    parts = [Reference(layout, chunks, range(3), 0.5) for chunks in (range(4), range(4, 4), range(4, 10))]
    own = [Reference(layout, range(layout.chunks), [rank], 0.5) for rank in range(3)]
    important = np.ones(layout.chunks, bool)
    for source in sources:
        all_of_it = whole.iterate(source, important)
        pieces = [part.iterate(source, important) for part in parts]
        for alone in own:
            alone.iterate(source, important)
        assert np.concatenate([piece.mean for piece in pieces]).tolist() == all_of_it.mean.tolist()
        assert np.concatenate([piece.norms for piece in pieces]).tolist() == all_of_it.norms.tolist()
        for rank in range(3):
            assert own[rank].residuals[rank].tolist() == whole.residuals[rank].tolist()
        important = choose(all_of_it.norms, 0.3)
    assert whole.residuals[1][3:16].tolist() == [0] * 13  # between the tensors
    assert (whole.residuals[1] * 2 % 1).any()  # quarters: of more than one iteration


# ---- figures ---------------------------------------------------------------------------------------------------------


class Pool:
    """What a sparse pool says of itself."""

    chunks = 4
    important = np.array([True, False, False, False])
    reports = ()


def make_results() -> list[SparseResult]:
    model = MODELS["mlp"]
    case = Case("allreduce", 4 * model.parameters, "float32", "mean", 2, 0)

    def result(backend: str, density: float | None, call: int, sent: int | None) -> SparseResult:
        contestant = SparseContestant(
            *(DENSE if density is None else CSC, backend, "pool", None, "float32", [], 5),
            ready=lambda _: None,
            wait=lambda: None,
            pool=Pool() if density else None,
            density=density,
        )
        times = Times(*(np.array([time, time]) for time in (call * 1000, 2 * call * 1000, call * 1000)))
        measured = sent, 0.0004 if density else None, 2, 0, times, 0.002
        return summarize_sparse(case, model, 4096, contestant, *measured)

    return [
        result("gradientflow", None, 8_000, 35_000_000),
        result("mpi", None, 16_000, 35_000_000),
        result("gradientflow", 0.25, 4_000, 8_800_000),
    ]


def test_the_table_compares_with_the_dense_exchanges() -> None:
    results = make_results()
    assert (results[2].sent_share, results[2].bookkeeping_us, results[2].bookkeeping_share) == (0.25, 400.0, 0.05)
    lines = [line.split() for line in rendered(LAYOUT, results, force_terminal=False).splitlines()]
    dense, mpi, csc = lines[-4 if not lines[-1] else -3 :][:3]
    assert dense[:5] == ["mlp", "4K", "dense", "8.000", "8.000"]
    assert dense[-2:] == ["2.00x", "2.00x"]  # over MPI; nothing over itself
    assert mpi[0] == "mpi"
    assert csc[:2] == ["csc", "0.25"]
    assert csc[-4:] == ["2.00x", "2.00x", "4.00x", "4.00x"]
    assert {"0.4000", "5", "8.800", "50"} <= set(csc)  # bookkeeping and its share, megabytes, per cent of the link
    assert "the network interface counts" in LAYOUT.explain(results)
    wrong = [replace(results[0], wrong=3, median_us=None), *results[1:]]
    wrong = rendered(LAYOUT, wrong, force_terminal=True, width=95).splitlines()
    assert max(map(len, wrong)) <= 95
    assert "WRONG" in next(line for line in wrong if "dense" in line and "mlp" in line)


@pytest.mark.thorough
def test_the_picture_shows_every_model(tmp_path: Path) -> None:
    from gradientflow.bench.sparse.plot import draw

    results = make_results() + [replace(result, model="vgg16") for result in make_results()]
    check_picture(draw, results, tmp_path / "lines.svg")


# ---- jobs ------------------------------------------------------------------------------------------------------------


def test_sparse_and_dense_exchanges_are_right_across_nodes(mpirun: Callable[..., Any], tmp_path: Path) -> None:
    path = tmp_path / "figures.json"
    options = ("--model", "small", "--chunk", "1000,64K", "--density", "1,0.15", "--wire", "float32,float16")
    ended = mpirun(
        *(3, "bench_sparse", "right", "bench", "sparse", *options, "--iterations", "2", "--json", path),
        env={"GRADIENTFLOW_NODE_SIZE": "1"},
    )
    assert "csc" in ended.stdout
    results = json.loads(path.read_text())["results"]
    assert all(set(result) == RESULT_FIELDS for result in results)
    assert {(result["wrong"], result["iterations"], result["nodes"]) for result in results} == {(0, 2, 3)}
    assert len(results) == 2 * (2 + 1 + 4)
    sparse = [result for result in results if result["method"] == "csc" and result["chunk_size"] == 1000]
    whole, part = (next(result for result in sparse if result["density"] == density) for density in (1, 0.15))
    assert (whole["sent_share"], part["sent_share"]) == (1.0, round(5 / 32, 6))
    assert part["bytes_reported"] < 0.3 * whole["bytes_reported"]
    assert part["bookkeeping_us"] > 0
    assert part["bytes_sent"] is None  # one host


@pytest.mark.thorough
def test_a_wrong_gradient_is_found_and_not_timed(mpirun: Callable[..., Any], tmp_path: Path) -> None:
    path = tmp_path / "figures.json"
    options = ("--model", "small", "--chunk", "1K", "--density", "1,0.1", "--momentum", "1", "--compare", "")
    ended = mpirun(
        *(2, "bench_sparse", "faulty", "bench", "sparse", *options, "--iterations", "1", "--json", path), check=False
    )
    assert ended.returncode == 1
    assert "WRONG: csc 0.1 on Small: 1 wrong elements" in ended.stdout
    for result in json.loads(path.read_text())["results"]:
        assert (result["wrong"] > 0) == (result["density"] == 0.1)
        assert (result["median_us"] is None) == (result["density"] == 0.1)
