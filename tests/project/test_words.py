"""Plain words: prose begins with the thing that it tells of, and keeps to the words of the glossary."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest
from prose import FIELD, LEAD, ROOT, Piece, habits, pieces, sources

GLOSSARY = ROOT / "docs" / "glossary.md"


@cache
def all_pieces() -> tuple[Piece, ...]:
    return tuple(piece for file in sources() for piece in pieces(file))


def avoided() -> list[tuple[str, re.Pattern[str]]]:
    """Return the words that the glossary avoids, from its last table."""
    _, *rows = re.findall(
        r"^\| ([a-z ,]+) \| .* \|$", GLOSSARY.read_text(encoding="utf-8").rpartition("## ")[2], re.MULTILINE
    )
    words = [word for row in rows for word in row.split(", ")]
    return [(word, re.compile(rf"\b{word}\b", re.IGNORECASE)) for word in words]


def report(found: list[str]) -> str:
    return "\n".join([f"{len(found)} places:", *found[:40]])


def test_docstrings_and_headers_begin_with_the_thing() -> None:
    found = [f"{p.place}: {p.text[:80]}" for p in all_pieces() if p.kind == "docstring" and re.match(LEAD, p.text)]
    assert not found, report(found)


def test_comments_of_fields_name_the_thing() -> None:
    found = [f"{p.place}: {p.text[:80]}" for p in all_pieces() if p.kind == "field" and re.match(FIELD, p.text)]
    assert not found, report(found)


def test_no_word_that_the_glossary_avoids() -> None:
    assert len(avoided()) > 5
    found = [
        f"{p.place}: {word}: ...{p.text[max(0, m.start() - 40) : m.end() + 40]}..."
        for p in all_pieces()
        if p.place != "docs/glossary.md"
        for word, pattern in avoided()
        for m in pattern.finditer(re.sub(r"`[^`]*`", "", p.text))
    ]
    assert not found, report(found)


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("a.py", '"""What it has."""\n', ["docstring", "lead"]),
        ("a.py", "x = 1  # of the others, who may go on anew\n", ["comment", "4"]),
        ("a.hpp", "// Whether it is.\nint a;  // of a rank\n", ["docstring", "lead", "field", "field"]),
        ("a.md", "Those that wait.\n```\nthe others\n```\n", ["page", "1"]),
        ("a.py", '"""Return the rank."""\n', ["docstring"]),
    ],
)
def test_habits_are_found(tmp_path: Path, name: str, text: str, expected: list[str]) -> None:
    (tmp_path / name).write_text(text, encoding="utf-8")
    found = []
    for piece in pieces(tmp_path / name, tmp_path):
        found.append(piece.kind)
        if piece.kind == "docstring" and re.match(LEAD, piece.text):
            found.append("lead")
        elif piece.kind == "field" and re.match(FIELD, piece.text):
            found.append("field")
        elif count := len(habits(piece)):
            found.append(str(count))
    assert found == expected
