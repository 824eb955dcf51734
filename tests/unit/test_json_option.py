from __future__ import annotations

import json
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from gradientflow.errors import ArgumentError
from gradientflow.json_option import JsonOutput, json_option


@click.command()
@click.option("--other")
@json_option
def shown(other: str | None, json_output: JsonOutput | None) -> None:
    click.echo("the table")
    if json_output is not None:
        json_output.write({"other": other})


@pytest.mark.parametrize("words", [["--json", "-", "--other", "1"], ["--json", "--other", "1"]])
def test_without_a_file_only_json_is_on_standard_output(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    ended = CliRunner().invoke(shown, words)
    assert not list(tmp_path.iterdir())
    assert json.loads(ended.stdout) == {"other": "1"}
    assert ended.stderr == "the table\n"


def test_with_a_file_the_table_is_on_standard_output(tmp_path: Path) -> None:
    file = tmp_path / "figures.json"
    ended = CliRunner().invoke(shown, ["--json", str(file)])
    assert (ended.stdout, json.loads(file.read_text())) == ("the table\n", {"other": None})


def test_a_file_that_cannot_be_written_is_refused_before_the_command_begins(tmp_path: Path) -> None:
    ended = CliRunner().invoke(shown, ["--json", str(tmp_path / "missing" / "figures.json")])
    assert isinstance(ended.exception, ArgumentError)
    assert "cannot be written" in str(ended.exception)
    assert ended.stdout == ""
