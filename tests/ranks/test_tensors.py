"""What may be passed as a tensor, what is refused and how; the family tree of the exceptions."""

from __future__ import annotations

import importlib.util
import inspect
from collections.abc import Callable
from typing import Any

import pytest

from gradientflow import errors

Run = Callable[..., Any]


@pytest.mark.checks("tensors")
@pytest.mark.parametrize("ranks", [pytest.param(1, marks=pytest.mark.thorough), 3])
def test_what_is_a_tensor(check: Run, ranks: int) -> None:
    check(ranks)


@pytest.mark.checks("tensors_torch")
@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="needs torch")
def test_tensors_of_torch(check: Run) -> None:
    check(2)


def test_every_exception_is_one_of_ours_and_a_familiar_one() -> None:
    familiar = {
        "ArgumentError": ValueError,
        "ArgumentTypeError": TypeError,
        "MismatchError": ValueError,
        "ClosedError": ValueError,
        "NonFiniteError": ArithmeticError,
        "CommunicationError": RuntimeError,
        "RecoverableError": RuntimeError,
        "PeerError": RuntimeError,
        "AbandonedError": RuntimeError,
        "CommunicationTimeoutError": TimeoutError,
        "MPIError": RuntimeError,
        "MPILibraryError": ImportError,
        "SystemCallError": OSError,
        "NodeMemoryError": MemoryError,
        "InternalError": AssertionError,
    }
    found = {name: each for name, each in vars(errors).items() if inspect.isclass(each)}
    assert issubclass(found.pop("GradientFlowWarning"), UserWarning)
    assert set(found) == {*familiar, "GradientFlowError"}
    for name, base in familiar.items():
        assert issubclass(found[name], errors.GradientFlowError)
        assert issubclass(found[name], base)
        assert inspect.getdoc(found[name])


def test_the_three_families_do_not_overlap() -> None:
    wrong_use = {
        errors.ArgumentError,
        errors.ArgumentTypeError,
        errors.MismatchError,
        errors.ClosedError,
        errors.NonFiniteError,
    }
    for name, each in vars(errors).items():
        if inspect.isclass(each) and each not in (errors.GradientFlowError, errors.GradientFlowWarning):
            families = [
                issubclass(each, (errors.ArgumentError, errors.ArgumentTypeError)),
                issubclass(each, errors.CommunicationError),
                issubclass(each, errors.InternalError),
            ]
            assert sum(families) == 1, name
            assert families[0] == (each in wrong_use)
