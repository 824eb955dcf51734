"""``gradientflow simulate`` and ``tune`` as a user meets them."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from jobs import Finished

from gradientflow.launch import module_command
from gradientflow.settings_file import SettingsFile, read_settings_file, write_settings_file

Run = Callable[..., Finished]


def test_one_cluster_gives_a_table_of_all_strategies(command_line: Run, tmp_path: Path) -> None:
    found = command_line(
        *("simulate", "--hosts", "64", "--ranks-per-host", "8", "--link", "25gbit,20us"), "--json", str(tmp_path / "f")
    )
    assert found.returncode == 0, found.stderr
    assert "predicted, not measured" in found.stdout
    data = json.loads((tmp_path / "f").read_text(encoding="utf-8"))
    steps = {each["strategy"]: each["seconds"] for each in data["predictions"]}
    rows = [line.split()[0] for line in found.stdout.splitlines()[3:] if line]
    assert rows == sorted(
        (name.split()[0] for name in steps),
        key=lambda name: min(seconds for full, seconds in steps.items() if full.split()[0] == name),
    )
    assert min(steps.values()) >= 0.3
    assert {each["ranks"] for each in data["predictions"]} == {512}


@pytest.mark.thorough
def test_several_clusters_give_a_column_each_and_a_picture(command_line: Run, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    picture = tmp_path / "steps.png"
    found = command_line(
        *("simulate", "--hosts", "1,2,16", "--link", "1gbit,50us", "--strategy", "dense; csc", "--plot", str(picture))
    )
    assert found.returncode == 0, found.stderr
    heading = next(line for line in found.stdout.splitlines() if line.startswith("step ms"))
    assert heading.split()[-3:] == ["1", "2", "16"]
    assert picture.read_bytes().startswith(b"\x89PNG")


@pytest.mark.thorough
def test_a_picture_of_one_cluster_begins_with_one_host(command_line: Run, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    picture = tmp_path / "steps.svg"
    found = command_line(
        *("simulate", "--hosts", "6", "--link", "1gbit,50us", "--strategy", "dense; csc", "--plot", str(picture))
    )
    assert found.returncode == 0, found.stderr
    texts = re.findall("<!-- (.*?) -->", picture.read_text())
    assert texts[:5] == ["1", "2", "4", "6", "hosts"]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ((), "say what the link is"),
        (("--link", "1gbit", "--link-from", "x"), "say what the link is"),
        (("--link", "quick"), "a link is a rate and a latency"),
        (("--link", "1gbit", "--step", "3"), "--step is a time such as 300ms, not '3'"),
        (("--link", "1gbit", "--step", "1s", "--backward", "2s"), "--backward 2s is a part of --step 1s"),
        (("--link", "1gbit", "--hosts", "0"), "--hosts is a number of 1 or more"),
        (("--link", "1gbit", "--hosts", "2000000"), "at most 1,000,000 ranks"),
        (("--link", "1gbit", "--model", "x"), "'x' is not one of"),
        (("--link", "1gbit", "--strategy", "nothing"), "there is no strategy 'nothing'"),
        (("--link-from", "/missing/file"), "/missing/file cannot be read"),
        (("--link", "1gbit", "--json", "/missing/file"), "/missing/file cannot be written"),
    ],
)
def test_mistakes_get_a_sentence(command_line: Run, arguments: tuple[str, ...], sentence: str) -> None:
    found = command_line("simulate", *arguments)
    assert found.returncode == 2
    assert sentence in found.stderr
    assert "Traceback" not in found.stderr


def test_a_strategy_of_ones_own_is_predicted_too(command_line: Run, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "from gradientflow.strategies import Dense\n\n\nclass Mine(Dense):\n    pass\n", encoding="utf-8"
    )
    found = command_line("simulate", "--link", "1gbit", "--strategy", f"dense; {tmp_path}/mine.py:Mine")
    assert found.returncode == 0, found.stderr
    dense, mine = (line.split() for line in found.stdout.splitlines()[3:5])
    assert dense[1:4] == mine[1:4]


@pytest.mark.parametrize("words", ["dense", pytest.param("dense; diloco(period=5)", marks=pytest.mark.thorough)])
def test_tune_measures_a_link_that_simulate_takes(command_line: Run, tmp_path: Path, words: str) -> None:
    path = tmp_path / "gradientflow.toml"
    write_settings_file(str(path), SettingsFile(strategy="lags", settings={"timeout": 99}))
    options = ("--model", "lstm", "--step", "5ms", "--measure", "1", "--strategy", words)
    command = module_command("gradientflow.cli", ["tune", "-n", "2", *options])
    found = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False, cwd=tmp_path)
    assert found.returncode == 0, found.stderr
    assert "Best of those whose result is" in found.stdout
    assert "\x1b" not in found.stdout  # mpirun gives ranks a terminal, also where its own output is none
    assert "sets timeout=99" in found.stderr
    written = read_settings_file(path)
    assert (written.strategy, written.settings) == ("dense", {"timeout": 99})
    again = command_line("simulate", "--link-from", str(path), "--strategy", "dense")
    assert again.returncode == 0, again.stderr


def test_tune_says_at_once_that_its_file_cannot_be_written(command_line: Run) -> None:
    found = command_line("tune", "-n", "2", "-o", "/missing/file")
    assert found.returncode == 2
    assert "/missing/file cannot be written" in found.stderr


def test_tune_wants_to_know_the_ranks(command_line: Run) -> None:
    found = command_line("tune")
    assert found.returncode == 2
    assert "say how many ranks to start" in found.stderr
