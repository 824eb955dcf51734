"""The order of strategies in tables, and the advice at their end."""

from __future__ import annotations

from pathlib import Path

import pytest

from gradientflow.strategies import as_strategy, parse_strategies
from gradientflow.strategies.predict.ranking import Ranked, advice, effect_of, grouped

DOCS = Path(__file__).resolve().parents[2]


def ranked(**seconds: float) -> list[Ranked]:
    return [Ranked(as_strategy(name), each) for name, each in seconds.items()]


def test_groups_begin_with_exact_strategies_and_end_with_those_that_exchange_nothing() -> None:
    words = "psgd; auto(allow=('float16',)); lags; dense(wire='float16'); dense(wire='float32'); asgd; ssgd; csc"
    rows = [(each, float(number), str(each)) for number, each in enumerate(parse_strategies(words, 100))]
    assert grouped(rows) == [
        ("exact", ["dense(wire='float32')", "ssgd"]),
        ("rounded", ["auto(allow=('float16',))", "dense(wire='float16')"]),
        ("a part later", ["lags", "csc"]),
        ("of older weights", ["asgd"]),
        ("nothing exchanged", ["psgd"]),
    ]


@pytest.mark.parametrize(
    ("seconds", "beginnings"),
    [
        ({"dense": 0.134, "lags": 0.092, "psgd": 0.01}, ["take lags: 92 ms in place of 134 with dense; it s"]),
        ({"dense": 0.134, "diloco": 0.092, "lags": 0.095}, ["take lags: 95 ms in place of 134 with dense; it sends"]),
        ({"dense": 0.134, "auto": 0.12, "csc": 0.1}, ["take auto: 120 ms in place of 134", "take csc: 100 ms"]),
        (
            {"dense": 0.134, "auto": 0.1, "csc": 0.1},
            ["take auto: 100 ms in place of 134 with dense; the result is the same"],
        ),
        ({"dense": 0.1, "csc": 0.0951}, ["take csc: 95 ms in place of 100 with dense"]),
        ({"dense": 0.0134, "auto": 0.0133, "psgd": 0.001}, ["stay with dense: 13.4 ms"]),
    ],
)
def test_advice_names_the_best_lossless_strategy_and_the_best_of_all(
    seconds: dict[str, float], beginnings: list[str]
) -> None:
    found = ranked(**seconds)
    sentences = advice(found, found[0])
    assert len(sentences) == len(beginnings)
    assert all(sentence.startswith(begin) for sentence, begin in zip(sentences, beginnings, strict=True))


def test_an_effect_of_ones_own_is_unknown() -> None:
    class Mine:
        effect = "compresses"

    assert effect_of(Mine()) == ""
    assert [heading for heading, _ in grouped([(Mine(), 1.0, "row")])] == ["unknown effect"]


def test_every_strategy_has_an_effect_and_a_page() -> None:
    for strategy in parse_strategies("all", 100):
        assert effect_of(strategy)
        slow = Ranked(strategy, 2.0)
        for sentence in advice([Ranked(strategy, 1.0)], slow):
            assert sentence.startswith("stay") or (DOCS / sentence.rpartition(": ")[2]).is_file()
