"""What strategies combine with, and the reason where they do not."""

from __future__ import annotations

import inspect
from pathlib import Path

import pytest

from gradientflow.errors import ArgumentError
from gradientflow.strategies import parse_strategy
from gradientflow.strategies.parsing import BY_NAME

SERVED = ("asgd", "dssp", "elastic_bsp", "ssd_sgd", "ssgd", "ssp")
REASONS = {
    ("auto", ("density", "ratio")): "it chooses among strategies that lose nothing",
    ("auto", ("fusion_threshold",)): "it is what auto finds out",
    ("auto", ("wire",)): r"allow=\('float16',\) lets auto choose that one",
    ("diloco", ("density", "ratio")): "sparse_loco is the method that sends the largest changes",
    ("hpsgd", ("density", "ratio")): "choosing what is sent would keep the trainer waiting",
    ("hpsgd", ("fusion_threshold",)): "a round is one call",
    ("hpsgd", ("period",)): "a round ends when it is done",
    ("local_sgd", ("density", "ratio")): "sparse_loco is the method that sends the largest changes",
    ("local_sgd", ("fragments", "nesterov", "outer_momentum", "outer_rate")): "diloco has it",
    ("powersgd", ("density", "ratio")): "all of two thin matrices is sent",
    ("powersgd", ("fusion_threshold",)): "all matrices travel together",
    ("psgd", ("density", "fusion_threshold", "ratio", "wire")): r"nothing travels before finish\(\)",
    ("psgd", ("period",)): r"local_sgd\(period=...\) exchanges weights",
    ("sparse_loco", ("density", "ratio")): "it sends 64 of each 4,096 entries",
    ("sparse_loco", ("delay", "fragments", "mixing")): "entries are chosen, sent and applied at once",
    ("sparse_loco", ("outer_momentum",)): "the residuals take its place",
    ("sparse_loco", ("wire",)): "what it sends has two bits already",
    **{(name, ("density", "ratio")): "servers add up whole gradients" for name in SERVED},
    **{(name, ("algorithm",)): "pushes and pulls are no allreduce" for name in SERVED},
}
REFUSED = [(name, argument, reason) for (name, arguments), reason in REASONS.items() for argument in arguments]


@pytest.mark.parametrize(("name", "argument", "reason"), REFUSED)
def test_what_does_not_go_together_is_refused_with_its_reason(name: str, argument: str, reason: str) -> None:
    with pytest.raises(ArgumentError, match=f"{name} takes no {argument}: {reason}"):
        parse_strategy(f"{name}({argument}=1)")


def test_all_refusals_are_tested_and_refuse_nothing_that_is_taken() -> None:
    there = {(name, argument) for name, kind in BY_NAME.items() for argument in kind.not_taken}
    assert there == {(name, argument) for name, argument, _ in REFUSED}
    assert not [each for each in there if each[1] in inspect.signature(BY_NAME[each[0]]).parameters]


def test_wires_are_taken_where_the_docs_say_so() -> None:
    """The first column of the table names every strategy once, the second one says yes or no."""
    text = (Path(__file__).parents[2] / "docs" / "strategies.md").read_text(encoding="utf-8")
    table = text.partition("## What goes together")[2].partition("## ")[0]
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in table.splitlines() if line.startswith("| `")]
    named = {name.strip("` "): row[1] for row in rows for name in row[0].split(",")}
    assert set(named) == set(BY_NAME)
    takes = {name for name, kind in BY_NAME.items() if "wire" in inspect.signature(kind).parameters}
    assert {name for name, answer in named.items() if answer.startswith("yes")} == takes


@pytest.mark.parametrize("argument", ["[" * 100_000, "-" * 90_000 + "1", "1+" * 60_000 + "1"], ids=["[", "-", "+"])
def test_words_that_are_nested_too_deep_are_refused(argument: str) -> None:
    with pytest.raises(ArgumentError, match=r"no strategy in words|density of csc is nested too deep"):
        parse_strategy(f"csc(density={argument})")
