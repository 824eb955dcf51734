"""The contract of strategies: what it refuses, and what follows from a constructor."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import Any

import pytest

from gradientflow import strategies
from gradientflow.strategies import Profile, Strategy, Synchronizer
from gradientflow.strategies.parsing import BY_NAME


class Two(Strategy):
    def __init__(self, period: int = 4, warmup: object = 3) -> None:
        self.period, self.warmup = period, warmup

    def bind(self, comm: Any, layout: Any) -> Any:
        raise NotImplementedError


@dataclass(eq=False, repr=False)
class Fields(Two):
    period: int = 6
    scale: float = 1.0


def test_a_profile_has_the_attributes_of_its_names() -> None:
    assert Two(8).profile() == Profile(warmup=3, period=8)
    assert Two(0, "later").profile() == Profile()
    assert Fields().profile() == Profile(period=6)


def test_a_constructor_that_a_decorator_adds_is_the_signature() -> None:
    mine = Fields(scale=2.0)
    assert mine.settings == {"period": 6, "scale": 2.0}
    assert mine != Fields()
    assert repr(mine) == "Fields(scale=2.0)"


class Passing(strategies.Dense):
    def __init__(self, scale: float, **options: Any) -> None:
        super().__init__(**options)
        self.scale = scale


def test_arguments_that_are_passed_on_belong_to_the_signature() -> None:
    mine = Passing(2.0, wire="float16")
    of_dense = ["share", "nonfinite", "fusion_threshold", "wire", "algorithm"]
    assert list(inspect.signature(Passing).parameters) == ["scale", *of_dense]
    assert mine.settings == {**strategies.Dense(wire="float16").settings, "scale": 2.0}
    assert repr(mine) == "Passing(scale=2.0, wire='float16')"
    with pytest.raises(TypeError, match=r"Passing\(\) got an unexpected keyword argument 'density'"):
        Passing(2.0, density=0.1)


class Fixed(strategies.SSP):
    def __init__(self, scale: float = 1.0, **options: Any) -> None:
        super().__init__(3, **options)
        self.scale = scale


def test_arguments_that_are_passed_on_are_keywords() -> None:
    parameters = inspect.signature(Fixed).parameters
    assert [*parameters][:2] == ["scale", "staleness"]
    assert parameters["staleness"].kind is inspect.Parameter.KEYWORD_ONLY
    assert Fixed(2.0) != Fixed()
    assert Fixed(2.0, wire="float16") == Fixed(2.0, wire="float16")


def test_every_strategy_has_its_arguments_as_attributes() -> None:
    for kind in BY_NAME.values():
        typical = kind.typical(100)
        assert list(typical.settings) == list(inspect.signature(kind).parameters)
        assert kind(**typical.settings) == typical


def test_former_names_work_and_warn() -> None:
    with pytest.warns(DeprecationWarning, match=r"gradientflow\.strategies\.Report is called Withheld now"):
        assert strategies.Report is strategies.Withheld
    with pytest.warns(DeprecationWarning, match=r"Synchronizer\.report is called withheld now"):
        assert Synchronizer.report is Synchronizer.withheld
    with pytest.raises(AttributeError, match="has no attribute 'Letter'"):
        strategies.Letter  # noqa: B018
