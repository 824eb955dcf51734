"""Tables in terminals of every width, and terminals behind a launcher."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from gradientflow.spread import spread
from gradientflow.tables import FittedTable, plain_table, print_table
from gradientflow.terminal import open_console, variables_for_ranks

NAMES = ("dense(wire='float16')", "csc(density=0.01)", "csc(density=0.05)")
HEADINGS = ("step ms", "waits ms", "own ms", "speed", "sent MB", "extra MB")
FIGURES = ("1,409.4", "1,109.5", "20.9", "21%", "153.34", "307")


def printed(table: FittedTable, **options: object) -> list[str]:
    file = io.StringIO()
    print_table(table, Console(file=file, color_system=None, **options))  # type: ignore[arg-type]
    return file.getvalue().splitlines()


def strategies() -> FittedTable:
    table = plain_table(["strategy"], HEADINGS)
    for name in NAMES:
        table.add_row(name, *FIGURES)
    return table


@pytest.mark.parametrize("width", [30, 50, 66, 80])
def test_no_figure_is_cut_in_a_narrow_terminal(width: int) -> None:
    lines = printed(strategies(), force_terminal=True, width=width)
    assert max(map(len, lines)) <= width
    words = " ".join(lines)
    assert all(words.count(figure) == len(NAMES) for figure in FIGURES)
    assert all(words.count(heading) == 1 for heading in HEADINGS)
    assert {line.split()[0] for line in lines if "csc" in line} == set(
        NAMES[1:]
    )  # shortened no further than they differ


def test_names_shrink_before_columns_move_below() -> None:
    wide, narrow, narrower = (printed(strategies(), force_terminal=True, width=width) for width in (80, 70, 60))
    assert (wide[1].split()[0], narrow[1].split()[0]) == (NAMES[0], "dense(wire='floa…")
    assert (len(narrow), narrower.count("")) == (4, 1)


def test_figures_in_the_first_column_keep_their_digits() -> None:
    table = plain_table((), ("bytes", "time"))
    for size in ("1,000,000,000,001", "2,000,000,000,002"):
        table.add_row(size, "1")
    assert "…" not in "".join(printed(table, force_terminal=True, width=15))


def test_text_wraps_beside_names() -> None:
    table = plain_table(["setting"])
    table.add_column("meaning")
    table.add_row("timeout", "how long a rank waits for the others")
    lines = printed(table, force_terminal=True, width=34)
    assert len(lines) > 2
    assert max(map(len, lines)) <= 34


def test_a_file_gets_one_line_for_each_row() -> None:
    table = plain_table(["name"], ["figure"])
    table.add_row("x" * 200, "1")
    assert printed(table, force_terminal=False)[1] == f"{'x' * 200}       1"


@pytest.mark.parametrize(("told", "width"), [("0", None), ("123", 123)])
def test_a_rank_prints_for_the_terminal_of_the_command(
    told: str, width: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GRADIENTFLOW_TERMINAL", told)
    console = open_console()
    assert console.is_terminal == (width is not None)
    assert width in (None, console.width)
    assert variables_for_ranks() == {"GRADIENTFLOW_TERMINAL": told}


def test_names_of_lines_do_not_overlap_and_stay_near() -> None:
    assert spread([0.2, 0.5, 0.5, 0.9], 0.1) == pytest.approx([0.2, 0.45, 0.55, 0.9])
    assert spread([0.0, 0.0, 1.0, 1.0], 0.1) == pytest.approx([0.0, 0.1, 0.9, 1.0])
    assert spread([0.5] * 5, 0.5) == pytest.approx([0.0, 0.25, 0.5, 0.75, 1.0])
