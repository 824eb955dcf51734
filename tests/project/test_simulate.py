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
    table, _, end = found.stdout.partition("\n\n")[2].partition("\n\n")
    groups = re.split(r"\n(?=\S)", table)[1:]
    assert [group.splitlines()[0].strip() for group in (groups[0], groups[-1])] == ["exact", "nothing exchanged"]
    for group in groups:
        names = [re.split(r"  +", line)[1] for line in group.splitlines()[1:]]
        assert names == sorted(names, key=steps.__getitem__)
    assert end.splitlines() == data["advice"]
    assert min(steps.values()) >= 0.3
    assert {each["ranks"] for each in data["predictions"]} == {512}


def test_ranks_that_share_a_core_take_longer_for_their_own_work(command_line: Run) -> None:
    def own_seconds(*options: str) -> dict[str, float]:
        words = ("simulate", "--link", "1gbit,50us", "--strategy", "dense; lags", *options, "--json", "-")
        predictions = json.loads(command_line(*words).stdout)["predictions"]
        return {each["strategy"]: each["own_seconds"] for each in predictions}

    alone, shared = own_seconds(), own_seconds("--cores-per-rank", "0.5")
    assert alone["dense"] == shared["dense"] == 0
    assert shared["lags"] > 1.9 * alone["lags"] > 0
    assert own_seconds("--cores-per-rank", "2") == alone


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
    assert texts.index("step, milliseconds") - texts.index("hosts") > 3  # ticks of the steps
    assert {"csc (a part later)", "dense (exact)", "without communication"} <= set(texts)


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
        (("--link", "1gbit", "--strategy", "csc; lags", "--lossless"), "none of the strategies csc; lags is lossless"),
        (("--link", "1gbit", "--trace", "x", "--model", "bert"), "--model bert and --trace x exclude each other"),
        (("--link", "1gbit", "--trace", "x", "--backward", "1ms"), "--backward 1ms and --trace x exclude each other"),
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
    dense, mine = (line.split() for line in found.stdout.splitlines()[4:6])
    assert dense[1:4] == mine[1:4]


def write_trace(path: Path) -> None:
    """Write a timeline of three steps of 10 ms, each with a gradient of 4 MB."""
    events = []
    for begin in (0, 10_000, 20_000, 30_000):
        ready = {"name": "tensor 0 ready", "ph": "i", "ts": begin - 100, "args": {"bytes": 4_000_000}}
        events += [ready, {"name": "wait for gradients", "ph": "X", "ts": begin, "dur": 0, "args": {}}]
    path.write_text(json.dumps([{**event, "pid": 0, "tid": 0} for event in events]), encoding="utf-8")


def test_a_trace_is_scaled_to_a_step_and_only_json_is_on_standard_output(command_line: Run, tmp_path: Path) -> None:
    write_trace(tmp_path / "trace.json")
    alone = []
    for step in ((), ("--step", "30ms")):
        options = ("--link", "1gbit", "--trace", str(tmp_path / "trace.json"), *step, "--json", "-")
        found = command_line("simulate", *options, "--lossless")
        assert found.returncode == 0, found.stderr
        data = json.loads(found.stdout)
        assert {each["strategy"] for each in data["predictions"]} == {"auto", "dense", "ssgd"}
        assert all(sentence in found.stderr for sentence in data["advice"])
        alone.append(data["predictions"][0]["alone_seconds"])
    assert alone == pytest.approx([0.01, 0.03])


def test_tune_takes_a_trace_and_writes_json(command_line: Run, tmp_path: Path) -> None:
    write_trace(tmp_path / "trace.json")
    options = ("--trace", str(tmp_path / "trace.json"), "--measure", "0", "--strategy", "csc", "--json", "-")
    found = command_line("tune", "-n", "2", *options, "-o", str(tmp_path / "gradientflow.toml"))
    assert found.returncode == 0, found.stderr
    data = json.loads(found.stdout)
    assert [each["strategy"] for each in data["predictions"]] == ["csc", "dense"]
    assert found.stderr.splitlines()[-len(data["advice"]) :] == data["advice"]


@pytest.mark.parametrize(
    ("words", "hosts"), [("dense", 2), pytest.param("dense; diloco(period=5)", 1, marks=pytest.mark.slow)]
)
def test_tune_measures_a_link_that_simulate_takes(
    command_line: Run, tmp_path: Path, words: str, hosts: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ranks of one host have no link: the file then gets none."""
    monkeypatch.setenv("GRADIENTFLOW_NODE_SIZE", str(2 // hosts))
    path = tmp_path / "gradientflow.toml"
    write_settings_file(str(path), SettingsFile(strategy="lags", settings={"timeout": 99}))
    options = ("--model", "lstm", "--step", "5ms", "--measure", "1", "--strategy", words)
    command = module_command("gradientflow.cli", ["tune", "-n", "2", *options])
    found = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False, cwd=tmp_path)
    assert found.returncode == 0, found.stderr
    assert found.stdout.splitlines()[-1].startswith(("take ", "stay with lags: "))
    assert "\x1b" not in found.stdout  # mpirun gives ranks a terminal, also where its own output is none
    assert "sets timeout=99" in found.stderr
    written = read_settings_file(path)
    assert (written.strategy, written.settings) == ("dense", {"timeout": 99})
    assert ("no link was measured" in found.stdout) == (not written.link) == (hosts == 1)
    again = command_line("simulate", "--link-from", str(path), "--strategy", "dense")
    assert (again.returncode == 0) == (hosts == 2), again.stderr
    write_settings_file(str(path), SettingsFile(link={"per_byte": 0.0, "latency": 0.0}))
    assert "has no link between hosts" in command_line("simulate", "--link-from", str(path)).stderr


def test_tune_says_at_once_that_its_file_cannot_be_written(command_line: Run) -> None:
    found = command_line("tune", "-n", "2", "-o", "/missing/file")
    assert found.returncode == 2
    assert "/missing/file cannot be written" in found.stderr


def test_tune_wants_to_know_the_ranks(command_line: Run) -> None:
    found = command_line("tune")
    assert found.returncode == 2
    assert "say how many ranks to start" in found.stderr
